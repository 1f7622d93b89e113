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

constexpr char kWorkerIndex[] =
    R"(valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}})";
constexpr char kGroupIndex[] =
    R"({name: LWS_GROUP_INDEX, valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"}}})";

constexpr char kMark[] = "addend.io/inject";

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

// The ranks are started in the workers, by mpirun in the launcher.
absl::Status ReadMpiJob(const YAML::Node& document, const Refuse& refuse, Workload* workload) {
  const YAML::Node spec = At(document, "spec");
  const YAML::Node worker = At(At(spec, "mpiReplicaSpecs"), "Worker");
  if (!worker || !worker.IsMap()) return refuse(spec, "it has no mpiReplicaSpecs.Worker");
  if (At(spec, "runLauncherAsWorker") && At(spec, "runLauncherAsWorker").as<bool>(false)) {
    return refuse(At(spec, "runLauncherAsWorker"),
                  "a launcher that is a worker has no rank that an agent could know: set "
                  "runLauncherAsWorker: false");
  }
  ADDEND_ASSIGN_OR_RETURN(const YAML::Node pods, PodTemplate(worker, refuse));
  ADDEND_ASSIGN_OR_RETURN(workload->num_nodes, Number(worker, "replicas", 1, refuse));
  if (At(spec, "slotsPerWorker")) {
    ADDEND_ASSIGN_OR_RETURN(workload->local_size, Number(spec, "slotsPerWorker", 1, refuse));
  }
  workload->pods.push_back({.pod_template = pods, .node_rank = kReplicaIndex, .variables = {}});
  return absl::OkStatus();
}

// Every group is a job of its own: its leader is node 0.
absl::Status ReadLeaderWorkerSet(const YAML::Node& document, const Refuse& refuse,
                                 Workload* workload) {
  const YAML::Node spec = At(document, "spec");
  const YAML::Node group = At(spec, "leaderWorkerTemplate");
  if (!group || !group.IsMap()) return refuse(spec, "it has no leaderWorkerTemplate");
  ADDEND_ASSIGN_OR_RETURN(workload->num_nodes, Number(group, "size", 1, refuse));
  ADDEND_ASSIGN_OR_RETURN(const uint32_t groups, Number(spec, "replicas", 1, refuse));
  std::vector<std::string> variables;
  if (groups > 1) {
    workload->job_suffix = "-$(LWS_GROUP_INDEX)";
    variables = {kGroupIndex};
  }
  for (const char* part : {"leaderTemplate", "workerTemplate"}) {
    const YAML::Node pods = At(group, part);
    if (!pods || pods.IsNull()) continue;
    if (!At(pods, "spec") || !At(pods, "spec").IsMap()) {
      return refuse(pods, absl::StrFormat("the %s has no spec, and so no pods", part));
    }
    workload->pods.push_back(
        {.pod_template = pods, .node_rank = kWorkerIndex, .variables = variables});
  }
  if (!At(group, "workerTemplate")) return refuse(group, "it has no workerTemplate");
  return absl::OkStatus();
}

// A single node, or the one that its annotations say.
absl::Status ReadPod(const YAML::Node& document, const Refuse& refuse, Workload* workload) {
  const YAML::Node annotations = At(At(document, "metadata"), "annotations");
  ADDEND_ASSIGN_OR_RETURN(workload->num_nodes,
                          Number(annotations, "addend.io/num-nodes", 1, refuse));
  const YAML::Node rank = At(annotations, "addend.io/node-rank");
  if (!rank && workload->num_nodes > 1) {
    return refuse(annotations,
                  "a Pod of a job of several nodes needs its rank: annotation addend.io/node-rank");
  }
  const int64_t number = rank ? rank.as<int64_t>(-1) : 0;
  if (number < 0 || number >= workload->num_nodes) {
    return refuse(rank, absl::StrFormat("addend.io/node-rank must be a number from 0 to %d",
                                        workload->num_nodes - 1));
  }
  if (At(annotations, "addend.io/local-size")) {
    ADDEND_ASSIGN_OR_RETURN(workload->local_size,
                            Number(annotations, "addend.io/local-size", 1, refuse));
  }
  if (const YAML::Node job = At(annotations, "addend.io/job"); job) workload->name = TextOf(job);
  workload->pods.push_back({.pod_template = document,
                            .node_rank = absl::StrFormat(R"(value: "%d")", number),
                            .variables = {}});
  return absl::OkStatus();
}

