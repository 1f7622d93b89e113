// Rewrites only the documents that are training jobs; all other documents of the file are printed
// unchanged, comments included.
#include "tools/addendctl/inject_command.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/base/version.h"
#include "lib/rpc/local_address.h"
#include "tools/addendctl/file_text.h"
#include "tools/addendctl/memory_need.h"
#include "tools/addendctl/sidecar.h"
#include "tools/addendctl/workloads.h"
#include "tools/addendctl/yaml_text.h"

namespace addend {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kMostFileBytes = 256 * kMiB;
constexpr uint64_t kMemoryOfUnknownModel = 1024 * kMiB;
constexpr char kRepository[] = "ghcr.io/addend/addend-agent";
constexpr char kSidecarName[] = "addend-agent";
constexpr char kSchedulerOfChart[] = "addend-scheduler.addend:7070";
// Jobs of a name in two namespaces are two jobs.
constexpr char kNamespace[] =
    "{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}";
constexpr int kImageUser = 65532;  // of the agent's image; its group owns the socket

// Checks that a text can stand between the quotes of the sidecar's YAML.
absl::Status CheckText(const char* flag, const std::string& text) {
  const auto bad = [](unsigned char c) { return c < ' ' || c == '"' || c == '\\' || c == 0x7F; };
  if (!text.empty() && std::none_of(text.begin(), text.end(), bad)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--%s=%s must not be empty nor have quotes, backslashes or control characters", flag, text));
}

// A Secret that the sidecar mounts, and the variables that name its files. As the chart has them.
struct Credentials {
  std::string secret;
  std::string volume;
  std::string path;
  std::vector<std::pair<std::string, std::string>> variables;
};

struct SidecarValues {
  std::string image, scheduler, job, cpu, cpu_limit, memory, data_interface;
  bool insecure;
  std::vector<Credentials> credentials;
  uint32_t num_nodes, local_size;
};

std::vector<Credentials> CredentialsOf(const InjectQuestion& question) {
  std::vector<Credentials> all;
  if (!question.tls_secret.empty()) {
    all.push_back({question.tls_secret,
                   "addend-tls",
                   "/etc/addend/tls",
                   {{"ADDEND_TLS_CERT", "/etc/addend/tls/tls.crt"},
                    {"ADDEND_TLS_KEY", "/etc/addend/tls/tls.key"},
                    {"ADDEND_TLS_CA", "/etc/addend/tls/ca.crt"},
                    {"ADDEND_TLS_SERVER_NAME", question.tls_server_name}}});
  }
  if (!question.job_secret.empty()) {
    all.push_back({question.job_secret,
                   "addend-secret",
                   "/etc/addend/secret",
                   {{"ADDEND_JOB_SECRET_FILE", "/etc/addend/secret/secret"}}});
  }
  return all;
}

// Ignores comments, which may mention placeholders.
bool HasPlaceholder(const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "#") && absl::StrContains(line, "{{")) return true;
  }
  return false;
}

YAML::Node Named(const std::string& name, const char* key, const std::string& value) {
  YAML::Node node;
  node["name"] = name;
  node[key] = value;
  return node;
}

