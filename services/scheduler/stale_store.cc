// A store that is older than its members.
#include "services/scheduler/stale_store.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/lifecycle.h"
#include "services/scheduler/placement.h"
#include "services/scheduler/replacement.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

// No scheduler gives so many numbers between two copies of its store. A higher claim is refused, so
// that no member can use up the numbers.
constexpr uint32_t kMostSkipped = uint32_t{1} << 20;
// Claims that are made again and again may not reach the numbers that no record may have.
constexpr uint32_t kHighestClaim = uint32_t{1} << 30;

constexpr std::string_view kWayOut =
    "the store of the scheduler is older than that, because it was restored from an old copy or "
    "lost its last writes: nothing of that generation can go on, start its trainers again";

}  // namespace

void StaleStore::CompareWithNode(const v1::Announced& told) {
  JobGeneration& current = job_.current;
  const uint32_t generation = current.number.value();
  if (told.job_id() != job_.id.value() || told.generation() < generation) return;
  if (told.generation() - generation >= kMostSkipped) return;
  if (told.generation() >= kHighestClaim) return;
  if (told.generation() > generation) {
    return FailForgotten(told, absl::StrFormat("the nodes of job '%s' are in generation %d, but "
                                               "the scheduler's store ends with generation %d",
                                               job_.name, told.generation(), generation));
  }
  if (current.state == v1::FAILED) return;
  if (told.began() && current.state == v1::FORMING) {
    return FailForgotten(told, absl::StrFormat("generation %d of job '%s' has begun, but the "
                                               "scheduler's store does not know of it",
                                               generation, job_.name));
  }
  if (job_.IsForgotten(TensorId(told.tensor_id()))) {
    const uint32_t next =
        told.tensor_id() < job_.first_given_tensor ? job_.stored_next_tensor : job_.next_tensor;
    return FailForgotten(
        told,
        absl::StrFormat("the nodes of job '%s' have tensors up to number %d, but the scheduler's "
                        "store ends with number %d",
                        job_.name, told.tensor_id(), next - 1));
  }
  // Nothing is planned before a generation has begun, so nobody was told of a higher version.
  if (current.state == v1::FORMING) return;
  if (!BeginAbove(told.plan_version())) return;
  Placement placement(scope_);
  for (auto& [agreement, tensor] : current.tensors) {
    const bool known = tensor.refusers.empty() && tensor.plan.tensor_id() <= told.tensor_id();
    if (tensor.stage == Stages::RESERVING && known) {
      placement.TakeAsPublished(&tensor);
    }
  }
  Replacement(scope_).RecoverAll();
}

void StaleStore::CompareWithServer(const Server& server, const v1::Announced& told) {
  const Agreements& tensors = job_.current.tensors;
  if (Generation(told.generation()) != job_.current.number || !MayUse(job_, server)) return;
  const auto owns = [&server](const auto& entry) { return entry.second.owned.contains(server.id); };
  if (!std::any_of(tensors.begin(), tensors.end(), owns)) return;
  if (BeginAbove(told.plan_version())) Replacement(scope_).RecoverAll();
}

// False if the store knew of this version, or this scheduler has given it.
bool StaleStore::BeginAbove(uint64_t announced) {
  const uint64_t own = job_.stored_version;
  if (announced <= own || announced - own >= kVersionsLeft) return false;
  if (job_.first_given_version != 0 && announced >= job_.first_given_version) return false;
  scope_.changes.Note(event_kind::kPlanned, job_.name,
                      absl::StrFormat("job '%s': its members have been told of plan version %d, "
                                      "but the scheduler's store ends with version %d: it is an "
                                      "old copy or has lost its last writes",
                                      job_.name, announced, own));
  job_.stored_version = announced;
  job_.plan_version = std::max(job_.plan_version, PlanVersion(announced));
  scope_.changes.Store(job_.id);
  return true;
}

// The nodes are told at once, instead of waiting for servers that were never told of their rounds.
void StaleStore::FailForgotten(const v1::Announced& told, const std::string& difference) {
  const std::string reason = absl::StrFormat("%s; %s", difference, kWayOut);
  Lifecycle lifecycle(scope_);
  lifecycle.Begin(Generation(told.generation()));
  if (told.plan_version() - job_.stored_version < kVersionsLeft) {
    job_.plan_version = std::max(job_.plan_version, PlanVersion(told.plan_version()));
  }
  const bool plausible = told.tensor_id() - job_.next_tensor < kMostSkipped;
  if (plausible && told.tensor_id() < kHighestClaim) job_.next_tensor = told.tensor_id() + 1;
  job_.current.state = v1::READY;
  for (const auto& [rank, node] : job_.nodes) {
    job_.current.gone[rank] = reason;  // the node waits for no owner's word
  }
  lifecycle.Fail(reason, FailureKind::kPeerLost);
}

}  // namespace addend
