{{/* Names. */}}
{{- define "addend.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "addend.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "addend.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "addend.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The prefix of cluster-scoped names: releases of one name in two namespaces must not share them. */}}
{{- define "addend.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "addend.fullname" .) -}}
{{- end -}}

{{/* The selector labels of the pods of a component: (dict "root" $ "component" "scheduler"). */}}
{{- define "addend.selectorLabels" -}}
app.kubernetes.io/name: {{ include "addend.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of pods: without versions, so that a new release of the chart alone leaves the pods running. */}}
{{- define "addend.podLabels" -}}
{{ include "addend.selectorLabels" . }}
app.kubernetes.io/part-of: addend
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "addend.labels" -}}
{{ include "addend.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: addend
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image by digest or tag: (dict "root" $ "image" .Values.scheduler.image). */}}
{{- define "addend.image" -}}
{{- $repository := printf "%s/%s" (default .image.registry .root.Values.global.imageRegistry) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "addend.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "addend.fullname" .root) .component) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{/* Several schedulers share a store and stand by for each other. */}}
{{- define "addend.highlyAvailable" -}}
{{- if gt (int .Values.scheduler.replicas) 1 -}}true{{- end -}}
{{- end -}}

{{/* Addresses of the scheduler for members and addendctl: all of them, since a standby has no open port for members. */}}
{{- define "addend.schedulerAddress" -}}
{{- $name := printf "%s-scheduler" (include "addend.fullname" .) -}}
{{- if include "addend.highlyAvailable" . -}}
{{- $addresses := list -}}
{{- range $index := until (int .Values.scheduler.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s-headless.%s.svc:7070" $name $index $name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- else -}}
{{- printf "%s.%s.svc:7070" $name .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* The flag --store of the scheduler. */}}
{{- define "addend.store" -}}
{{- if eq .Values.scheduler.store "sqlite" -}}sqlite:/var/lib/addend/scheduler.db
{{- else if eq .Values.scheduler.store "kubernetes" -}}kubernetes:{{ include "addend.fullname" . }}-scheduler
{{- else -}}{{ .Values.scheduler.store }}{{- end -}}
{{- end -}}

{{/* A quantity such as 8Gi in bytes. */}}
{{- define "addend.bytes" -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $unit := trimPrefix $number . -}}
{{- $factor := get (dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit -}}
{{- mul (int64 $number) (int64 $factor) -}}
{{- end -}}

{{/* Memory of a sidecar: slots of all tensors (3 M with one rank, (L + 3) M with L), and 128 MiB for the process. */}}
{{- define "addend.agentMemory" -}}
{{- if .root.Values.agent.memory -}}
{{- .root.Values.agent.memory -}}
{{- else -}}
{{- $slots := 3 -}}
{{- if gt (int .localSize) 1 }}{{ $slots = add (int .localSize) 3 }}{{ end -}}
{{- add (mul (int64 .modelBytes) (int64 $slots)) 134217728 -}}
{{- end -}}
{{- end -}}

{{/*
The name of the agents of machines for a job, which is a label's value too, so at most 63 characters: (dict "root" $ "job" name).
*/}}
{{- define "addend.hostAgentName" -}}
{{- $job := regexReplaceAll "[^a-z0-9]+" (lower .job) "-" | trimAll "-" -}}
{{- $name := printf "%s-host-%s" (include "addend.fullname" .root) $job -}}
{{- if gt (len $name) 63 -}}
{{- printf "%s-%s" ($name | trunc 54 | trimSuffix "-") (sha256sum .job | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* A map of the chart's with the user's values over it: (dict "own" text in YAML, "over" map). */}}
{{- define "addend.over" -}}
{{- mergeOverwrite (fromYaml .own) (deepCopy (default dict .over)) | toYaml -}}
{{- end -}}

{{- define "addend.podSecurityContext" -}}
{{- if .asRoot -}}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
{{- else -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
{{- end }}
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "addend.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {{ ternary (dict "drop" (list "ALL") "add" (list "IPC_LOCK")) (dict "drop" (list "ALL")) .rdma | toJson }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The Secret with the certificate of a component: (dict "root" $ "component" "scheduler"). */}}
{{- define "addend.tlsSecretName" -}}
{{- if eq .component "agent" -}}
{{- .root.Values.tls.agentSecretName -}}
{{- else -}}
{{- default (printf "%s-%s-tls" (include "addend.fullname" .root) .component) .root.Values.tls.secretName -}}
{{- end -}}
{{- end -}}

{{/* A container's part of TLS, as lists. */}}
{{- define "addend.tlsEnv" -}}
- {name: ADDEND_TLS_CERT, value: /etc/addend/tls/tls.crt}
- {name: ADDEND_TLS_KEY, value: /etc/addend/tls/tls.key}
- {name: ADDEND_TLS_CA, value: /etc/addend/tls/ca.crt}
{{- /* Members are called by the addresses of their pods, which no certificate contains. */}}
- {name: ADDEND_TLS_SERVER_NAME, value: {{ .Values.tls.serverName | quote }}}
{{- end -}}

{{- define "addend.tlsMount" -}}
- {name: addend-tls, mountPath: /etc/addend/tls, readOnly: true}
{{- end -}}

{{- define "addend.tlsVolume" -}}
- name: addend-tls
  secret: {secretName: {{ include "addend.tlsSecretName" . }}, defaultMode: 0440}
{{- end -}}

{{/* The Secret that authorises a component to join; empty: no secret. (dict "root" $ "component" "agent"). */}}
{{- define "addend.secretName" -}}
{{- get (dict "agent" .root.Values.secrets.jobs "scheduler" .root.Values.secrets.servers "summation" .root.Values.secrets.servers) .component -}}
{{- end -}}

{{- define "addend.secretEnv" -}}
{{- if include "addend.secretName" . }}
- {name: {{ eq .component "agent" | ternary "ADDEND_JOB_SECRET_FILE" "ADDEND_SERVER_SECRET_FILE" }}, value: /etc/addend/secret/secret}
{{- end }}
{{- end -}}

{{/* Mounts of a container, and volumes of its pod, for TLS and the secret, as lists. */}}
{{- define "addend.credentialMounts" -}}
{{- if .root.Values.tls.enabled }}
{{ include "addend.tlsMount" .root }}
{{- end }}
{{- if include "addend.secretName" . }}
- {name: addend-secret, mountPath: /etc/addend/secret, readOnly: true}
{{- end }}
{{- end -}}

{{- define "addend.credentialVolumes" -}}
{{- if .root.Values.tls.enabled }}
{{ include "addend.tlsVolume" . }}
{{- end }}
{{- with include "addend.secretName" . }}
- name: addend-secret
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* Environment of every service. A component's own environment follows it, so that the user's extraEnv wins. */}}
{{- define "addend.commonEnv" -}}
- {name: ADDEND_LOG_FORMAT, value: {{ .Values.logFormat }}}
- {name: ADDEND_LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
{{- if .Values.tls.enabled }}
{{ include "addend.tlsEnv" . }}
{{- else }}
- {name: ADDEND_INSECURE, value: "true"}
{{- end }}
{{- end -}}

{{/*
The claims of a pod for its NIC (DRA): with rdma.claimTemplate, else none. Its containers name the claim in resources.claims.
*/}}
{{- define "addend.nicClaims" -}}
{{- if and .Values.rdma.enabled .Values.rdma.claimTemplate -}}
{{- list (dict "name" "addend-nic" "resourceClaimTemplateName" .Values.rdma.claimTemplate) | toJson -}}
{{- end -}}
{{- end -}}

{{- define "addend.rdmaEnv" -}}
{{- if .Values.rdma.device }}
- {name: ADDEND_RDMA_DEVICE, value: {{ .Values.rdma.device | quote }}}
{{- end }}
{{- if .Values.rdma.trafficClass }}
- {name: ADDEND_RDMA_TRAFFIC_CLASS, value: {{ .Values.rdma.trafficClass | quote }}}
{{- end }}
{{- end -}}

{{/*
What the values of a component say of its pods as such: (dict "root" $ "component" ... "affinity" the chart's own "values" those of
the component, if they are not at its name).
*/}}
{{- define "addend.placement" -}}
{{- $values := default (index .root.Values .component) .values -}}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.hostAliases }}
hostAliases: {{ toJson . }}
{{- end }}
{{- with $values.initContainers }}
initContainers: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with $values.affinity | default .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- /* A constraint without a selector spreads nothing. */}}
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "addend.selectorLabels" . | fromYaml)) }}
{{- range $values.topologySpreadConstraints }}
- {{ merge (deepCopy .) $selector | toJson }}
{{- end }}
{{- end }}
{{- end -}}

{{/* At most one pod of a component on a machine. */}}
{{- define "addend.apart" -}}
{{- $labels := dict "app.kubernetes.io/name" (include "addend.name" .root) "app.kubernetes.io/component" .component -}}
{{- dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list
      (dict "topologyKey" "kubernetes.io/hostname" "namespaceSelector" (dict) "labelSelector" (dict "matchLabels" $labels)))) | toJson -}}
{{- end -}}

{{/* Decides auto, always or never by the APIs of the cluster, which a namespace's administrator may not be allowed to use. */}}
{{- define "addend.wanted" -}}
{{- $there := and .root.Values.rbac.clusterScoped (.root.Capabilities.APIVersions.Has .api) -}}
{{- if or (eq .mode "always") (and (eq .mode "auto") $there) -}}true{{- end -}}
{{- end -}}

{{/* A list of environment variables without duplicates: the last value of a name, at the position of the first. */}}
{{- define "addend.uniqueEnv" -}}
{{- $last := dict -}}
{{- range . -}}{{- $_ := set $last .name . -}}{{- end -}}
{{- $names := list -}}
{{- $env := list -}}
{{- range . -}}
{{- if not (has .name $names) -}}
{{- $names = append $names .name -}}
{{- $env = append $env (get $last .name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}
