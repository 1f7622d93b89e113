// The choice of a store by its name.
#include "services/scheduler/store/store.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "services/scheduler/store/etcd_store.h"
#include "services/scheduler/store/kubernetes_store.h"
#include "services/scheduler/store/memory_store.h"
#include "services/scheduler/store/sqlite_store.h"

namespace addend {
namespace {
constexpr char kDefaultPath[] = "/var/lib/addend/scheduler.db";
constexpr std::string_view kSqlite = "sqlite:";
constexpr std::string_view kEtcd = "etcd:";
constexpr std::string_view kKubernetes = "kubernetes";
}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view where) {
  return OpenStore(where, EtcdAccess{});
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view where, const EtcdAccess& etcd) {
  if (where == "memory") return std::make_unique<MemoryStore>();
  if (where.empty()) {
    // Where this fails, opening the file says why.
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(kDefaultPath).parent_path(), ignored);
    return SqliteStore::Open(kDefaultPath);
  }
  if (where.starts_with(kSqlite) && where.size() > kSqlite.size()) {
    return SqliteStore::Open(std::string(where.substr(kSqlite.size())));
  }
  if (where.starts_with(kEtcd)) return EtcdStore::Open(where.substr(kEtcd.size()), etcd);
  if (where == kKubernetes) return KubernetesStore::Open("");
  if (where.starts_with(kKubernetes) && where[kKubernetes.size()] == ':') {
    return KubernetesStore::Open(where.substr(kKubernetes.size() + 1));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--store=%s is not a store: use sqlite:PATH, etcd:HOST:PORT, kubernetes or "
                      "memory",
                      where));
}

}  // namespace addend