absl::StatusOr<YAML::Node> Sidecar(const SidecarValues& values, const TrainingPods& pods) {
  const std::string text =
      absl::StrReplaceAll(kSidecarYaml, {{"{{ .image }}", values.image},
                                         {"{{ .pullPolicy }}", "IfNotPresent"},
                                         {"{{ .scheduler }}", values.scheduler},
                                         {"{{ .job }}", "$(POD_NAMESPACE)." + values.job},
                                         {"{{ .insecure }}", values.insecure ? "true" : "false"},
                                         {"{{ .numNodes }}", std::to_string(values.num_nodes)},
                                         {"{{ .localSize }}", std::to_string(values.local_size)},
                                         {"{{ .nodeRank }}", pods.node_rank},
                                         {"{{ .cpu }}", values.cpu},
                                         {"{{ .memory }}", values.memory}});
  if (HasPlaceholder(text)) {
    return absl::InternalError("sidecar.yaml has a placeholder that addendctl does not know");
  }
  YAML::Node sidecar = YAML::Load(text);
  if (!values.cpu_limit.empty()) {
    sidecar["resources"]["limits"]["cpu"] = YAML::Load('"' + values.cpu_limit + '"');
  }
  // A variable can only refer to earlier variables.
  YAML::Node variables(YAML::NodeType::Sequence);
  variables.push_back(YAML::Load(kNamespace));
  for (const std::string& variable : pods.variables) variables.push_back(YAML::Load(variable));
  for (const YAML::Node& variable : sidecar["env"]) variables.push_back(variable);
  if (!values.data_interface.empty()) {
    variables.push_back(Named("ADDEND_DATA_INTERFACE", "value", values.data_interface));
  }
  for (const Credentials& one : values.credentials) {
    for (const auto& [name, value] : one.variables) {
      variables.push_back(Named(name, "value", value));
    }
    YAML::Node mount = Named(one.volume, "mountPath", one.path);
    mount["readOnly"] = YAML::Load("true");
    sidecar["volumeMounts"].push_back(mount);
  }
  sidecar["env"] = variables;
  return sidecar;
}

bool HasNamed(const YAML::Node& list, const std::string& name) {
  if (!list.IsDefined() || !list.IsSequence()) return false;
  return std::any_of(list.begin(), list.end(), [&name](const YAML::Node& item) {
    return item.IsMap() && item["name"] && item["name"].as<std::string>("") == name;
  });
}

void Append(YAML::Node parent, const char* key, const YAML::Node& item) {
  if (!parent[key] || parent[key].IsNull()) parent[key] = YAML::Node(YAML::NodeType::Sequence);
  parent[key].push_back(item);
}

absl::Status CheckPod(const YAML::Node& spec, const Refuse& refuse) {
  const YAML::Node containers = spec["containers"];
  if (!containers || !containers.IsSequence() || containers.size() == 0) {
    return refuse(spec, "the pod has no containers");
  }
  if (HasNamed(spec["initContainers"], kSidecarName) || HasNamed(containers, kSidecarName) ||
      HasNamed(spec["volumes"], "addend-run")) {
    return refuse(spec, "the pod has the agent already: inject the original file");
  }
  for (const YAML::Node& container : containers) {
    if (!container.IsMap()) return refuse(container, "a container must be a mapping");
    if (HasNamed(container["env"], "ADDEND_SOCKET")) {
      return refuse(container,
                    "the container sets ADDEND_SOCKET itself: leave that to addendctl inject");
    }
  }
  return absl::OkStatus();
}

// Sets fsGroup, so that the users of the agent's image and of the trainers share a group for the
// socket.
void LetGroupUseSocket(YAML::Node spec) {
  YAML::Node context = spec["securityContext"];
  if (!context || !context.IsMap()) {
    spec["securityContext"] = YAML::Load(absl::StrFormat("{fsGroup: %d}", kImageUser));
  } else if (!context["fsGroup"]) {
    context["fsGroup"] = YAML::Load(std::to_string(kImageUser));
  }
}

// A map's key is a map, made where it is missing.
YAML::Node MapAt(YAML::Node parent, const char* key) {
  if (!parent[key] || parent[key].IsNull()) parent[key] = YAML::Node(YAML::NodeType::Map);
  return parent[key];
}

