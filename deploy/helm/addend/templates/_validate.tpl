{{/* Refuses combinations of values that the schema cannot refuse; each message says what to change. */}}
{{- define "addend.validate" -}}
{{- $v := .Values -}}
{{- if and (include "addend.highlyAvailable" .) (not (or (hasPrefix "etcd:" $v.scheduler.store) (eq "kubernetes" $v.scheduler.store))) -}}
{{- fail (printf "scheduler.replicas is %d but scheduler.store is %q, which only a single scheduler can use: set scheduler.store to kubernetes or etcd:HOST:PORT, or scheduler.replicas to 1." (int $v.scheduler.replicas) $v.scheduler.store) -}}
{{- end -}}
{{- if and (eq "kubernetes" $v.scheduler.store) (not $v.scheduler.serviceAccount.create) (not $v.scheduler.serviceAccount.name) -}}
{{- fail "scheduler.store=kubernetes gives the scheduler's ServiceAccount rights on Secrets, and every pod may have the namespace's default account: set scheduler.serviceAccount.create=true, or scheduler.serviceAccount.name." -}}
{{- end -}}
{{- $etcd := $v.scheduler.etcd -}}
{{- if and (or $etcd.tlsSecretName $etcd.passwordSecretName) (not (hasPrefix "etcd:" $v.scheduler.store)) -}}
{{- fail (printf "scheduler.etcd is for scheduler.store=etcd:..., and scheduler.store is %q: set it, or remove scheduler.etcd." $v.scheduler.store) -}}
{{- end -}}
{{- if ge (int $v.summation.drainTimeoutSeconds) (int $v.summation.terminationGracePeriodSeconds) -}}
{{- fail "summation.terminationGracePeriodSeconds must be more than summation.drainTimeoutSeconds, or servers are killed while they hand over." -}}
{{- end -}}
{{- if le (int64 (include "addend.bytes" $v.summation.memory)) (int64 (include "addend.bytes" $v.summation.memoryHeadroom)) -}}
{{- fail (printf "summation.memory (%s) must be more than summation.memoryHeadroom (%s): the rest is for tensors." $v.summation.memory $v.summation.memoryHeadroom) -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- if and $v.tls.certManager.enabled $v.tls.secretName -}}
{{- fail "tls.secretName and tls.certManager.enabled are two sources of certificates: choose one." -}}
{{- end -}}
{{- if not (or $v.tls.certManager.enabled $v.tls.secretName) -}}
{{- fail "tls.enabled needs certificates: set tls.certManager.enabled with an issuerRef, or tls.secretName." -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name: the Issuer or ClusterIssuer that signs." -}}
{{- end -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $v.hostAgents -}}
{{- range list (include "addend.hostAgentName" (dict "root" $ "job" .job)) .directory -}}
{{- if hasKey $seen . -}}
{{- fail (printf "hostAgents has %s twice: a job has a single agent on a machine, and each agent its own directory." .) -}}
{{- end -}}
{{- $_ := set $seen . true -}}
{{- end -}}
{{- end -}}
{{- $page := $v.statusPage -}}
{{- if and $page.ingress.enabled (not $page.ingress.authentication) (not $page.open) -}}
{{- fail "statusPage.ingress shows jobs and machines to everybody who reaches it: set statusPage.ingress.authentication to the annotations by which your ingress controller asks for a login, or statusPage.open." -}}
{{- end -}}
{{- if and $page.httpRoute.enabled (not $page.httpRoute.filters) (not $page.open) -}}
{{- fail "statusPage.httpRoute shows jobs and machines to everybody who reaches it: set statusPage.httpRoute.filters to the filter by which your gateway asks for a login, or statusPage.open, if the gateway has a policy for it." -}}
{{- end -}}
{{- if and $page.httpRoute.enabled (not $page.httpRoute.parentRefs) -}}
{{- fail "statusPage.httpRoute needs statusPage.httpRoute.parentRefs: the gateways that it belongs to." -}}
{{- end -}}
{{- if and $v.rdma.runAsRoot (not $v.rdma.enabled) -}}
{{- fail "rdma.runAsRoot without rdma.enabled runs the pods as root without need: set rdma.enabled, or rdma.runAsRoot=false." -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas must not be more than autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and $v.injection.enabled (not $v.rbac.clusterScoped) -}}
{{- fail "injection.enabled makes admission policies or the configuration of a webhook, which belong to no namespace: set rbac.clusterScoped=true, or injection.enabled=false and use addendctl inject." -}}
{{- end -}}
{{- $webhook := $v.injection.webhook -}}
{{- if and $webhook.enabled (not $v.injection.enabled) -}}
{{- fail "injection.webhook.enabled only says by which means pods are injected: set injection.enabled=true too." -}}
{{- end -}}
{{- if and $webhook.always (not $webhook.enabled) -}}
{{- fail "injection.webhook.always needs injection.webhook.enabled=true." -}}
{{- end -}}
{{- if and $v.injection.enabled (not (include "addend.injectionBy" .)) -}}
{{- fail "injection.enabled needs MutatingAdmissionPolicy, which this cluster does not have: Kubernetes has it from 1.36 on, or from 1.34 on with the feature gate MutatingAdmissionPolicy. Set injection.webhook.enabled=true, which injects by a webhook of the chart instead, or injection.enabled=false and use addendctl inject; without a cluster (helm template) set injection.apiVersion." -}}
{{- end -}}
{{- if ne (empty $webhook.tlsSecretName) (empty $webhook.caBundle) -}}
{{- fail "injection.webhook.tlsSecretName and injection.webhook.caBundle go together: a certificate, and the authority by which Kubernetes' API server checks it." -}}
{{- end -}}
{{- if and (eq $v.summation.transport "rdma") (not $v.rdma.enabled) -}}
{{- fail "summation.transport is rdma: set rdma.enabled, or no server can open a link." -}}
{{- end -}}
{{- end -}}