// Objects whose pods are made elsewhere, or have no rank. Empty: another object.
std::string WhyNot(const std::string& kind, const std::string& api) {
  if (kind == "TrainJob" && absl::StartsWith(api, "trainer.kubeflow.org/")) {
    return "a TrainJob has no pods of its own: name the chart's runtime torch-addend in "
           "spec.runtimeRef (docs/kubernetes.md, Kubeflow Trainer)";
  }
  if ((kind == "RayJob" || kind == "RayCluster") && absl::StartsWith(api, "ray.io/")) {
    return "the pods of a Ray cluster have no rank before Ray starts a job on them: use a Job, a "
           "JobSet or a PyTorchJob for the training";
  }
  return "";
}

bool IsGpu(const std::string& resource) {
  return absl::EndsWith(resource, "/gpu") || absl::StartsWith(resource, "nvidia.com/mig-");
}

}  // namespace

bool IsMarked(const YAML::Node& document) {
  const YAML::Node metadata = At(document, "metadata");
  return TextOf(At(At(metadata, "labels"), kMark)) == "true" ||
         TextOf(At(At(metadata, "annotations"), kMark)) == "true";
}

bool IsWorkload(const YAML::Node& document) {
  if (!document.IsMap()) return false;
  const std::string kind = TextOf(At(document, "kind"));
  const std::string api = TextOf(At(document, "apiVersion"));
  return (kind == "Job" && absl::StartsWith(api, "batch/")) ||
         (kind == "JobSet" && absl::StartsWith(api, "jobset.x-k8s.io/")) ||
         (kind == "PyTorchJob" && absl::StartsWith(api, "kubeflow.org/")) ||
         (kind == "MPIJob" && absl::StartsWith(api, "kubeflow.org/v2")) ||
         (kind == "LeaderWorkerSet" && absl::StartsWith(api, "leaderworkerset.x-k8s.io/")) ||
         (kind == "Pod" && api == "v1" && IsMarked(document)) || !WhyNot(kind, api).empty();
}

absl::StatusOr<Workload> ReadWorkload(const YAML::Node& document, const std::string& replicated_job,
                                      const Refuse& refuse) {
  Workload workload{.kind = TextOf(At(document, "kind")), .name = "", .job_suffix = "", .pods = {}};
  workload.name = TextOf(At(At(document, "metadata"), "name"));
  const YAML::Node spec = At(document, "spec");
  if (!spec || !spec.IsMap()) return refuse(document, "it has no spec");
  const std::string why = WhyNot(workload.kind, TextOf(At(document, "apiVersion")));
  if (!why.empty()) return refuse(document, why);
  if (workload.kind == "Job") {
    ADDEND_RETURN_IF_ERROR(ReadJob(document, refuse, &workload));
  } else if (workload.kind == "JobSet") {
    ADDEND_RETURN_IF_ERROR(ReadJobSet(document, replicated_job, refuse, &workload));
  } else if (workload.kind == "MPIJob") {
    ADDEND_RETURN_IF_ERROR(ReadMpiJob(document, refuse, &workload));
  } else if (workload.kind == "LeaderWorkerSet") {
    ADDEND_RETURN_IF_ERROR(ReadLeaderWorkerSet(document, refuse, &workload));
  } else if (workload.kind == "Pod") {
    ADDEND_RETURN_IF_ERROR(ReadPod(document, refuse, &workload));
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
