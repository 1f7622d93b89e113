// The copies of an asynchronous partition's value: the latest, and former ones that are still on
// their way to nodes. A copy is lent while a pointer to it is held outside. Two copies are reserved
// with the partition; the job pays for further copies as long as they exist. Belongs to a shard's
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/memory/arena.h"
#include "lib/summation/job_memory.h"

namespace addend {

class ValueCopies {
 public:
  // The latest copy, and a copy on its way to a node.
  static constexpr size_t kReserved = 2;

  // `bytes`: of a copy. `memory` pays for further copies; null: they are not limited.
  ValueCopies(size_t bytes, std::shared_ptr<JobMemory> memory)
      : bytes_(bytes), memory_(std::move(memory)) {}

  // Null before the first Replace() or LatestOrZeros().
  const std::shared_ptr<Arena>& latest() const { return latest_; }
  // The latest copy; zeros if there is no copy yet.
  absl::StatusOr<std::shared_ptr<const Arena>> LatestOrZeros();
  // The memory for the next value: the latest copy itself, unless it is lent. RESOURCE_EXHAUSTED if
  // all copies that the job can pay for are lent.
  absl::StatusOr<std::shared_ptr<Arena>> RoomForNext();
  // `next`, which may be the latest copy itself, or null, becomes the latest copy.
  void Replace(std::shared_ptr<Arena> next);

  bool IsLent() const;
  // RoomForNext() succeeds without further memory.
  bool AnyIsFree() const;
  // There are more copies than are reserved.
  bool HasFurther() const { return count() > kReserved; }
  // Destroys copies that are not lent until only the reserved number is left, and returns their
  // memory to the job.
  void DropFurther();

 private:
  // Destroys a further copy, which `memory` pays for; null if the copy has taken the place of a
  // reserved copy.
  struct FurtherCopy {
    std::shared_ptr<Arena> arena;
    std::shared_ptr<JobMemory> memory;
    size_t bytes;
    void StopPaying() {
      if (memory != nullptr) std::exchange(memory, nullptr)->GiveCopy(bytes);
    }
    void operator()(Arena*) {
      arena.reset();
      StopPaying();
    }
  };
  size_t count() const { return (latest_ == nullptr ? 0 : 1) + former_.size(); }
  absl::StatusOr<std::shared_ptr<Arena>> NewCopy();
  void PayForOneLess();

  const size_t bytes_;
  const std::shared_ptr<JobMemory> memory_;
  std::shared_ptr<Arena> latest_;
  std::vector<std::shared_ptr<Arena>> former_;  // some are still lent
};

}  // namespace addend
