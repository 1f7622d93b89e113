#include "tools/addendctl/pod_injection.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "tools/addendctl/bounded_json.h"

namespace addend {
namespace {

using nlohmann::json;

constexpr char kAgentContainer[] = "addend-agent";
constexpr char kInjectLabel[] = "addend.io/inject";
constexpr char kIndexAnnotation[] = "batch.kubernetes.io/job-completion-index";
constexpr char kReplicaIndexLabel[] = "training.kubeflow.org/replica-index";
constexpr char kReplicaTypeLabel[] = "training.kubeflow.org/replica-type";
constexpr char kJobIndexLabel[] = "jobset.sigs.k8s.io/job-index";
constexpr char kReplicasLabel[] = "jobset.sigs.k8s.io/replicatedjob-replicas";
// The prefix of a value in the sidecar of the settings that each pod has itself.
constexpr char kOfPod[] = "pod:";
constexpr int kSocketGroup = 65532;  // of the agent's image; its group owns the socket
constexpr int64_t kMemoryOfProcess = 128 << 20;

using Marks = std::map<std::string, std::string>;

// ---- the form of a pod ----

absl::Status NoPod(const std::string& reason) {
  return absl::InvalidArgumentError(absl::StrFormat("the object is no Pod: %s", reason));
}

bool IsListOfObjects(const json& value) {
  return value.is_null() ||
         (value.is_array() &&
          std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_object(); }));
}

absl::Status CheckLists(const json& parent, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!IsListOfObjects(JsonAt(parent, key))) {
      return NoPod(absl::StrFormat("%s must be a list of objects", key));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckForm(const json& pod) {
  const json& spec = JsonAt(pod, "spec");
  if (!spec.is_object()) return NoPod("it has no spec");
  ADDEND_RETURN_IF_ERROR(CheckLists(
      spec, {"containers", "initContainers", "volumes", "imagePullSecrets", "resourceClaims"}));
  for (const json& container : JsonAt(spec, "containers")) {
    ADDEND_RETURN_IF_ERROR(CheckLists(container, {"env", "volumeMounts"}));
  }
  const json& context = JsonAt(spec, "securityContext");
  if (!context.is_null() && !context.is_object()) return NoPod("securityContext is no object");
  return absl::OkStatus();
}

absl::StatusOr<Marks> MarksOf(const json& pod, const char* key) {
  const json& values = JsonAt(JsonAt(pod, "metadata"), key);
  Marks marks;
  if (values.is_null()) return marks;
  if (!values.is_object()) return NoPod(absl::StrFormat("metadata.%s is no object", key));
  for (const auto& [name, value] : values.items()) {
    if (!value.is_string())
      return NoPod(absl::StrFormat("metadata.%s has a value that is no text", key));
    marks[name] = value.get<std::string>();
  }
  return marks;
}

// ---- what differs by pod ----

absl::Status NoSidecar(const std::string& reason) { return absl::FailedPreconditionError(reason); }

// A number as Go and CEL read it, without spaces.
absl::StatusOr<int64_t> NumberOfMark(const Marks& marks, const char* kind, const char* name) {
  const auto found = marks.find(name);
  if (found == marks.end()) return NoSidecar(absl::StrFormat("the pod has no %s %s", kind, name));
  int64_t number = 0;
  const std::string& text = found->second;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isdigit(c) || c == '-' || c == '+';
  });
  if (!digits || !absl::SimpleAtoi(text, &number)) {
    return NoSidecar(absl::StrFormat("the pod's %s %s must be a number", kind, name));
  }
  return number;
}

absl::StatusOr<std::string> TextOfMark(const Marks& marks, const char* kind, const char* name) {
  const auto found = marks.find(name);
  if (found == marks.end()) return NoSidecar(absl::StrFormat("the pod has no %s %s", kind, name));
  return found->second;
}

std::string TextOfMarkOr(const Marks& marks, const char* name, const std::string& otherwise) {
  const auto found = marks.find(name);
  return found == marks.end() ? otherwise : found->second;
}

absl::StatusOr<std::string> JobOf(const InjectionSettings& settings, const PodMarks& pod) {
  const auto said = pod.annotations.find("addend.io/job");
  if (said != pod.annotations.end()) return said->second;
  for (const std::string& label : settings.job_labels) {
    const auto owner = pod.labels.find(label);
    if (owner != pod.labels.end()) return owner->second;
  }
  return NoSidecar("the pod belongs to no job");
}

