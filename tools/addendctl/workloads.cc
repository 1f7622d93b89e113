#include "tools/addendctl/workloads.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr char kCompletionIndex[] =
    R"(valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}})";
constexpr char kReplicaIndex[] =
    R"(valueFrom: {fieldRef: {fieldPath: "metadata.labels['training.kubeflow.org/replica-index']"}})";
constexpr char kJobSetIndex[] =
    R"({name: JOBSET_JOB_INDEX, valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/job-index']"}}})";

// Returns the value at `key`; undefined if `node` is no mapping or has no such key.
YAML::Node At(const YAML::Node& node, const char* key) {
  if (!node.IsDefined() || !node.IsMap() || !node[key]) {
    return YAML::Node(YAML::NodeType::Undefined);
  }
  return node[key];
}

std::string TextOf(const YAML::Node& node) { return node ? node.as<std::string>("") : ""; }

// Returns the number at `key`, or `otherwise` if there is no value.
absl::StatusOr<uint32_t> Number(const YAML::Node& parent, const char* key, uint32_t otherwise,
                                const Refuse& refuse) {
  const YAML::Node node = At(parent, key);
  if (!node || node.IsNull()) return otherwise;
  const int64_t number = node.as<int64_t>(-1);
  if (number < 1 || number > 65536) {
    return refuse(node, absl::StrFormat("%s must be a number from 1 to 65536", key));
  }
  return static_cast<uint32_t>(number);
}

absl::StatusOr<YAML::Node> PodTemplate(const YAML::Node& owner, const Refuse& refuse) {
  const YAML::Node pods = At(owner, "template");
  const YAML::Node spec = At(pods, "spec");
  if (!spec || !spec.IsMap()) return refuse(owner, "it has no template.spec, and so no pods");
  return pods;
}

// Returns the nodes of an indexed Job: all its pods, which have to run at the same time.
absl::StatusOr<uint32_t> NodesOfJob(const YAML::Node& spec, const Refuse& refuse) {
  if (TextOf(At(spec, "completionMode")) != "Indexed") {
    return refuse(spec,
                  "the Job is not indexed, so its pods have no rank: set completionMode: Indexed");
  }
  ADDEND_ASSIGN_OR_RETURN(const uint32_t parallelism, Number(spec, "parallelism", 1, refuse));
  ADDEND_ASSIGN_OR_RETURN(const uint32_t completions,
                          Number(spec, "completions", parallelism, refuse));
  if (completions != parallelism) {
    return refuse(spec, absl::StrFormat("parallelism is %d and completions %d, but the nodes of "
                                        "a training job run together: set both to the same number",
                                        parallelism, completions));
  }
  return completions;
}

absl::Status ReadJob(const YAML::Node& document, const Refuse& refuse, Workload* workload) {
  const YAML::Node spec = At(document, "spec");
  ADDEND_ASSIGN_OR_RETURN(const YAML::Node pods, PodTemplate(spec, refuse));
  ADDEND_ASSIGN_OR_RETURN(workload->num_nodes, NodesOfJob(spec, refuse));
  workload->pods.push_back({.pod_template = pods, .node_rank = kCompletionIndex, .variables = {}});
  return absl::OkStatus();
}

absl::StatusOr<YAML::Node> ReplicatedJob(const YAML::Node& document, const std::string& name,
                                         const Refuse& refuse) {
  const YAML::Node jobs = At(At(document, "spec"), "replicatedJobs");
  if (!jobs || !jobs.IsSequence() || jobs.size() == 0) {
    return refuse(document, "the JobSet has no replicatedJobs");
  }
  if (name.empty()) return jobs[0];
  for (const YAML::Node& job : jobs) {
    if (TextOf(At(job, "name")) == name) return job;
  }
  return refuse(jobs,
                absl::StrFormat("no replicated job is called '%s': check --replicated-job", name));
}

absl::Status ReadJobSet(const YAML::Node& document, const std::string& replicated_job,
                        const Refuse& refuse, Workload* workload) {
  ADDEND_ASSIGN_OR_RETURN(const YAML::Node job, ReplicatedJob(document, replicated_job, refuse));
  const YAML::Node spec = At(At(job, "template"), "spec");
  if (!spec || !spec.IsMap()) return refuse(job, "the replicated job has no template.spec");
  ADDEND_ASSIGN_OR_RETURN(const YAML::Node pods, PodTemplate(spec, refuse));
  ADDEND_ASSIGN_OR_RETURN(const uint32_t replicas, Number(job, "replicas", 1, refuse));
  ADDEND_ASSIGN_OR_RETURN(const uint32_t each, NodesOfJob(spec, refuse));
  workload->num_nodes = replicas * each;
  std::vector<std::string> variables;
  if (replicas > 1) {
    // The number of nodes in the earlier replicas; the agent multiplies.
    variables = {
        kJobSetIndex,
        absl::StrFormat(R"({name: ADDEND_NODE_RANK_BASE, value: "$(JOBSET_JOB_INDEX)*%d"})", each)};
  }
  workload->pods.push_back(
      {.pod_template = pods, .node_rank = kCompletionIndex, .variables = variables});
  return absl::OkStatus();
}

