// The receive buffers of a link: scratch memory for a bundle of small payloads, and spare buffers.
#include "lib/summation/landing.h"

#include <algorithm>
#include <utility>

#include "lib/base/status_macros.h"

namespace addend {
namespace {

// Room for the small frames of a bundle.
constexpr size_t kLeastScratch = 64 << 10;

}  // namespace

// The scratch memory cannot grow while payloads are on their way into it.
absl::StatusOr<MutableBytes> Landing::ScratchFor(size_t bytes, Placed* placed) {
  if (scratch_used_ == 0 && (scratch_ == nullptr || scratch_->memory().size() < bytes)) {
    ADDEND_ASSIGN_OR_RETURN(scratch_, Arena::Create(std::max(bytes, kLeastScratch)));
  }
  if (scratch_->memory().size() - scratch_used_ < bytes) {
    ADDEND_ASSIGN_OR_RETURN(placed->own, TakeSpare(bytes));
    return placed->own->memory().first(bytes);
  }
  const MutableBytes room = scratch_->memory().subspan(scratch_used_, bytes);
  scratch_used_ += bytes;
  return room;
}

absl::StatusOr<std::shared_ptr<Arena>> Landing::TakeSpare(size_t bytes) {
  const auto large_enough = std::find_if(spare_.begin(), spare_.end(), [bytes](const auto& arena) {
    return arena->memory().size() >= bytes;
  });
  if (large_enough == spare_.end()) return Arena::Create(bytes);
  std::shared_ptr<Arena> arena = std::move(*large_enough);
  spare_.erase(large_enough);
  return arena;
}

Landing::Placed Landing::Take() {
  ADDEND_CHECK(!placed_.empty(), "Place() comes before OnFrame()");
  Placed placed = std::move(placed_.front());
  placed_.pop_front();
  if (placed_.empty()) scratch_used_ = 0;
  return placed;
}

void Landing::Reuse(Placed* placed) {
  if (placed->own != nullptr) spare_.push_back(std::move(placed->own));
}

bool Landing::IsReceiving(const Partition& partition) const {
  return std::any_of(placed_.begin(), placed_.end(),
                     [&](const Placed& placed) { return placed.partition.get() == &partition; });
}

bool Landing::IsReceiving(TensorId tensor, const std::set<uint32_t>& partitions) const {
  return std::any_of(placed_.begin(), placed_.end(), [&](const Placed& placed) {
    if (placed.partition == nullptr) return false;
    const PartitionId id = placed.partition->spec().id;
    return id.tensor() == tensor && partitions.contains(id.index());
  });
}

std::vector<std::shared_ptr<Partition>> Landing::Abandon() {
  std::vector<std::shared_ptr<Partition>> partitions;
  for (Placed& placed : placed_) {
    if (placed.partition != nullptr) partitions.push_back(std::move(placed.partition));
  }
  placed_.clear();
  scratch_used_ = 0;
  return partitions;
}

}  // namespace addend