void Extend(YAML::Node pod_template, const YAML::Node& sidecar, const std::string& pull_secret,
            const std::vector<Credentials>& credentials) {
  // By this label the chart's monitors find sidecars; its admission policy leaves the pods alone.
  MapAt(MapAt(pod_template, "metadata"), "labels")["addend.io/inject"] = YAML::Load(R"("true")");
  YAML::Node spec = pod_template["spec"];
  Append(spec, "initContainers", sidecar);
  for (YAML::Node container : spec["containers"]) {
    Append(container, "env", YAML::Load("{name: ADDEND_SOCKET, value: /run/addend/agent.sock}"));
    Append(container, "volumeMounts", YAML::Load("{name: addend-run, mountPath: /run/addend}"));
  }
  Append(spec, "volumes", YAML::Load("{name: addend-run, emptyDir: {}}"));
  for (const Credentials& one : credentials) {
    YAML::Node volume;
    volume["name"] = one.volume;
    volume["secret"]["secretName"] = one.secret;
    volume["secret"]["defaultMode"] = YAML::Load("0440");
    Append(spec, "volumes", volume);
  }
  if (!pull_secret.empty() && !HasNamed(spec["imagePullSecrets"], pull_secret)) {
    YAML::Node secret;
    secret["name"] = pull_secret;
    Append(spec, "imagePullSecrets", secret);
  }
  LetGroupUseSocket(spec);
}

uint32_t LocalSize(const InjectQuestion& question, const Workload& workload) {
  if (question.local_size != 0) return question.local_size;
  if (workload.local_size != 0) return workload.local_size;
  uint32_t gpus = 0;
  for (const TrainingPods& pods : workload.pods) gpus = std::max(gpus, GpusOf(pods));
  return std::max(gpus, 1u);
}

// Changes `document` in place.
absl::Status InjectWorkload(const InjectQuestion& question, const Workload& workload,
                            const Refuse& refuse, const YAML::Node& document,
                            std::vector<std::string>* notes) {
  const std::string job = question.job.empty() ? workload.name : question.job;
  if (job.empty()) {
    return refuse(document,
                  "it has no metadata.name, so its Addend job needs one: give --job=NAME");
  }
  const uint32_t local_size = LocalSize(question, workload);
  SidecarValues values{.image = question.image,
                       .scheduler = question.scheduler,
                       .job = job + workload.job_suffix,
                       .cpu = question.cpu,
                       .cpu_limit = question.cpu_limit,
                       .memory = question.memory,
                       .data_interface = question.data_interface,
                       .insecure = question.tls_secret.empty(),
                       .credentials = CredentialsOf(question),
                       .num_nodes = workload.num_nodes,
                       .local_size = local_size};
  if (values.memory.empty()) {
    const uint64_t bytes = question.model_bytes == 0
                               ? kMemoryOfUnknownModel
                               : AgentMemoryBytes(question.model_bytes, local_size);
    values.memory = absl::StrFormat("%dMi", bytes / kMiB);
  }
  if (values.image.empty()) values.image = absl::StrFormat("%s:%s", kRepository, Version());
  ADDEND_RETURN_IF_ERROR(CheckText("image", values.image));
  ADDEND_RETURN_IF_ERROR(CheckText("job", job));
  ADDEND_RETURN_IF_ERROR(CheckText("agent-cpu", values.cpu));
  ADDEND_RETURN_IF_ERROR(CheckText("agent-memory", values.memory));
  if (!values.cpu_limit.empty()) {
    ADDEND_RETURN_IF_ERROR(CheckText("agent-cpu-limit", values.cpu_limit));
  }
  if (!values.data_interface.empty()) {
    ADDEND_RETURN_IF_ERROR(CheckText("agent-data-interface", values.data_interface));
  }
  for (const TrainingPods& pods : workload.pods) {
    ADDEND_RETURN_IF_ERROR(CheckPod(pods.pod_template["spec"], refuse));
    ADDEND_ASSIGN_OR_RETURN(const YAML::Node sidecar, Sidecar(values, pods));
    Extend(pods.pod_template, sidecar, question.pull_secret, values.credentials);
  }
  notes->push_back(absl::StrFormat("%s %s becomes job NAMESPACE.%s: %d node%s with %d rank%s each",
                                   workload.kind, workload.name, values.job, workload.num_nodes,
                                   workload.num_nodes == 1 ? "" : "s", local_size,
                                   local_size == 1 ? "" : "s"));
  if (question.model_bytes == 0 && question.memory.empty()) {
    notes->push_back(
        absl::StrFormat("the agent of %s may use 1Gi of memory; give --model-bytes, the size of "
                        "all gradients, for what it needs",
                        workload.name));
  }
  return absl::OkStatus();
}

