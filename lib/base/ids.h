// Distinct types for ids, so that an id of a kind cannot be passed for an id of another kind.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace addend {

template <typename Tag, typename Rep>
class StrongId {
 public:
  using Value = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const StrongId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

using JobId = StrongId<struct JobTag, uint64_t>;
using Generation = StrongId<struct GenerationTag, uint32_t>;    // restarts of a job, from 1
using NodeId = StrongId<struct NodeTag, uint32_t>;              // a node's rank in its job, from 0
using ServerId = StrongId<struct ServerTag, uint32_t>;          // given by the scheduler, from 1
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;  // new at every start of a process
using PlanVersion = StrongId<struct PlanVersionTag, uint64_t>;  // only grows
using TensorId = StrongId<struct TensorTag, uint32_t>;          // given by the scheduler, from 1
using Round = StrongId<struct RoundTag, uint64_t>;              // push-pulls of a tensor, from 1

// A piece of a tensor: the tensor's id in the upper half, the piece's index in the lower.
class PartitionId {
 public:
  constexpr PartitionId() = default;
  constexpr explicit PartitionId(uint64_t value) : value_(value) {}
  constexpr PartitionId(TensorId tensor, uint32_t index)
      : value_(uint64_t{tensor.value()} << 32 | index) {}
  constexpr uint64_t value() const { return value_; }
  constexpr TensorId tensor() const { return TensorId(static_cast<uint32_t>(value_ >> 32)); }
  constexpr uint32_t index() const { return static_cast<uint32_t>(value_); }
  constexpr auto operator<=>(const PartitionId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, PartitionId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  uint64_t value_ = 0;
};

// A summation server that sends another server the sum of some nodes' contributions. It stands in
// the place of a node on the data path, under a number that no node has.
constexpr uint32_t kFirstRelay = uint32_t{1} << 31;
constexpr NodeId RelayId(ServerId server) { return NodeId(kFirstRelay | server.value()); }
constexpr bool IsRelay(NodeId node) { return node.value() >= kFirstRelay; }
constexpr ServerId ServerOf(NodeId relay) { return ServerId(relay.value() & ~kFirstRelay); }

constexpr Round Next(Round round) { return Round(round.value() + 1); }
// The slot of a round: results alternate between two slots.
constexpr uint32_t Parity(Round round) { return round.value() & 1; }

// A number that no earlier start of any process has used (64 random bits, never 0).
Incarnation NewIncarnation();

}  // namespace addend
