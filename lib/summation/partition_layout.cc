// The layout of accumulators and results.
#include "lib/summation/partition_layout.h"

#include <utility>

namespace addend {
namespace {

// Accumulators start on a cache line.
constexpr uint64_t kAlignment = 64;
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

uint64_t OwnBytes(const TensorSpec& tensor, uint32_t partition, bool external) {
  const uint64_t accumulator =
      Aligned(tensor.ElementsOf(partition) * AccumulatorSizeOf(tensor.dtype));
  if (!external) return 2 * accumulator;
  return AccumulatorSizeOf(tensor.dtype) == SizeOf(tensor.dtype) ? 0 : accumulator;
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
          .handed_over = tensor.handed_over[i]};
}

PartitionMemory Layout(const TensorSpec& tensor, uint32_t partition, std::byte* own,
                       const std::optional<ExternalSlots>& external) {
  const uint64_t accumulator =
      Aligned(tensor.ElementsOf(partition) * AccumulatorSizeOf(tensor.dtype));
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
  return memory;
}

std::shared_ptr<void> KeepAlive(std::shared_ptr<Arena> arena, MutableBytes part,
                                const std::optional<ExternalSlots>& external) {
  std::shared_ptr<void> slots = external ? external->keep_alive : nullptr;
  return std::shared_ptr<void>(part.data(), [arena = std::move(arena), slots = std::move(slots),
                                             part](void*) { Arena::Discard(part); });
}

}  // namespace addend