// Returns a document of the file: its original text, or the changed document.
absl::StatusOr<std::string> InjectDocument(const InjectQuestion& question,
                                           const YamlDocument& document, size_t* workloads,
                                           std::vector<std::string>* notes) {
  const auto place = [&](int line) { return absl::StrFormat("%s:%d", question.file, line); };
  const Refuse refuse = [&](const YAML::Node& node, const std::string& why) {
    const int line = std::max(node.IsDefined() ? node.Mark().line : 0, 0);
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", place(document.line + line), why));
  };
  try {
    const YAML::Node node = YAML::Load(document.text);
    if (node.IsNull()) return document.text;  // only comments
    if (!IsWorkload(node)) {
      const std::string kind =
          node.IsMap() && node["kind"] ? node["kind"].as<std::string>("?") : "what is no object";
      notes->push_back(absl::StrFormat("%s: %s is printed as it is", place(document.line), kind));
      return document.text;
    }
    ADDEND_ASSIGN_OR_RETURN(const Workload workload,
                            ReadWorkload(node, question.replicated_job, refuse));
    ADDEND_RETURN_IF_ERROR(InjectWorkload(question, workload, refuse, node, notes));
    ++*workloads;
    return WriteYaml(node);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: this is not YAML that can be read: %s",
                        place(document.line + std::max(error.mark.line, 0)), error.msg));
  }
}

absl::StatusOr<InjectQuestion> Completed(InjectQuestion question, std::vector<std::string>* notes) {
  ADDEND_ASSIGN_OR_RETURN(const HostPort first, ParseHostPort(question.scheduler.substr(
                                                    0, question.scheduler.find(','))));
  if (IsLoopback(first.host)) {
    notes->push_back(
        absl::StrFormat("the agents look for the scheduler at %s, the chart's in the namespace "
                        "addend; if it is elsewhere, give --scheduler=HOST:PORT as pods reach it",
                        kSchedulerOfChart));
    question.scheduler = kSchedulerOfChart;
  }
  return question;
}

// The options of a KRM function, by the names of the flags.
absl::Status TakeOptions(const YAML::Node& config, const Refuse& refuse, InjectQuestion* question) {
  const std::map<std::string, std::string*> texts = {
      {"scheduler", &question->scheduler},
      {"job", &question->job},
      {"image", &question->image},
      {"agent-cpu", &question->cpu},
      {"agent-cpu-limit", &question->cpu_limit},
      {"agent-memory", &question->memory},
      {"agent-data-interface", &question->data_interface},
      {"image-pull-secret", &question->pull_secret},
      {"agent-tls-secret", &question->tls_secret},
      {"agent-tls-server-name", &question->tls_server_name},
      {"job-secret", &question->job_secret},
      {"replicated-job", &question->replicated_job}};
  if (!config.IsDefined() || !config.IsMap() || !config["data"]) return absl::OkStatus();
  for (const auto& entry : config["data"]) {
    const std::string name = entry.first.as<std::string>("");
    const std::string value = entry.second.as<std::string>("");
    const auto text = texts.find(name);
    std::string why;
    ByteSize bytes;
    if (text != texts.end()) {
      *text->second = value;
    } else if (name == "model-bytes") {
      if (!AbslParseFlag(value, &bytes, &why)) return refuse(entry.second, "model-bytes: " + why);
      question->model_bytes = bytes.bytes;
    } else if (name == "local-size") {
      if (!absl::SimpleAtoi(value, &question->local_size)) {
        return refuse(entry.second, "local-size must be a number");
      }
    } else {
      return refuse(entry.first, absl::StrFormat("addendctl inject knows no option '%s'", name));
    }
  }
  return absl::OkStatus();
}

