// The API server by HTTPS. A connection per call: calls are seconds apart.
#include "services/scheduler/store/kubernetes_api.h"

#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/text_file.h"

namespace addend {
namespace {

using nlohmann::json;

constexpr char kAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";
// Each of connecting, sending and waiting for the answer. A call that takes longer is given up, so
// that the next can reach another replica of the server.
constexpr absl::Duration kLongestStep = absl::Seconds(1);
constexpr absl::Duration kShortestStep = absl::Milliseconds(50);
constexpr int kSteps = 3;
// More than the largest object, which has 1 MiB, in base64 and with its metadata.
constexpr size_t kMaxAnswerBytes = 4 << 20;
constexpr size_t kMaxReasonBytes = 300;
constexpr int kListPage = 500;
constexpr char kJson[] = "application/json";
// Names without contents, which may be large.
constexpr char kNamesOnly[] =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

absl::StatusOr<std::string> ReadAccount(const std::string& folder, const char* name) {
  const std::string path = absl::StrFormat("%s/%s", folder, name);
  auto text = ReadTextFile(path);
  if (text.ok() && !text->empty()) return text;
  return MakeFailure(
      FailureKind::kInvalid,
      absl::StrFormat("--store=kubernetes: %s: the pod must mount its service account's token "
                      "(automountServiceAccountToken: true)",
                      text.ok() ? absl::StrFormat("'%s' is empty", path) : Message(text.status())));
}

absl::Status Unavailable(const std::string& name, std::string_view why) {
  return MakeFailure(FailureKind::kTemporary, absl::StrFormat("%s: %s", name, why));
}

absl::Status ErrorOf(const std::string& name, const std::string& method, const std::string& path,
                     int status, const json& answer) {
  std::string reason = TextAt(answer, "/message");
  if (reason.empty()) reason = absl::StrFormat("HTTP status %d", status);
  if (reason.size() > kMaxReasonBytes) reason.resize(kMaxReasonBytes);
  const std::string text = absl::StrFormat("%s: %s %s: %s", name, method, path, reason);
  switch (status) {
    case 401:
      return MakeFailure(FailureKind::kPermission, text);
    case 403:
      // Quotas are refused with the same status.
      return MakeFailure(FailureKind::kPermission,
                         absl::StrContains(reason, " cannot ")
                             ? text +
                                   "; the pod's service account needs a Role for secrets and "
                                   "leases (docs/operations.md)"
                             : text);
    case 404:
      return absl::NotFoundError(text);
    case 409:
      if (method != "POST") return absl::AbortedError(text);
      // Others come from quotas that change at the same moment.
      return TextAt(answer, "/reason") == "AlreadyExists" ? absl::AlreadyExistsError(text)
                                                          : Unavailable(name, reason);
    default:
      return status == 429 || status >= 500 ? Unavailable(name, reason)
                                            : MakeFailure(FailureKind::kInternal, text);
  }
}

}  // namespace

struct KubernetesApi::Request {
  std::string method;
  std::string path;
  std::string body = "";
  std::string accept = kJson;
};

std::string TextAt(const json& object, const char* pointer) {
  const json::json_pointer at(pointer);
  return object.contains(at) && object[at].is_string() ? object[at].get<std::string>() : "";
}

int64_t NumberAt(const json& object, const char* pointer) {
  const json::json_pointer at(pointer);
  return object.contains(at) && object[at].is_number_integer() ? object[at].get<int64_t>() : 0;
}

absl::StatusOr<KubernetesApi::Server> KubernetesApi::OfThisPod() {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  Server server{.host = host ? host : "", .account_folder = kAccount};
  if (server.host.empty() || (port && !absl::SimpleAtoi(port, &server.port)) || server.port < 1 ||
      server.port > 65535) {
    return MakeFailure(FailureKind::kInvalid,
                       "--store=kubernetes works in a pod, where KUBERNETES_SERVICE_HOST and "
                       "KUBERNETES_SERVICE_PORT name the API server, and here they do not");
  }
  return server;
}

absl::StatusOr<std::unique_ptr<KubernetesApi>> KubernetesApi::Open(const Server& server,
                                                                   const std::string& space) {
  // Both are read again for each call; here they say early that something is missing.
  for (const char* name : {"token", "ca.crt"}) {
    ADDEND_RETURN_IF_ERROR(ReadAccount(server.account_folder, name).status());
  }
  std::string own = space;
  if (own.empty()) {
    ADDEND_ASSIGN_OR_RETURN(own, ReadAccount(server.account_folder, "namespace"));
  }
  return std::unique_ptr<KubernetesApi>(new KubernetesApi(server, own));
}

KubernetesApi::KubernetesApi(Server server, std::string space)
    : server_(std::move(server)), space_(std::move(space)) {}

std::string KubernetesApi::Describe() const {
  return absl::StrFormat("Kubernetes' API at %s:%d (namespace %s)", server_.host, server_.port,
                         space_);
}

std::string KubernetesApi::PathOf(ObjectKind kind, std::string_view name) const {
  const bool lease = kind == ObjectKind::kLease;
  return absl::StrFormat("%s/namespaces/%s/%s%s%s",
                         lease ? "/apis/coordination.k8s.io/v1" : "/api/v1", space_,
                         lease ? "leases" : "secrets", name.empty() ? "" : "/", name);
}

absl::StatusOr<json> KubernetesApi::Call(const Request& request, absl::Time deadline) const {
  const std::string name = Describe();
  ADDEND_ASSIGN_OR_RETURN(const std::string token, ReadAccount(server_.account_folder, "token"));
  httplib::SSLClient client(server_.host, server_.port);
  client.set_ca_cert_path((server_.account_folder + "/ca.crt").c_str());
  client.enable_server_certificate_verification(true);
  const absl::Duration left = deadline - SteadyNow();
  if (left <= absl::ZeroDuration()) return Unavailable(name, "there was no time to ask");
  const auto limit =
      absl::ToChronoMicroseconds(std::clamp(left / kSteps, kShortestStep, kLongestStep));
  client.set_connection_timeout(limit);
  client.set_read_timeout(limit);
  client.set_write_timeout(limit);

  httplib::Request sent;
  sent.method = request.method;
  sent.path = request.path;
  sent.body = request.body;
  sent.set_header("Authorization", "Bearer " + token);
  sent.set_header("Accept", request.accept);
  sent.set_header("User-Agent", "addend-scheduler");
  if (!request.body.empty()) sent.set_header("Content-Type", kJson);
  std::string body;
  bool too_long = false;
  sent.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_long = too_long || body.size() + size > kMaxAnswerBytes;
    if (!too_long) body.append(data, size);
    return !too_long;
  };
  const httplib::Result result = client.send(sent);
  if (too_long) return Unavailable(name, "an answer is longer than 4 MiB");
  if (!result) {
    return Unavailable(name, absl::StrFormat("no answer (%s)", httplib::to_string(result.error())));
  }
  json answer = json::parse(body, nullptr, false);
  if (result->status < 200 || result->status > 299) {
    return ErrorOf(name, request.method, request.path, result->status, answer);
  }
  if (answer.is_discarded() || !answer.is_object())
    return Unavailable(name, "an answer is no JSON");
  return answer;
}

