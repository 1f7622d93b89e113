// The layout of accumulators and results.
#include "lib/summation/partition_layout.h"

#include <utility>

#include "lib/base/sum_tree.h"

namespace addend {
namespace {

// Accumulators start on a cache line.
constexpr uint64_t kAlignment = 64;
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t AccumulatorOf(const TensorSpec& tensor, uint32_t partition) {
  return Aligned(tensor.ElementsOf(partition) * AccumulatorSizeOf(tensor.dtype));
}

// The accumulators of the rounds.
uint64_t OwnAccumulators(const TensorSpec& tensor, bool external) {
  if (!external) return 2;
  return AccumulatorSizeOf(tensor.dtype) == SizeOf(tensor.dtype) ? 0 : 1;
}

}  // namespace

uint64_t OwnBytes(const TensorSpec& tensor, uint32_t partition, uint32_t nodes, bool external) {
  const uint64_t accumulators = OwnAccumulators(tensor, external) + SumLevels(nodes) - 1;
  return accumulators * AccumulatorOf(tensor, partition);
}

PartitionSpec SpecOf(const JobSpec& job, const TensorSpec& tensor, const SharedText& name,
                     size_t i) {
  return {.id = PartitionId(tensor.id, tensor.partitions[i]),
          .name = name,
          .dtype = tensor.dtype,
          .op = tensor.op,
          .wire = tensor.wire,
          .first_element = tensor.FirstElement(tensor.partitions[i]),
          .elements = tensor.ElementsOf(tensor.partitions[i]),
          .nodes = job.num_nodes,
          .ranks = job.local_size,
          .lost = job.lost,
          .participants = tensor.participants,
          .aborted = job.failed,
          .version = tensor.versions[i],
          .handed_over = tensor.handed_over[i],
          .relayed = tensor.relayed.empty() ? nullptr : tensor.relayed[i]};
}

PartitionMemory Layout(const TensorSpec& tensor, uint32_t partition, uint32_t nodes, std::byte* own,
                       const std::optional<ExternalSlots>& external) {
  const uint64_t accumulator = AccumulatorOf(tensor, partition);
  const bool widened = AccumulatorSizeOf(tensor.dtype) != SizeOf(tensor.dtype);
  PartitionMemory memory;
  for (int slot = 0; slot < 2; ++slot) {
    if (external) {
      memory.result[slot] =
          external->slot[slot].data() + tensor.FirstElement(partition) * SizeOf(tensor.dtype);
      memory.accumulator[slot] = widened ? own : memory.result[slot];
      memory.reads = external->reads;
    } else {
      memory.accumulator[slot] = memory.result[slot] = own + slot * accumulator;
    }
  }
  if (SumLevels(nodes) > 1) {
    memory.partial = own + OwnAccumulators(tensor, external.has_value()) * accumulator;
  }
  return memory;
}

std::shared_ptr<void> KeepAlive(std::shared_ptr<Arena> arena, MutableBytes part,
                                const std::optional<ExternalSlots>& external) {
  std::shared_ptr<void> slots = external ? external->keep_alive : nullptr;
  return std::shared_ptr<void>(part.data(), [arena = std::move(arena), slots = std::move(slots),
                                             part](void*) { Arena::Discard(part); });
}

}  // namespace addend
