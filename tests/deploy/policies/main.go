// Compiles and evaluates admission policies as Kubernetes' API server does, with its own packages.
//
// Standard input: {"policies": [objects], "pods": [objects], "namespace": name}. Standard output: {"errors": [texts], "admitted":
// [pods, as the MutatingAdmissionPolicies leave them, or null], "refused": [messages of each pod]}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

var (
	errors   = []string{}
	plain    = cel.OptionalVariableDeclarations{HasAuthorizer: true}
	patching = cel.OptionalVariableDeclarations{HasAuthorizer: true, HasPatchTypes: true}
	resource = core.SchemeGroupVersion.WithResource("pods")
	kind     = core.SchemeGroupVersion.WithKind("Pod")
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func note(where string, err error) {
	errors = append(errors, fmt.Sprintf("%s: %v", where, err))
}

// A policy's parts, compiled. The mode for expressions of new objects is the strictest.
type policy struct {
	name       string
	compiler   *cel.CompositedCompiler // of the variables
	conditions cel.ConditionEvaluator
	patchers   []patch.Patcher
	rules      cel.ConditionEvaluator
	messages   []string
}

func compileConditions(name, what string, compiler *cel.CompositedCompiler, expressions []cel.ExpressionAccessor) cel.ConditionEvaluator {
	for i, expression := range expressions {
		if result := compiler.CompileCELExpression(expression, plain, environment.NewExpressions); result.Error != nil {
			note(fmt.Sprintf("%s, %s %d", name, what, i+1), result.Error)
		}
	}
	return compiler.CompileCondition(expressions, plain, environment.NewExpressions)
}

func compile(name string, conditions []admissionregistration.MatchCondition, variables []admissionregistration.Variable) policy {
	environments := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	alone, err := cel.NewCompositedCompiler(environments)
	must(err)
	matchers := []cel.ExpressionAccessor{}
	for i := range conditions {
		matchers = append(matchers, (*matchconditions.MatchCondition)(&conditions[i]))
	}
	made := policy{name: name, conditions: compileConditions(name, "condition", alone, matchers)}
	compiler, err := cel.NewCompositedCompiler(environments)
	must(err)
	made.compiler = compiler
	for _, variable := range variables {
		accessor := &validating.Variable{Name: variable.Name, Expression: variable.Expression}
		if result := compiler.CompileAndStoreVariable(accessor, plain, environment.NewExpressions); result.Error != nil {
			note(name+", variable "+variable.Name, result.Error)
		}
	}
	return made
}

func compileMutating(text []byte) policy {
	var object admissionregistration.MutatingAdmissionPolicy
	must(json.Unmarshal(text, &object))
	made := compile(object.Name, object.Spec.MatchConditions, object.Spec.Variables)
	for i, mutation := range object.Spec.Mutations {
		var evaluator cel.MutatingEvaluator
		if mutation.JSONPatch != nil {
			accessor := &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}
			evaluator = made.compiler.CompileMutatingEvaluator(accessor, patching, environment.NewExpressions)
			made.patchers = append(made.patchers, patch.NewJSONPatcher(evaluator))
		} else {
			accessor := &patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}
			evaluator = made.compiler.CompileMutatingEvaluator(accessor, patching, environment.NewExpressions)
			made.patchers = append(made.patchers, patch.NewApplyConfigurationPatcher(evaluator))
		}
		for _, err := range evaluator.CompilationErrors() {
			note(fmt.Sprintf("%s, mutation %d", object.Name, i+1), err)
		}
	}
	return made
}

func compileValidating(text []byte) policy {
	var object admissionregistration.ValidatingAdmissionPolicy
	must(json.Unmarshal(text, &object))
	made := compile(object.Name, object.Spec.MatchConditions, object.Spec.Variables)
	rules := []cel.ExpressionAccessor{}
	for _, validation := range object.Spec.Validations {
		rules = append(rules, &validating.ValidationCondition{Expression: validation.Expression, Message: validation.Message})
		made.messages = append(made.messages, validation.Message)
	}
	made.rules = compileConditions(object.Name, "validation", made.compiler, rules)
	return made
}

func attributes(pod *core.Pod, namespace string) *admission.VersionedAttributes {
	record := admission.NewAttributesRecord(pod, nil, kind, namespace, pod.Name, resource, "", admission.Create, &meta.CreateOptions{}, false, nil)
	return &admission.VersionedAttributes{Attributes: record, VersionedObject: pod, VersionedKind: kind}
}

// Those of the expressions that do not hold.
func unmet(evaluator cel.ConditionEvaluator, where string, pod *core.Pod, namespace string) []int {
	versioned := attributes(pod, namespace)
	request := cel.CreateAdmissionRequest(versioned.Attributes, meta.GroupVersionResource(resource), meta.GroupVersionKind(kind))
	bindings := cel.OptionalVariableBindings{}
	results, _, err := evaluator.ForInput(context.Background(), versioned, request, bindings, nil, math.MaxInt64)
	if err != nil {
		note(where, err)
		return nil
	}
	found := []int{}
	for i, result := range results {
		if result.Error != nil {
			note(fmt.Sprintf("%s %d, pod %s", where, i+1, pod.Name), result.Error)
		} else if result.EvalResult.Value() != true {
			found = append(found, i)
		}
	}
	return found
}

func admit(one policy, pod *core.Pod, namespace string, types runtimeTypes) *core.Pod {
	for _, patcher := range one.patchers {
		request := patch.Request{MatchedResource: resource, VersionedAttributes: attributes(pod, namespace), TypeConverter: types.converter,
			ObjectInterfaces: types.interfaces}
		patched, err := patcher.Patch(one.compiler.CreateContext(context.Background()), request, math.MaxInt64)
		if err != nil {
			note(one.name+", pod "+pod.Name, err)
			return nil
		}
		pod = asPod(patched)
	}
	return pod
}

func asPod(object runtime.Object) *core.Pod {
	text, err := json.Marshal(object)
	must(err)
	var pod core.Pod
	must(json.Unmarshal(text, &pod))
	pod.SetGroupVersionKind(kind)
	return &pod
}

type runtimeTypes struct {
	converter  managedfields.TypeConverter
	interfaces admission.ObjectInterfaces
}

func main() {
	var given struct {
		Policies  []json.RawMessage
		Pods      []core.Pod
		Namespace string
	}
	must(json.NewDecoder(os.Stdin).Decode(&given))
	policies := []policy{}
	for _, text := range given.Policies {
		var of meta.TypeMeta
		must(json.Unmarshal(text, &of))
		if of.Kind == "MutatingAdmissionPolicy" {
			policies = append(policies, compileMutating(text))
		} else {
			policies = append(policies, compileValidating(text))
		}
	}
	types := runtimeTypes{applyconfigurations.NewTypeConverter(scheme.Scheme), admission.NewObjectInterfacesFromScheme(scheme.Scheme)}
	admitted, refused := []*core.Pod{}, [][]string{}
	for i := range given.Pods {
		pod, messages := asPod(&given.Pods[i]), []string{}
		for _, one := range policies {
			if pod == nil || len(unmet(one.conditions, one.name+", condition", pod, given.Namespace)) > 0 {
				continue
			}
			if one.rules == nil {
				pod = admit(one, pod, given.Namespace, types)
				continue
			}
			for _, rule := range unmet(one.rules, one.name+", validation", pod, given.Namespace) {
				messages = append(messages, one.messages[rule])
			}
		}
		admitted, refused = append(admitted, pod), append(refused, messages)
	}
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{"errors": errors, "admitted": admitted, "refused": refused}))
}