absl::Status ReadPyTorchJob(const YAML::Node& document, const Refuse& refuse, Workload* workload) {
  const YAML::Node specs = At(At(document, "spec"), "pytorchReplicaSpecs");
  if (!specs || !specs.IsMap()) return refuse(document, "it has no pytorchReplicaSpecs");
  const YAML::Node master = At(specs, "Master");
  const YAML::Node worker = At(specs, "Worker");
  if (master) {
    ADDEND_ASSIGN_OR_RETURN(const YAML::Node pods, PodTemplate(master, refuse));
    ADDEND_ASSIGN_OR_RETURN(const uint32_t masters, Number(master, "replicas", 1, refuse));
    if (masters != 1) return refuse(master, "a PyTorchJob has one Master");
    workload->num_nodes += 1;
    workload->pods.push_back({.pod_template = pods, .node_rank = R"(value: "0")", .variables = {}});
  }
  if (worker) {
    ADDEND_ASSIGN_OR_RETURN(const YAML::Node pods, PodTemplate(worker, refuse));
    ADDEND_ASSIGN_OR_RETURN(const uint32_t workers, Number(worker, "replicas", 1, refuse));
    workload->num_nodes += workers;
    std::vector<std::string> variables;
    if (master) variables = {R"({name: ADDEND_NODE_RANK_BASE, value: "1"})"};
    workload->pods.push_back(
        {.pod_template = pods, .node_rank = kReplicaIndex, .variables = variables});
  }
  if (workload->pods.empty()) return refuse(specs, "it has neither a Master nor a Worker");
  // "auto" and similar texts mean the GPUs of the machine.
  if (const YAML::Node ranks = At(At(document, "spec"), "nprocPerNode"); ranks) {
    workload->local_size = ranks.as<uint32_t>(0);
  }
  return absl::OkStatus();
}

bool IsGpu(const std::string& resource) {
  return absl::EndsWith(resource, "/gpu") || absl::StartsWith(resource, "nvidia.com/mig-");
}

}  // namespace

bool IsWorkload(const YAML::Node& document) {
  if (!document.IsMap()) return false;
  const std::string kind = TextOf(At(document, "kind"));
  const std::string api = TextOf(At(document, "apiVersion"));
  return (kind == "Job" && absl::StartsWith(api, "batch/")) ||
         (kind == "JobSet" && absl::StartsWith(api, "jobset.x-k8s.io/")) ||
         (kind == "PyTorchJob" && absl::StartsWith(api, "kubeflow.org/"));
}

absl::StatusOr<Workload> ReadWorkload(const YAML::Node& document, const std::string& replicated_job,
                                      const Refuse& refuse) {
  Workload workload{.kind = TextOf(At(document, "kind")), .name = "", .pods = {}};
  workload.name = TextOf(At(At(document, "metadata"), "name"));
  const YAML::Node spec = At(document, "spec");
  if (!spec || !spec.IsMap()) return refuse(document, "it has no spec");
  if (workload.kind == "Job") {
    ADDEND_RETURN_IF_ERROR(ReadJob(document, refuse, &workload));
  } else if (workload.kind == "JobSet") {
    ADDEND_RETURN_IF_ERROR(ReadJobSet(document, replicated_job, refuse, &workload));
  } else {
    ADDEND_RETURN_IF_ERROR(ReadPyTorchJob(document, refuse, &workload));
  }
  return workload;
}

uint32_t GpusOf(const TrainingPods& pods) {
  uint32_t most = 0;
  for (const YAML::Node& container : At(At(pods.pod_template, "spec"), "containers")) {
    uint32_t gpus = 0;
    const YAML::Node limits = At(At(container, "resources"), "limits");
    if (!limits || !limits.IsMap()) continue;
    for (const auto& entry : limits) {
      if (IsGpu(entry.first.Scalar())) gpus += entry.second.as<uint32_t>(0);
    }
    most = std::max(most, gpus);
  }
  return most;
}

}  // namespace addend
