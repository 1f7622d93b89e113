// Partitions that a shard holds no more. They are destroyed a few at a time, between the turns of
// the links: each gives memory back to the machine, and the partitions of a large job, a million,
// would hold the thread for seconds. Belongs to the shard's thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "lib/base/ids.h"

namespace addend {

class DroppedPartitions {
 public:
  using DeferFn = std::function<void(absl::AnyInvocable<void()>)>;
  // `defer` runs a task at the end of the thread's turn. `when_empty` is called whenever the last
  // partition has been destroyed, and its memory is free.
  DroppedPartitions(DeferFn defer, absl::AnyInvocable<void()> when_empty)
      : defer_(std::move(defer)), when_empty_(std::move(when_empty)) {}

  void Add(std::shared_ptr<void> partition) {
    single_.push_back(std::move(partition));
    Schedule();
  }
  // Takes a whole table in constant time.
  template <typename P>
  void Add(absl::flat_hash_map<PartitionId, std::shared_ptr<P>> table) {
    if (table.empty()) return;
    tables_.push_back(std::make_unique<TableOf<P>>(std::move(table)));
    Schedule();
  }
  // Destroys all partitions at once. `when_empty` is not called.
  void Clear() {
    single_.clear();
    tables_.clear();
  }

 private:
  static constexpr size_t kAtOnce = 64;

  struct Table {
    virtual ~Table() = default;
    // Destroys up to `count` partitions; returns the number destroyed.
    virtual size_t Destroy(size_t count) = 0;
  };
  template <typename P>
  struct TableOf final : Table {
    explicit TableOf(absl::flat_hash_map<PartitionId, std::shared_ptr<P>> held)
        : table(std::move(held)), next(table.begin()) {}
    size_t Destroy(size_t count) override {
      size_t destroyed = 0;
      for (; destroyed < count && next != table.end(); ++destroyed) table.erase(next++);
      return destroyed;
    }
    absl::flat_hash_map<PartitionId, std::shared_ptr<P>> table;
    typename absl::flat_hash_map<PartitionId, std::shared_ptr<P>>::iterator next;
  };

  void Schedule() {
    if (std::exchange(scheduled_, true)) return;
    defer_([this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) DestroySome();
    });
  }
  void DestroySome() {
    scheduled_ = false;
    size_t left = kAtOnce;
    for (; left > 0 && !single_.empty(); --left) single_.pop_front();
    while (left > 0 && !tables_.empty()) {
      const size_t destroyed = tables_.front()->Destroy(left);
      if (destroyed < left) tables_.pop_front();
      left -= destroyed;
    }
    if (!single_.empty() || !tables_.empty()) return Schedule();
    when_empty_();
  }

  const DeferFn defer_;
  absl::AnyInvocable<void()> when_empty_;
  std::deque<std::shared_ptr<void>> single_;
  std::list<std::unique_ptr<Table>> tables_;
  bool scheduled_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend
