// Objects in a namespace of a Kubernetes cluster, and their API server as a pod reaches it.
//
// Each object has a resourceVersion. A replacement succeeds only if it names the version that the
// server has: the base of the fencing in kubernetes_lease.h and kubernetes_log.h.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace addend {

// The label of all objects of a store; its value is the store's name.
inline constexpr char kStoreLabel[] = "addend.io/store";

enum class ObjectKind : uint8_t { kSecret, kLease };

// The calls that the store makes; thread-safe. An object is the JSON of the API.
//
// Errors: NOT_FOUND; ALREADY_EXISTS (create); ABORTED (replace: another version is there);
// UNAVAILABLE: no answer in time, or an overloaded server, and the call may have been carried out;
// PERMISSION_DENIED (exit status 77): the pod's account lacks a right; others are final.
class KubernetesObjects {
 public:
  virtual ~KubernetesObjects() = default;
  virtual absl::StatusOr<nlohmann::json> Get(ObjectKind kind, const std::string& name,
                                             absl::Time deadline) = 0;
  virtual absl::StatusOr<nlohmann::json> Create(ObjectKind kind, const nlohmann::json& object,
                                                absl::Time deadline) = 0;
  virtual absl::StatusOr<nlohmann::json> Replace(ObjectKind kind, const nlohmann::json& object,
                                                 absl::Time deadline) = 0;
  virtual absl::Status Delete(ObjectKind kind, const std::string& name, absl::Time deadline) = 0;
  // The names of the objects with a label.
  virtual absl::StatusOr<std::vector<std::string>> List(ObjectKind kind, const std::string& label,
                                                        const std::string& value,
                                                        absl::Time deadline) = 0;
  // For error messages.
  virtual std::string Describe() const = 0;
};

// The API server by HTTPS, with the token of the pod's service account; the token is read for each
// call, since Kubernetes renews it.
class KubernetesApi final : public KubernetesObjects {
 public:
  struct Server {
    std::string host;
    int port = 443;
    std::string account_folder;  // with the files token, ca.crt and namespace
  };
  // The server of the cluster that this process's pod belongs to. FAILED_PRECONDITION (exit status
  // 64): this process is in no pod, or its pod mounts no token.
  static absl::StatusOr<Server> OfThisPod();

  // `space`: the namespace; empty: that of the account.
  static absl::StatusOr<std::unique_ptr<KubernetesApi>> Open(const Server& server,
                                                             const std::string& space);

  absl::StatusOr<nlohmann::json> Get(ObjectKind kind, const std::string& name,
                                     absl::Time deadline) override;
  absl::StatusOr<nlohmann::json> Create(ObjectKind kind, const nlohmann::json& object,
                                        absl::Time deadline) override;
  absl::StatusOr<nlohmann::json> Replace(ObjectKind kind, const nlohmann::json& object,
                                         absl::Time deadline) override;
  absl::Status Delete(ObjectKind kind, const std::string& name, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::string>> List(ObjectKind kind, const std::string& label,
                                                const std::string& value,
                                                absl::Time deadline) override;
  std::string Describe() const override;

 private:
  KubernetesApi(Server server, std::string space);
  struct Request;
  absl::StatusOr<nlohmann::json> Call(const Request& request, absl::Time deadline) const;
  std::string PathOf(ObjectKind kind, std::string_view name) const;

  const Server server_;
  const std::string space_;
};

// A member of an object that is a text or a number; empty or 0 if it is absent or another type.
std::string TextAt(const nlohmann::json& object, const char* pointer);
int64_t NumberAt(const nlohmann::json& object, const char* pointer);

}  // namespace addend
