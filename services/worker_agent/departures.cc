// Finds rounds that wait for a rank that has left.
#include "services/worker_agent/departures.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"

namespace addend {
namespace {

constexpr absl::Duration kMoment = absl::Seconds(1);
constexpr size_t kAwaitedMax = 16;  // named in a heartbeat: the oldest

bool HasContributed(const NodeTensor& tensor, uint32_t local_rank, Round round) {
  const Round open = tensor.rounds.round();
  return !tensor.rounds.TakesPart(local_rank) || round < open ||
         (round == open && tensor.rounds.HasPushed(local_rank));
}

}  // namespace

void Departures::OnDeparture(const Trainer& trainer) {
  departed_[static_cast<uint32_t>(trainer.local_rank)] = ranks_->Describe(trainer);
  CheckAll();
  if (state_->running()) context_.reports->BeatSoon();
}

void Departures::Apply(const v1::NodeUpdate& update) {
  anyone_departed_ = update.departed();
  awaited_.assign(update.awaited().begin(), update.awaited().end());
  CheckAll();
}

void Departures::CheckAll() {
  if (departed_.empty()) return;
  for (const auto& [number, tensor] : tensors_->by_number()) Check(*tensor);
  for (const v1::AwaitedRound& awaited : awaited_) CheckAwaited(awaited);
}

void Departures::Check(const NodeTensor& tensor) {
  if (departed_.empty() || !tensor.error.ok() || !tensor.rounds.AnyPushed()) return;
  for (const auto& [local_rank, description] : departed_) {
    if (!HasContributed(tensor, local_rank, tensor.rounds.round())) {
      return Fail(local_rank, tensor.shape.name, tensor.rounds.round());
    }
  }
}

// A planned tensor is named by its id: all nodes have declared it.
void Departures::CheckAwaited(const v1::AwaitedRound& awaited) {
  const Round round(awaited.round());
  std::shared_ptr<NodeTensor> tensor;
  if (awaited.tensor_id() != 0) {
    tensor = tensors_->ById(TensorId(awaited.tensor_id()));
    if (tensor == nullptr) return;  // it has been removed since
  } else {
    tensor = tensors_->ByName(awaited.name());
  }
  if (tensor != nullptr && !tensor->error.ok()) return;
  const auto participants =
      Participants::FromBits(awaited.participants(), context_.options->job_size());
  for (const auto& [local_rank, description] : departed_) {
    if (participants && !participants->Contains(ranks_->RankOf(local_rank))) continue;
    if (tensor == nullptr || !HasContributed(*tensor, local_rank, round)) {
      return Fail(local_rank, awaited.name(), round);
    }
  }
}

void Departures::Fail(uint32_t local_rank, const std::string& tensor, Round round) {
  state_->Fail(
      MakeFailure(FailureKind::kPeerLost,
                  absl::StrFormat("%s has left by shutdown() without a contribution to round %d of "
                                  "tensor '%s', for which other ranks wait",
                                  departed_.at(local_rank), round.value(), tensor)));
}

std::vector<const NodeTensor*> Departures::LongAwaited() const {
  std::vector<const NodeTensor*> awaited;
  const absl::Time latest = context_.loop->Now() - kMoment;
  for (const auto& [number, tensor] : tensors_->by_number()) {
    const bool alone = tensor->asynchronous() && tensor->planned();
    if (!alone && tensor->error.ok() && tensor->rounds.AllPushed() &&
        tensor->open.since <= latest) {
      awaited.push_back(tensor.get());
    }
  }
  const size_t named = std::min(awaited.size(), kAwaitedMax);
  std::partial_sort(awaited.begin(), awaited.begin() + static_cast<ptrdiff_t>(named), awaited.end(),
                    IsOpenLonger);
  awaited.resize(named);
  return awaited;
}

void Departures::TellAwaited() {
  if (!anyone_departed_ || !state_->running()) return;
  std::set<std::pair<uint32_t, Round>> awaited;
  for (const NodeTensor* tensor : LongAwaited())
    awaited.emplace(tensor->number, tensor->rounds.round());
  const bool is_new =
      !std::includes(told_awaited_.begin(), told_awaited_.end(), awaited.begin(), awaited.end());
  told_awaited_ = std::move(awaited);
  if (is_new) context_.reports->BeatSoon();
}

void Departures::FillBeat(v1::HeartbeatRequest* beat) const {
  beat->set_departed_ranks(static_cast<uint32_t>(departed_.size()));
  if (!anyone_departed_ || !state_->running()) return;
  for (const NodeTensor* tensor : LongAwaited()) {
    v1::AwaitedRound* const awaited = beat->add_awaited();
    awaited->set_tensor_id(tensor->planned() ? tensor->id.value() : 0);
    awaited->set_name(tensor->shape.name);
    awaited->set_participants(tensor->shape.participants.bits());
    awaited->set_round(tensor->rounds.round().value());
  }
}

void Departures::MaybeReportIdle(bool waited) {
  if (ranks_->any() || idle_reported_) return;
  if (!ranks_->anyone_left() && !state_->failed()) return;
  if (ranks_->all_came() || waited || state_->failed()) {
    idle_reported_ = true;
    context_.reports->Send(report::Idle(context_.identity->generation));
    return;
  }
  context_.loop->RunAfter(kMoment, [this] { MaybeReportIdle(/*waited=*/true); });
}

}  // namespace addend