// The Jobs of a JobSet follow each other.
absl::StatusOr<int64_t> RankInJobSet(const PodMarks& pod) {
  ADDEND_ASSIGN_OR_RETURN(const int64_t job, NumberOfMark(pod.labels, "label", kJobIndexLabel));
  ADDEND_ASSIGN_OR_RETURN(const int64_t replicas,
                          NumberOfMark(pod.labels, "label", kReplicasLabel));
  ADDEND_ASSIGN_OR_RETURN(const int64_t nodes,
                          NumberOfMark(pod.annotations, "annotation", "addend.io/num-nodes"));
  ADDEND_ASSIGN_OR_RETURN(const int64_t index,
                          NumberOfMark(pod.annotations, "annotation", kIndexAnnotation));
  int64_t rank = 0;
  if (replicas == 0 || __builtin_mul_overflow(job, nodes / replicas, &rank) ||
      __builtin_add_overflow(rank, index, &rank)) {
    return NoSidecar("the pod's labels of its JobSet give no rank");
  }
  return rank;
}

absl::StatusOr<std::string> NodeRankOf(const PodMarks& pod) {
  const auto said = pod.annotations.find("addend.io/node-rank");
  if (said != pod.annotations.end()) return said->second;
  if (pod.labels.count(kReplicaIndexLabel) > 0) {
    // A PyTorchJob's master is node 0, its workers follow.
    ADDEND_ASSIGN_OR_RETURN(int64_t rank, NumberOfMark(pod.labels, "label", kReplicaIndexLabel));
    ADDEND_ASSIGN_OR_RETURN(const std::string type,
                            TextOfMark(pod.labels, "label", kReplicaTypeLabel));
    if (__builtin_add_overflow(rank, type == "worker" ? 1 : 0, &rank)) {
      return NoSidecar("the pod's labels of its PyTorchJob give no rank");
    }
    return std::to_string(rank);
  }
  if (pod.labels.count(kJobIndexLabel) > 0) {
    ADDEND_ASSIGN_OR_RETURN(const int64_t rank, RankInJobSet(pod));
    return std::to_string(rank);
  }
  return TextOfMark(pod.annotations, "annotation", kIndexAnnotation);
}

// 3 M with a single rank per node, (L + 3) M with L ranks, and the process.
absl::StatusOr<std::string> MemoryOf(const InjectionSettings& settings, const PodMarks& pod) {
  const auto said = pod.annotations.find("addend.io/memory");
  if (said != pod.annotations.end()) return said->second;
  const bool model = pod.annotations.count("addend.io/model-bytes") > 0;
  if (!model && !settings.memory.empty()) return settings.memory;
  int64_t bytes = static_cast<int64_t>(settings.model_bytes);
  if (model) {
    ADDEND_ASSIGN_OR_RETURN(bytes,
                            NumberOfMark(pod.annotations, "annotation", "addend.io/model-bytes"));
  }
  int64_t ranks = 1;
  if (pod.annotations.count("addend.io/local-size") > 0) {
    ADDEND_ASSIGN_OR_RETURN(ranks,
                            NumberOfMark(pod.annotations, "annotation", "addend.io/local-size"));
  }
  int64_t times = 3;
  if ((ranks > 1 && __builtin_add_overflow(ranks, 3, &times)) ||
      __builtin_mul_overflow(times, bytes, &bytes) ||
      __builtin_add_overflow(bytes, kMemoryOfProcess, &bytes)) {
    return NoSidecar("the pod's model and ranks need more memory than there is");
  }
  return std::to_string(bytes);
}

// The values behind the names that the sidecar of the settings has after "pod:".
absl::StatusOr<Marks> ValuesOf(const InjectionSettings& settings, const std::string& pod_namespace,
                               const PodMarks& pod) {
  Marks values;
  ADDEND_ASSIGN_OR_RETURN(const std::string job, JobOf(settings, pod));
  values["job"] = pod_namespace + "." + job;
  ADDEND_ASSIGN_OR_RETURN(values["numNodes"],
                          TextOfMark(pod.annotations, "annotation", "addend.io/num-nodes"));
  values["localSize"] = TextOfMarkOr(pod.annotations, "addend.io/local-size", "1");
  ADDEND_ASSIGN_OR_RETURN(values["nodeRank"], NodeRankOf(pod));
  ADDEND_ASSIGN_OR_RETURN(values["memory"], MemoryOf(settings, pod));
  values["cpu"] = TextOfMarkOr(pod.annotations, "addend.io/cpu", settings.cpu);
  return values;
}