absl::StatusOr<json> KubernetesApi::Get(ObjectKind kind, const std::string& name,
                                        absl::Time deadline) {
  return Call({"GET", PathOf(kind, name)}, deadline);
}

absl::StatusOr<json> KubernetesApi::Create(ObjectKind kind, const json& object,
                                           absl::Time deadline) {
  return Call({"POST", PathOf(kind, ""), object.dump()}, deadline);
}

absl::StatusOr<json> KubernetesApi::Replace(ObjectKind kind, const json& object,
                                            absl::Time deadline) {
  return Call({"PUT", PathOf(kind, TextAt(object, "/metadata/name")), object.dump()}, deadline);
}

absl::Status KubernetesApi::Delete(ObjectKind kind, const std::string& name, absl::Time deadline) {
  return Call({"DELETE", PathOf(kind, name)}, deadline).status();
}

absl::StatusOr<std::vector<std::string>> KubernetesApi::List(ObjectKind kind,
                                                             const std::string& label,
                                                             const std::string& value,
                                                             absl::Time deadline) {
  std::vector<std::string> names;
  std::string next;
  do {
    const std::string path = httplib::append_query_params(
        PathOf(kind, ""), {{"labelSelector", absl::StrFormat("%s=%s", label, value)},
                           {"limit", absl::StrCat(kListPage)},
                           {"continue", next}});
    ADDEND_ASSIGN_OR_RETURN(const json answer,
                            Call({.method = "GET", .path = path, .accept = kNamesOnly}, deadline));
    const auto items = answer.find("items");
    if (items != answer.end() && items->is_array()) {
      for (const json& item : *items) names.push_back(TextAt(item, "/metadata/name"));
    }
    next = TextAt(answer, "/metadata/continue");
  } while (!next.empty());
  return names;
}

}  // namespace addend
