{{/* The newest API of MutatingAdmissionPolicy that the cluster has. */}}
{{- define "addend.injectionApi" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $apis := .Capabilities.APIVersions -}}
{{- if ne .Values.injection.apiVersion "auto" -}}
{{- .Values.injection.apiVersion -}}
{{- else if $apis.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1
{{- else if $apis.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{- $group }}/v1beta1
{{- else -}}
{{- fail "injection.enabled needs MutatingAdmissionPolicy, which this cluster does not have: Kubernetes has it from 1.36 on, or from 1.34 on with the feature gate MutatingAdmissionPolicy. Set injection.enabled=false and use addendctl inject; without a cluster (helm template) set injection.apiVersion." -}}
{{- end -}}
{{- end -}}

{{/*
What must be true of a pod so that a sidecar can be made for it: CEL expressions that never fail, each with the sentence that
refuses the pod. The admission policy of injection.yaml leaves other pods alone, and that of validation.yaml refuses them.
*/}}
{{- define "addend.podRules" -}}
{{- $annotation := "object.metadata.?annotations[?\"addend.io/%s\"]" -}}
{{- $quantity := "^[0-9]+([.][0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$" -}}
{{- $rules := list (dict
      "expression" (printf "%s.orValue(\"\").matches(\"^[1-9][0-9]{0,5}$\")" (printf $annotation "num-nodes"))
      "message" "the annotation addend.io/num-nodes must be the number of pods of the job, such as \"2\"") -}}
{{- range $name, $what := dict
      "local-size" (list "^[1-9][0-9]{0,2}$" "the number of ranks in the pod, such as \"8\"")
      "node-rank" (list "^[0-9]{1,6}$" "the pod's place among the pods of the job, from \"0\" on")
      "model-bytes" (list "^[0-9]{1,15}$" "the bytes of all tensors together, such as \"1340000000\"")
      "memory" (list $quantity "the sidecar's memory, such as 6Gi")
      "cpu" (list $quantity "the CPUs that the sidecar requests, such as \"2\"")
      "cpu-limit" (list $quantity "the limit of the sidecar's CPUs, such as \"2\"")
      "job" (list "^[A-Za-z0-9][A-Za-z0-9._-]{0,150}$" "a name of letters, digits, dots, - and _") -}}
{{- $value := printf $annotation $name -}}
{{- $rules = append $rules (dict
      "expression" (printf "!%s.hasValue() || %s.orValue(\"\").matches(%q)" $value $value (index $what 0))
      "message" (printf "the annotation addend.io/%s must be %s" $name (index $what 1))) -}}
{{- end -}}
{{- $rules = append $rules (dict
      "expression" (printf "%s.hasValue() || [\"jobset.sigs.k8s.io/jobset-name\", \"training.kubeflow.org/job-name\", \"batch.kubernetes.io/job-name\"].exists(l, object.metadata.?labels[?l].hasValue())" (printf $annotation "job"))
      "message" "the pod belongs to no Job, JobSet or PyTorchJob: the annotation addend.io/job must name its job") -}}
{{- $index := "object.metadata.?annotations[?\"batch.kubernetes.io/job-completion-index\"]" -}}
{{- $rules = append $rules (dict
      "expression" (printf "%s.hasValue() || %s.hasValue() || object.metadata.?labels[?\"training.kubeflow.org/replica-index\"].hasValue()" (printf $annotation "node-rank") $index)
      "message" "the pod has no completion index: set completionMode: Indexed in its Job, or the annotation addend.io/node-rank") -}}
{{- $rules = append $rules (dict
      "expression" (printf "%s.hasValue() || object.metadata.?labels[?\"jobset.sigs.k8s.io/job-index\"].hasValue() || !%s.orValue(\"\").matches(\"^[0-9]{1,9}$\") || !%s.orValue(\"\").matches(\"^[1-9][0-9]{0,5}$\") || int(%s.orValue(\"0\")) < int(%s.orValue(\"0\"))"
          (printf $annotation "node-rank") $index (printf $annotation "num-nodes") $index (printf $annotation "num-nodes"))
      "message" "the pod's completion index is not below the annotation addend.io/num-nodes, which must equal the Job's completions") -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* The policies' condition: a pod that has a sidecar from `addendctl inject` or a runtime keeps it. */}}
{{- define "addend.hasNoSidecar" -}}
name: has-no-sidecar-yet
expression: '!has(object.spec.initContainers) || !object.spec.initContainers.exists(c, c.name == "addend-agent")'
{{- end -}}

{{/* The pods that both policies are about. */}}
{{- define "addend.podsToInject" -}}
matchPolicy: Equivalent
namespaceSelector: {{- toYaml .Values.injection.namespaceSelector | nindent 2 }}
objectSelector:
  matchLabels: {addend.io/inject: "true"}
resourceRules:
- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
{{- end -}}