// ---- the changed pod ----

// Replaces each text that is "pod:" and a name.
void FillIn(const Marks& values, json* part) {
  if (part->is_structured()) {
    for (json& inner : *part) FillIn(values, &inner);
  } else if (part->is_string()) {
    const std::string& text = part->get_ref<const std::string&>();
    if (!absl::StartsWith(text, kOfPod)) return;
    const auto found = values.find(text.substr(sizeof(kOfPod) - 1));
    if (found != values.end()) *part = found->second;
  }
}

// The list at a key, made where it is missing.
json& ListAt(json& parent, const char* key) {
  json& list = parent[key];
  if (list.is_null()) list = json::array();
  return list;
}

// Joins an item with the item of a list that has the same value at `key`, or appends it, as the API
// server merges lists.
void MergeItem(const json& item, const char* key, json* list) {
  const auto present = std::find_if(list->begin(), list->end(), [&](const json& one) {
    return JsonAt(one, key) == item.at(key);
  });
  if (present == list->end()) {
    list->push_back(item);
  } else {
    present->merge_patch(item);
  }
}

json WithSidecar(const InjectionSettings& settings, const PodMarks& marks, const Marks& values,
                 json pod) {
  json sidecar = settings.sidecar;
  FillIn(values, &sidecar);
  const auto limit = marks.annotations.find("addend.io/cpu-limit");
  if (limit != marks.annotations.end()) sidecar["resources"]["limits"]["cpu"] = limit->second;
  json& spec = pod["spec"];
  ListAt(spec, "initContainers").push_back(std::move(sidecar));
  json& context = spec["securityContext"];
  if (JsonAt(context, "fsGroup").is_null()) context["fsGroup"] = kSocketGroup;
  for (json& container : ListAt(spec, "containers")) {
    MergeItem({{"name", "ADDEND_SOCKET"}, {"value", "/run/addend/agent.sock"}}, "name",
              &ListAt(container, "env"));
    MergeItem({{"mountPath", "/run/addend"}, {"name", "addend-run"}}, "mountPath",
              &ListAt(container, "volumeMounts"));
  }
  const auto merge = [&spec](const char* key, const json& items) {
    if (items.empty()) return;
    json& list = ListAt(spec, key);
    for (const json& item : items) MergeItem(item, "name", &list);
  };
  merge("imagePullSecrets", settings.pull_secrets);
  merge("resourceClaims", settings.claims);
  json& volumes = ListAt(spec, "volumes");
  for (const json& volume : settings.volumes) MergeItem(volume, "name", &volumes);
  return pod;
}

bool HasSidecar(const json& pod) {
  const json& containers = JsonAt(JsonAt(pod, "spec"), "initContainers");
  return std::any_of(containers.begin(), containers.end(),
                     [](const json& one) { return JsonAt(one, "name") == kAgentContainer; });
}

}  // namespace

absl::StatusOr<Injection> InjectPod(const InjectionSettings& settings,
                                    const std::string& pod_namespace, const json& pod) {
  ADDEND_RETURN_IF_ERROR(CheckForm(pod));
  PodMarks marks;
  ADDEND_ASSIGN_OR_RETURN(marks.annotations, MarksOf(pod, "annotations"));
  ADDEND_ASSIGN_OR_RETURN(marks.labels, MarksOf(pod, "labels"));
  Injection injection;
  if (TextOfMarkOr(marks.labels, kInjectLabel, "") != "true" || HasSidecar(pod)) return injection;
  for (const PodRule& rule : settings.rules) {
    if (!rule.IsMet(marks)) injection.refusals.push_back(rule.message());
  }
  if (!injection.refusals.empty()) return injection;
  const absl::StatusOr<Marks> values = ValuesOf(settings, pod_namespace, marks);
  if (!values.ok()) {
    injection.refusals.push_back(Message(values.status()));
    return injection;
  }
  injection.pod = WithSidecar(settings, marks, *values, pod);
  return injection;
}

}  // namespace addend
