// Buffers for contributions that come before their turn. They are taken from the server's budget,
// and kept for later contributions: fresh pages cost more time than receiving into them. Belongs to
// a shard's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/base/bytes.h"
#include "lib/base/sum_tree.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/memory/arena.h"
#include "lib/summation/job_memory.h"
#include "lib/summation/memory_budget.h"
#include "lib/transport/transport.h"

namespace addend {

class EarlyBuffers : public std::enable_shared_from_this<EarlyBuffers> {
 public:
  // The limit of unused buffers. They count as taken from the budget.
  static constexpr size_t kUnusedBytesMax = 32 << 20;

  // Returned when it is destroyed, on the shard's thread.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&&) = default;
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer();
    // Empty for a default-constructed buffer. Not zeroed.
    MutableBytes memory() const { return arena_ ? arena_->memory().first(bytes_) : MutableBytes(); }

   private:
    friend class EarlyBuffers;
    std::shared_ptr<EarlyBuffers> owner_;
    std::shared_ptr<JobMemory> job_;
    std::shared_ptr<Arena> arena_;
    size_t bytes_ = 0;
    uint64_t drops_ = 0;  // of the owner, when the buffer was taken
  };

  // `budget` outlives this object.
  static std::shared_ptr<EarlyBuffers> Create(MemoryBudget* budget) {
    return std::shared_ptr<EarlyBuffers>(new EarlyBuffers(budget));
  }
  ~EarlyBuffers() { DropUnused(); }

  // Returns an empty buffer if the budget has no room, or the job has used its share.
  Buffer Take(size_t bytes, std::shared_ptr<JobMemory> job);
  // Returns the unused buffers to the budget and the machine.
  void DropUnused();
  // Also returns each buffer that is in use now when it is destroyed, instead of keeping it: a link
  // may hold a buffer for some time after its job has ended.
  void DropAll();

 private:
  explicit EarlyBuffers(MemoryBudget* budget) : budget_(budget) {}
  // By size.
  using Arenas = absl::flat_hash_map<size_t, std::vector<std::shared_ptr<Arena>>>;

  std::shared_ptr<Arena> TakeArena(size_t size, const std::shared_ptr<JobMemory>& job);
  void TakeBack(std::shared_ptr<Arena> arena, const std::shared_ptr<JobMemory>& job, bool keep);
  void DropOfGoneJobs();

  MemoryBudget* const budget_;
  // By job: a node may still have the keys to write into a buffer over RDMA, so a buffer never goes
  // to another job.
  std::map<std::weak_ptr<JobMemory>, Arenas, std::owner_less<>> unused_;
  size_t unused_bytes_ = 0;
  uint64_t drops_ = 0;  // calls of DropAll()
};

// A contribution that came before its turn: a buffer taken from the budget, or a reference to the
// sender's memory.
class EarlyContribution {
 public:
  // Null if there is no room for the job.
  static std::unique_ptr<EarlyContribution> TakeBuffer(EarlyBuffers* buffers, size_t bytes,
                                                       std::shared_ptr<JobMemory> job);
  EarlyContribution(Payload payload, bool empty) : payload_(std::move(payload)), empty_(empty) {}

  MutableBytes room() const { return buffer_.memory(); }
  Bytes bytes() const { return room().empty() ? payload_.bytes() : Bytes(room()); }
  EncodedBytes content() const { return {bytes(), encoding_}; }
  // Of the bytes in room(); raw unless it is set.
  void SetEncoding(Encoding encoding) { encoding_ = encoding; }
  bool empty() const { return empty_; }
  bool by_reference() const { return payload_.by_reference(); }

  // From now on room() has the sum of a group of so many contributions that are not empty, each of
  // its own node, elements of the accumulator's type; the others of the group are empty.
  void BecomeSumOf(uint32_t contributions) { sum_of_ = contributions; }
  bool is_group() const { return sum_of_ > 0; }
  // The same for the contributions of a span of positions. 0 of them: it adds nothing.
  void BecomeSumOf(const SumSpan& span, uint32_t contributions) {
    span_ = span;
    sum_of_ = contributions;
  }
  const std::optional<SumSpan>& span() const { return span_; }
  // The contributions with data that this stands for.
  uint32_t contributions() const { return empty_ ? 0 : std::max(1U, sum_of_); }

 private:
  explicit EarlyContribution(EarlyBuffers::Buffer buffer) : buffer_(std::move(buffer)) {}

  EarlyBuffers::Buffer buffer_;
  Payload payload_;
  Encoding encoding_ = Encoding::kRaw;
  bool empty_ = false;
  uint32_t sum_of_ = 0;
  std::optional<SumSpan> span_;  // null: of a group of eight, or a single contribution
};

}  // namespace addend
