// The memory of the partitions that are reserved together: how much they take, and where each lies.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lib/base/bytes.h"
#include "lib/base/shared_text.h"
#include "lib/memory/arena.h"
#include "lib/summation/partition_spec.h"
#include "lib/summation/specs.h"

namespace addend {

// The bytes that a partition takes of the engine's own memory. With the agent's result slots
// (`external`) sums of full-width types happen right there; half types need a wide accumulator
// beside them. Of more than eight `nodes` the sums of groups need memory as well.
uint64_t OwnBytes(const TensorSpec& tensor, uint32_t partition, uint32_t nodes, bool external);

// The specification of tensor.partitions[i]. `name`: the tensor's, which all partitions share.
PartitionSpec SpecOf(const JobSpec& job, const TensorSpec& tensor, const SharedText& name,
                     size_t i);

// The memory of a partition whose part of the engine's own memory begins at `own`. Without
// keep_alive.
PartitionMemory Layout(const TensorSpec& tensor, uint32_t partition, uint32_t nodes, std::byte* own,
                       const std::optional<ExternalSlots>& external);

// Keeps the arena, and the agent's slots. The partitions that share an arena may be released
// separately: each then gives the pages of its `part` back to the machine.
std::shared_ptr<void> KeepAlive(std::shared_ptr<Arena> arena, MutableBytes part,
                                const std::optional<ExternalSlots>& external);

}  // namespace addend
