// The reuse of copies, and the account of the copies that the job pays for.
#include "lib/summation/value_copies.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace addend {
namespace {

bool IsFree(const std::shared_ptr<Arena>& copy) { return copy.use_count() == 1; }

}  // namespace

absl::StatusOr<std::shared_ptr<const Arena>> ValueCopies::LatestOrZeros() {
  if (latest_ == nullptr) {
    ADDEND_ASSIGN_OR_RETURN(latest_, Arena::Create(bytes_));  // reads as zeros
  }
  return std::shared_ptr<const Arena>(latest_);
}

absl::StatusOr<std::shared_ptr<Arena>> ValueCopies::RoomForNext() {
  if (latest_ != nullptr && IsFree(latest_)) return latest_;
  const auto free = std::find_if(former_.begin(), former_.end(), IsFree);
  if (free == former_.end()) return NewCopy();
  std::shared_ptr<Arena> room = std::move(*free);
  former_.erase(free);
  return room;
}

void ValueCopies::Replace(std::shared_ptr<Arena> next) {
  if (latest_ != nullptr && latest_ != next) former_.push_back(std::move(latest_));
  latest_ = std::move(next);
}

bool ValueCopies::IsLent() const {
  return (latest_ != nullptr && !IsFree(latest_)) ||
         !std::all_of(former_.begin(), former_.end(), IsFree);
}

bool ValueCopies::AnyIsFree() const {
  return latest_ == nullptr || IsFree(latest_) ||
         std::any_of(former_.begin(), former_.end(), IsFree) || count() < kReserved;
}

// The job pays for a further copy until the copy is destroyed.
absl::StatusOr<std::shared_ptr<Arena>> ValueCopies::NewCopy() {
  if (memory_ == nullptr || count() < kReserved) return Arena::Create(bytes_);
  if (!memory_->TryTakeCopy(bytes_)) {
    return absl::ResourceExhaustedError("all copies of the value are on their way to nodes");
  }
  auto arena = Arena::Create(bytes_);
  if (!arena.ok()) {
    memory_->GiveCopy(bytes_);
    return arena.status();
  }
  Arena* const raw = arena->get();
  return std::shared_ptr<Arena>(raw, FurtherCopy{*std::move(arena), memory_, bytes_});
}

void ValueCopies::DropFurther() {
  for (auto copy = former_.begin(); copy != former_.end() && HasFurther();) {
    if (!IsFree(*copy)) {
      ++copy;
      continue;
    }
    const auto* const further = std::get_deleter<FurtherCopy>(*copy);
    const bool reserved = further == nullptr || further->memory == nullptr;
    copy = former_.erase(copy);
    if (reserved) PayForOneLess();
  }
}

// A reserved copy has been destroyed: a further copy takes its place.
void ValueCopies::PayForOneLess() {
  const auto take_place = [](const std::shared_ptr<Arena>& copy) {
    auto* const further = std::get_deleter<FurtherCopy>(copy);
    if (further == nullptr || further->memory == nullptr) return false;
    further->StopPaying();
    return true;
  };
  if (latest_ == nullptr || !take_place(latest_)) {
    static_cast<void>(std::any_of(former_.begin(), former_.end(), take_place));
  }
}

}  // namespace addend