bool HoldsResourceList(const std::string& text) {
  try {
    const YAML::Node node = YAML::Load(text);
    return node.IsMap() && node["kind"] && node["kind"].as<std::string>("") == "ResourceList";
  } catch (const YAML::Exception&) {
    return false;  // whoever reads it says why
  }
}

// The marked objects of the list become training jobs, and all others stay: a kustomization has
// everything that its user applies.
absl::StatusOr<std::string> InjectResourceList(InjectQuestion question, const std::string& text,
                                               std::vector<std::string>* notes) {
  const Refuse refuse = [&](const YAML::Node& node, const std::string& why) {
    const int line = std::max(node.IsDefined() ? node.Mark().line : 0, 0);
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", question.file, line + 1, why));
  };
  try {
    YAML::Node list = YAML::Load(text);
    ADDEND_RETURN_IF_ERROR(TakeOptions(list["functionConfig"], refuse, &question));
    ADDEND_ASSIGN_OR_RETURN(const InjectQuestion completed, Completed(question, notes));
    for (YAML::Node item : list["items"]) {
      if (!IsMarked(item) || !IsWorkload(item)) continue;
      ADDEND_ASSIGN_OR_RETURN(const Workload workload,
                              ReadWorkload(item, completed.replicated_job, refuse));
      ADDEND_RETURN_IF_ERROR(InjectWorkload(completed, workload, refuse, item, notes));
    }
    for (const std::string& note : *notes) {
      YAML::Node result;
      result["message"] = note;
      result["severity"] = "info";
      Append(list, "results", result);
    }
    return WriteYaml(list);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: this is not YAML that can be read: %s", question.file,
                        std::max(error.mark.line, 0) + 1, error.msg));
  }
}

}  // namespace

absl::StatusOr<Injected> Inject(const InjectQuestion& asked, const std::string& text) {
  Injected injected;
  const std::vector<YamlDocument> documents = SplitDocuments(text);
  if (documents.size() == 1 && HoldsResourceList(documents[0].text)) {
    ADDEND_ASSIGN_OR_RETURN(injected.yaml,
                            InjectResourceList(asked, documents[0].text, &injected.notes));
    return injected;
  }
  ADDEND_ASSIGN_OR_RETURN(const InjectQuestion question, Completed(asked, &injected.notes));
  size_t workloads = 0;
  bool first = true;
  for (const YamlDocument& document : documents) {
    ADDEND_ASSIGN_OR_RETURN(const std::string written,
                            InjectDocument(question, document, &workloads, &injected.notes));
    injected.yaml += (first ? "" : "---\n") + written;
    first = false;
  }
  if (workloads == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has no Job, JobSet, PyTorchJob, MPIJob or LeaderWorkerSet, and no Pod with the label "
        "addend.io/inject: \"true\": there is nothing to inject into",
        question.file));
  }
  if (workloads > 1 && !question.job.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d training jobs, but --job=%s names one: split the file, or leave "
                        "--job out, so that each has its own name",
                        question.file, workloads, question.job));
  }
  return injected;
}

absl::StatusOr<std::string> AnswerInject(const InjectQuestion& question, bool json) {
  if (question.file.empty()) {
    return absl::InvalidArgumentError(
        "addendctl inject needs a file: addendctl inject -f job.yaml, or -f - for standard input");
  }
  ADDEND_ASSIGN_OR_RETURN(const std::string text,
                          ReadFileText("-f", question.file, kMostFileBytes));
  ADDEND_ASSIGN_OR_RETURN(const Injected injected, Inject(question, text));
  if (json) {
    const nlohmann::ordered_json answer = {{"yaml", injected.yaml}, {"notes", injected.notes}};
    return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  for (const std::string& note : injected.notes) {
    absl::FPrintF(stderr, "addendctl: %s\n", note);
  }
  return injected.yaml;
}

}  // namespace addend
