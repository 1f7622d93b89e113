{{/*
The agent's sidecar as a container, from files/sidecar.yaml, which `addendctl inject` fills in too.
Arguments: root, job, numNodes, localSize, nodeRank (what follows `name: ADDEND_NODE_RANK,`), memory; optional cpu: instead
of the values'; env: a list that comes before the file's, so that its values may refer to it; component: whose credentials it
has, if not an agent's.
*/}}
{{- define "addend.agentSidecar" -}}
{{- $values := .root.Values -}}
{{- $whose := dict "root" .root "component" (default "agent" .component) -}}
{{- $text := .root.Files.Get "files/sidecar.yaml" -}}
{{- $fill := dict
      "image" (include "addend.image" (dict "root" .root "image" $values.agent.image)) "pullPolicy" $values.agent.image.pullPolicy
      "scheduler" (include "addend.schedulerAddress" .root) "cpu" (default $values.agent.cpu .cpu)
      "job" .job "numNodes" .numNodes "localSize" .localSize "nodeRank" .nodeRank "memory" .memory
      "insecure" (not $values.tls.enabled) -}}
{{- range $key, $value := $fill -}}
{{- $text = replace (printf "{{ .%s }}" $key) (toString $value) $text -}}
{{- end -}}
{{- $agent := fromYaml $text -}}
{{- $env := concat (.env | default list) $agent.env (include "addend.agentEnv" .root | fromYamlArray)
      (include "addend.secretEnv" $whose | fromYamlArray) $values.agent.extraEnv -}}
{{- $_ := set $agent "env" (include "addend.uniqueEnv" $env | fromYamlArray) -}}
{{- $_ := set $agent "volumeMounts" (concat $agent.volumeMounts (include "addend.credentialMounts" $whose | fromYamlArray)) -}}
{{- range list "resources" "startupProbe" "livenessProbe" -}}
{{- $_ := mergeOverwrite (get $agent .) (deepCopy (get $values.agent .)) -}}
{{- end -}}
{{- if $values.rdma.enabled -}}
{{- if $values.rdma.claimTemplate -}}
{{- $_ := set $agent.resources "claims" (list (dict "name" "addend-nic")) -}}
{{- else -}}
{{- range list $agent.resources.requests $agent.resources.limits -}}
{{- $_ := set . $values.rdma.resource ($values.rdma.count | toString) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $agent.securityContext "capabilities" (dict "drop" (list "ALL") "add" (list "IPC_LOCK")) -}}
{{- if $values.rdma.runAsRoot -}}
{{- $_ := set $agent.securityContext "runAsNonRoot" false -}}
{{- $_ := set $agent.securityContext "runAsUser" 0 -}}
{{- end -}}
{{- end -}}
{{- toYaml $agent -}}
{{- end -}}

{{- define "addend.agentEnv" -}}
{{ include "addend.commonEnv" . }}
{{- with .Values.agent.bandwidth }}
- {name: ADDEND_BANDWIDTH, value: {{ . | quote }}}
{{- end }}
{{- with .Values.agent.dataInterface }}
- {name: ADDEND_DATA_INTERFACE, value: {{ . | quote }}}
{{- end }}
{{- if .Values.agent.encryptData }}
- {name: ADDEND_ENCRYPT_DATA, value: "true"}
{{- end }}
{{- if ne .Values.agent.wireEncoding "auto" }}
- {name: ADDEND_WIRE_ENCODING, value: {{ .Values.agent.wireEncoding }}}
{{- end }}
{{- if ne .Values.agent.wireDtype "same" }}
- {name: ADDEND_WIRE_DTYPE, value: {{ .Values.agent.wireDtype }}}
{{- end }}
{{- if ne .Values.agent.wireRounding "nearest" }}
- {name: ADDEND_WIRE_ROUNDING, value: {{ .Values.agent.wireRounding }}}
{{- end }}
{{- if .Values.rdma.enabled }}
{{- include "addend.rdmaEnv" . }}
{{- end }}
{{- end -}}

{{/* Volumes that a pod with the sidecar needs: (dict "root" $ "component" whose credentials). */}}
{{- define "addend.agentVolumes" -}}
- {name: addend-run, emptyDir: {}}
{{- include "addend.credentialVolumes" . }}
{{- end -}}

{{/*
A value as an expression in CEL: maps become objects of the given type, maps of quantities stay maps, and a string that begins
with "cel:" is an expression already.
*/}}
{{- define "addend.cel" -}}
{{- if kindIs "map" .value -}}
{{- $type := .type -}}
{{- $parts := list -}}
{{- $plain := regexMatch "\\.(requests|limits)$" $type -}}
{{- range $key, $value := .value -}}
{{- $part := include "addend.cel" (dict "value" (ternary (toString $value) $value $plain) "type" (printf "%s.%s" $type $key)) -}}
{{- $parts = append $parts (printf "%s: %s" (ternary (toJson $key) $key $plain) $part) -}}
{{- end -}}
{{- printf "%s{%s}" (ternary "" $type $plain) (join ", " $parts) -}}
{{- else if kindIs "slice" .value -}}
{{- $type := .type -}}
{{- $parts := list -}}
{{- range .value -}}
{{- $parts = append $parts (include "addend.cel" (dict "value" . "type" $type)) -}}
{{- end -}}
{{- printf "[%s]" (join ", " $parts) -}}
{{- else if and (kindIs "string" .value) (hasPrefix "cel:" (toString .value)) -}}
{{- trimPrefix "cel:" .value -}}
{{- else -}}
{{- toJson .value -}}
{{- end -}}
{{- end -}}
