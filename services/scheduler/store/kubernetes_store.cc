// The store in Kubernetes' API.
#include "services/scheduler/store/kubernetes_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/store/standby.h"

namespace addend {
namespace {

constexpr char kDefaultName[] = "addend-scheduler";
constexpr size_t kMaxStoreNameBytes = 200;  // a segment's name is longer, and has at most 253
constexpr absl::Duration kTry = absl::Seconds(2);
constexpr absl::Duration kBetweenRenewals = absl::Milliseconds(200);

// A name of an object, as Kubernetes takes them.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxStoreNameBytes && absl::ascii_isalnum(name.front()) &&
         absl::ascii_isalnum(name.back()) && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<KubernetesStore>> KubernetesStore::Open(std::string_view where) {
  const size_t slash = where.find('/');
  const std::string space(slash == std::string_view::npos ? "" : where.substr(0, slash));
  std::string name(slash == std::string_view::npos ? where : where.substr(slash + 1));
  if (where.empty()) name = kDefaultName;
  if (!IsName(name) || (slash != std::string_view::npos && !IsName(space))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--store=kubernetes:%s: write kubernetes[:[NAMESPACE/]NAME], names of "
                        "lower-case letters, digits and -",
                        where));
  }
  ADDEND_ASSIGN_OR_RETURN(const KubernetesApi::Server server, KubernetesApi::OfThisPod());
  ADDEND_ASSIGN_OR_RETURN(auto api, KubernetesApi::Open(server, space));
  return std::make_unique<KubernetesStore>(std::move(api), name);
}

KubernetesStore::KubernetesStore(std::shared_ptr<KubernetesObjects> objects, std::string name)
    : objects_(std::move(objects)), name_(std::move(name)) {}

KubernetesStore::~KubernetesStore() {
  stop_.Stop();
  if (keeper_.joinable()) keeper_.join();
  // The next leader need not wait for the end of the Lease.
  if (lease_) lease_->Release(SteadyNow() + absl::Seconds(1));
}

absl::Status KubernetesStore::Lead(const Leadership& leadership) {
  leadership_ = leadership;
  lease_ =
      std::make_unique<KubernetesLease>(objects_.get(), name_, leadership.name, leadership.ttl);
  log_ = std::make_unique<KubernetesLog>(
      objects_.get(), name_, leadership.name,
      [this](absl::Duration duration) { return stop_.Pause(duration); },
      [this] { return Deadline(); });
  ADDEND_RETURN_IF_ERROR(
      StandBy(leadership, {.try_to_lead = [this](std::string* leader) -> absl::StatusOr<bool> {
                             return lease_->TryToTake(SteadyNow() + kTry, leader);
                           },
                           .pause = [this](absl::Duration duration) { stop_.Pause(duration); },
                           .stop = [this] { stop_.Stop(); }}));
  {
    MutexLock lock(&mu_);
    lease_end_ = lease_->end();
  }
  spdlog::info("this scheduler leads ({})", objects_->Describe());
  keeper_ = std::thread([this] { KeepLeading(); });
  return log_->TakeOver();
}

void KubernetesStore::KeepLeading() {
  while (stop_.Pause(lease_->ttl() / 4)) {
    absl::Status kept;
    do {
      kept = lease_->Renew(std::min(lease_->end(), SteadyNow() + kTry));
      // A server that has just started may refuse every account for a moment.
    } while ((absl::IsUnavailable(kept) || absl::IsPermissionDenied(kept)) &&
             SteadyNow() < lease_->end() && stop_.Pause(kBetweenRenewals));
    if (!kept.ok()) {
      if (stop_.Pause(absl::ZeroDuration())) leadership_.on_lost(LeadsNoMore(kept));
      return;
    }
    MutexLock lock(&mu_);
    lease_end_ = lease_->end();
  }
}

// Nothing is tried for longer than the lease is certain to last.
absl::Time KubernetesStore::Deadline() const {
  MutexLock lock(&mu_);
  return lease_end_;
}

absl::StatusOr<std::vector<StoreEntry>> KubernetesStore::Load() { return log_->Load(); }

absl::Status KubernetesStore::Apply(std::span<const StoreWrite> writes) {
  return log_->Apply(writes);
}

}  // namespace addend
