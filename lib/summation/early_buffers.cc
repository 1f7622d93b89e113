// The reuse of buffers, by job and by size.
#include "lib/summation/early_buffers.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace addend {
namespace {

constexpr size_t kPageBytes = 4096;
// Whole pages; larger buffers in eighths of a power of two, since encoded payloads have all sizes,
// and a buffer is used again for its own size only.
size_t SizeClassOf(size_t bytes) {
  const size_t step = std::max(kPageBytes, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

EarlyBuffers::Buffer::~Buffer() {
  if (arena_ == nullptr) return;
  job_->LetGo(arena_->memory().size());
  owner_->TakeBack(std::move(arena_), job_, /*keep=*/drops_ == owner_->drops_);
}

EarlyBuffers::Buffer EarlyBuffers::Take(size_t bytes, std::shared_ptr<JobMemory> job) {
  Buffer buffer;
  const size_t size = SizeClassOf(bytes);
  if (!job->TryKeep(size)) return buffer;
  buffer.arena_ = TakeArena(size, job);
  if (buffer.arena_ == nullptr) {
    job->LetGo(size);
    return buffer;
  }
  buffer.owner_ = shared_from_this();
  buffer.job_ = std::move(job);
  buffer.bytes_ = bytes;
  buffer.drops_ = drops_;
  return buffer;
}

std::shared_ptr<Arena> EarlyBuffers::TakeArena(size_t size, const std::shared_ptr<JobMemory>& job) {
  const auto [its, first] = unused_.try_emplace(job);
  if (first) DropOfGoneJobs();
  if (auto& same = its->second[size]; !same.empty()) {
    std::shared_ptr<Arena> arena = std::move(same.back());
    same.pop_back();
    unused_bytes_ -= size;
    return arena;
  }
  if (!budget_->TryTake(size)) {
    DropUnused();
    if (!budget_->TryTake(size)) return nullptr;
  }
  auto arena = Arena::Create(size);
  if (arena.ok()) return *std::move(arena);
  budget_->Give(size);
  return nullptr;
}

void EarlyBuffers::TakeBack(std::shared_ptr<Arena> arena, const std::shared_ptr<JobMemory>& job,
                            bool keep) {
  const size_t size = arena->memory().size();
  if (!keep) return budget_->Give(size);
  // Mostly of sizes that are not wanted any more, or it would not be so much.
  if (unused_bytes_ + size > kUnusedBytesMax) DropUnused();
  if (budget_->over_limit() || size > kUnusedBytesMax) return budget_->Give(size);
  unused_bytes_ += size;
  unused_[job][size].push_back(std::move(arena));
}

void EarlyBuffers::DropOfGoneJobs() {
  std::erase_if(unused_, [this](const auto& entry) {
    if (!entry.first.expired()) return false;
    for (const auto& [size, arenas] : entry.second) {
      unused_bytes_ -= size * arenas.size();
      budget_->Give(size * arenas.size());
    }
    return true;
  });
}

void EarlyBuffers::DropUnused() {
  unused_.clear();
  budget_->Give(unused_bytes_);
  unused_bytes_ = 0;
}

void EarlyBuffers::DropAll() {
  DropUnused();
  ++drops_;
}

std::unique_ptr<EarlyContribution> EarlyContribution::TakeBuffer(EarlyBuffers* buffers,
                                                                 size_t bytes,
                                                                 std::shared_ptr<JobMemory> job) {
  EarlyBuffers::Buffer buffer = buffers->Take(bytes, std::move(job));
  if (buffer.memory().empty()) return nullptr;
  return std::unique_ptr<EarlyContribution>(new EarlyContribution(std::move(buffer)));
}

}  // namespace addend
