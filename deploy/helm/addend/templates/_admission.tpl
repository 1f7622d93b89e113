{{/*
By which means labelled pods get the sidecar: policy where the cluster has the API, else webhook where it is switched on; empty
without injection. addend.validate refuses injection without either.
*/}}
{{- define "addend.injectionBy" -}}
{{- $i := .Values.injection -}}
{{- if not $i.enabled -}}
{{- else if and $i.webhook.enabled $i.webhook.always -}}
webhook
{{- else if include "addend.injectionApi" . -}}
policy
{{- else if $i.webhook.enabled -}}
webhook
{{- end -}}
{{- end -}}

{{/* The newest API of MutatingAdmissionPolicy that the cluster has; empty: the cluster has no such API. */}}
{{- define "addend.injectionApi" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $apis := .Capabilities.APIVersions -}}
{{- if ne .Values.injection.apiVersion "auto" -}}
{{- .Values.injection.apiVersion -}}
{{- else if $apis.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1
{{- else if $apis.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1beta1
{{- end -}}
{{- end -}}

{{/* Labels that name the job of a pod; the first that a pod has counts. */}}
{{- define "addend.jobLabels" -}}
["jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name"]
{{- end -}}

{{/*
What must be true of a pod so that a sidecar can be made for it, each with the sentence that refuses the pod. The policies get
these facts as CEL (addend.podRules), the webhook gets them as they are (tools/addendctl/injection_settings.h).
hasAny: annotations and labels, any of which suffices. value: otherwise this annotation must match the regular expression of RE2
(a missing annotation is an empty text); optional: only if the pod has the annotation. below: the value must be a smaller number
than this annotation; values of another form are the subjects of other rules.
*/}}
{{- define "addend.podRuleFacts" -}}
{{- $quantity := "^[0-9]+([.][0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$" -}}
{{- $count := "^[1-9][0-9]{0,5}$" -}}
{{- $index := "batch.kubernetes.io/job-completion-index" -}}
{{- $rules := list (dict
      "value" (dict "annotation" "addend.io/num-nodes" "pattern" $count)
      "message" "the annotation addend.io/num-nodes must be the number of pods of the job, such as \"2\"") -}}
{{- range $name, $what := dict
      "local-size" (list "^[1-9][0-9]{0,2}$" "the number of ranks in the pod, such as \"8\"")
      "node-rank" (list "^[0-9]{1,6}$" "the pod's place among the pods of the job, from \"0\" on")
      "model-bytes" (list "^[0-9]{1,15}$" "the bytes of all tensors together, such as \"1340000000\"")
      "memory" (list $quantity "the sidecar's memory, such as 6Gi")
      "cpu" (list $quantity "the CPUs that the sidecar requests, such as \"2\"")
      "cpu-limit" (list $quantity "the limit of the sidecar's CPUs, such as \"2\"")
      "job" (list "^[A-Za-z0-9][A-Za-z0-9._-]{0,150}$" "a name of letters, digits, dots, - and _") -}}
{{- $rules = append $rules (dict
      "value" (dict "annotation" (printf "addend.io/%s" $name) "pattern" (index $what 0)) "optional" true
      "message" (printf "the annotation addend.io/%s must be %s" $name (index $what 1))) -}}
{{- end -}}
{{- $rules = append $rules (dict
      "hasAny" (dict "annotations" (list "addend.io/job") "labels" (include "addend.jobLabels" . | fromJsonArray))
      "message" "the pod belongs to no Job, JobSet or PyTorchJob: the annotation addend.io/job must name its job") -}}
{{- $rules = append $rules (dict
      "hasAny" (dict "annotations" (list "addend.io/node-rank" $index) "labels" (list "training.kubeflow.org/replica-index"))
      "message" "the pod has no completion index: set completionMode: Indexed in its Job, or the annotation addend.io/node-rank") -}}
{{- $rules = append $rules (dict
      "hasAny" (dict "annotations" (list "addend.io/node-rank") "labels" (list "jobset.sigs.k8s.io/job-index"))
      "value" (dict "annotation" $index "pattern" "^[0-9]{1,9}$")
      "below" (dict "annotation" "addend.io/num-nodes" "pattern" $count)
      "message" "the pod's completion index is not below the annotation addend.io/num-nodes, which must equal the Job's completions") -}}
{{- toYaml $rules -}}
{{- end -}}

{{/*
The rules as CEL expressions that never fail. The policy of injection.yaml leaves other pods alone, and that of validation.yaml
refuses them.
*/}}
{{- define "addend.podRules" -}}
{{- $annotation := "object.metadata.?annotations[?%q]" -}}
{{- $rules := list -}}
{{- range $rule := include "addend.podRuleFacts" . | fromYamlArray -}}
{{- $parts := list -}}
{{- with $rule.hasAny -}}
{{- range .annotations -}}
{{- $parts = append $parts (printf "%s.hasValue()" (printf $annotation .)) -}}
{{- end -}}
{{- if gt (len .labels) 1 -}}
{{- $labels := list -}}
{{- range .labels -}}{{- $labels = append $labels (quote .) -}}{{- end -}}
{{- $parts = append $parts (printf "[%s].exists(l, object.metadata.?labels[?l].hasValue())" (join ", " $labels)) -}}
{{- else -}}
{{- $parts = append $parts (printf "object.metadata.?labels[?%q].hasValue()" (first .labels)) -}}
{{- end -}}
{{- end -}}
{{- with $rule.value -}}
{{- $value := printf $annotation .annotation -}}
{{- $matches := printf "%s.orValue(\"\").matches(%q)" $value .pattern -}}
{{- if $rule.below -}}
{{- $limit := printf $annotation $rule.below.annotation -}}
{{- $parts = concat $parts (list (printf "!%s" $matches) (printf "!%s.orValue(\"\").matches(%q)" $limit $rule.below.pattern)
      (printf "int(%s.orValue(\"0\")) < int(%s.orValue(\"0\"))" $value $limit)) -}}
{{- else if $rule.optional -}}
{{- $parts = concat $parts (list (printf "!%s.hasValue()" $value) $matches) -}}
{{- else -}}
{{- $parts = append $parts $matches -}}
{{- end -}}
{{- end -}}
{{- $rules = append $rules (dict "expression" (join " || " $parts) "message" $rule.message) -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/*
The sidecar of a labelled pod, with placeholders for the values of the pod: (dict "root" $ "prefix" "cel:variables." and, where
a placeholder is not the prefix and the name, that value).
*/}}
{{- define "addend.injectedSidecar" -}}
{{- $of := dict -}}
{{- $given := . -}}
{{- range list "job" "numNodes" "localSize" "nodeRank" "memory" "cpu" -}}
{{- $_ := set $of . (default (printf "%s%s" $given.prefix .) (get $given .)) -}}
{{- end -}}
{{- include "addend.agentSidecar" (merge (dict "root" .root "nodeRank" (printf "value: %q" $of.nodeRank)) $of) -}}
{{- end -}}

{{/* The policies' condition: a pod that has a sidecar from `addendctl inject` or a runtime keeps it. */}}
{{- define "addend.hasNoSidecar" -}}
name: has-no-sidecar-yet
expression: '!has(object.spec.initContainers) || !object.spec.initContainers.exists(c, c.name == "addend-agent")'
{{- end -}}

{{/* The pods that the policies and the webhook are about. */}}
{{- define "addend.podsToInject" -}}
matchPolicy: Equivalent
namespaceSelector: {{- toYaml .Values.injection.namespaceSelector | nindent 2 }}
objectSelector:
  matchLabels: {addend.io/inject: "true"}
resourceRules:
- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
{{- end -}}
