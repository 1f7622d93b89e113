// A tensor's segments, its split into partitions, and the node's contribution to a round.
#include "services/worker_agent/node_tensor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/client/ipc.h"
#include "lib/reduce/reduce.h"
#include "lib/reduce/rounding.h"

namespace addend {

static_assert(Segment::kGuardBytes == ipc::kGuardBytes);

uint64_t TensorShape::elements() const {
  uint64_t product = 1;
  for (const int64_t dim : dims) product *= static_cast<uint64_t>(dim);
  return product;
}

std::string TensorShape::ToString() const {
  std::string text = absl::StrFormat("%s [", Name(dtype));
  for (size_t i = 0; i < dims.size(); ++i)
    absl::StrAppendFormat(&text, "%s%d", i == 0 ? "" : ",", dims[i]);
  text += absl::StrFormat("] %s", Name(op));
  if (wire.lossy()) text += absl::StrFormat(" (wire %s)", addend::ToString(wire));
  return participants.all() ? text : text + " of " + participants.Text();
}

NodeTensor::NodeTensor(uint32_t number_in, TensorShape shape_in,
                       const std::vector<bool>& taking_part, NodeId node)
    : number(number_in),
      shape(std::move(shape_in)),
      bytes(shape.elements() * SizeOf(shape.dtype)),
      rounds(taking_part),
      uses(taking_part.size(), Use::kNever) {
  node_sum_.node = node;
  for (size_t rank = 0; rank < uses.size(); ++rank) {
    if (!taking_part[rank]) uses[rank] = Use::kOutside;
  }
  device.pushes.resize(uses.size());
}

absl::StatusOr<std::shared_ptr<NodeTensor>> NodeTensor::Create(uint32_t number, TensorShape shape,
                                                               const std::vector<bool>& taking_part,
                                                               NodeId node) {
  std::shared_ptr<NodeTensor> tensor(new NodeTensor(number, std::move(shape), taking_part, node));
  const size_t slot = ipc::SlotBytes(tensor->bytes);
  for (const bool takes_part : taking_part) {
    std::shared_ptr<Segment>& segment = tensor->contributions.emplace_back();
    if (!takes_part) continue;
    ADDEND_ASSIGN_OR_RETURN(
        segment, Segment::Create("addend-contribution", slot, Segment::Peer::kMayWriteGuarded));
  }
  ADDEND_ASSIGN_OR_RETURN(tensor->results,
                          Segment::Create("addend-results", 2 * slot, Segment::Peer::kReadOnly));
  tensor->results->Lend();
  const bool sums = std::count(taking_part.begin(), taking_part.end(), true) > 1;
  if (sums || tensor->shape.wire.lossy()) {
    ADDEND_ASSIGN_OR_RETURN(tensor->node_sum_.memory, Arena::Create(tensor->bytes));
  }
  return tensor;
}

bool NodeTensor::AllReleased() const {
  return std::all_of(uses.begin(), uses.end(),
                     [](Use use) { return use == Use::kReleased || use == Use::kOutside; });
}

MutableBytes NodeTensor::ResultSlot(Round round) const {
  return results->memory().subspan(Parity(round) * ipc::SlotBytes(bytes), bytes);
}

MutableBytes NodeTensor::ResultOf(uint32_t partition, Round round) const {
  return ResultSlot(round).subspan(OffsetOf(partition), BytesOf(partition));
}

void NodeTensor::SetPlan(TensorId tensor, uint64_t elements_per_partition,
                         std::vector<PartitionOwner> first_owners) {
  id = tensor;
  partition_elements = elements_per_partition;
  owners = std::move(first_owners);
  if (asynchronous()) stamps.resize(partitions());
  times.resize(partitions());
  pushed.resize(partitions());
}

size_t NodeTensor::BytesOf(uint32_t partition) const {
  return std::min(partition_elements * SizeOf(shape.dtype), bytes - OffsetOf(partition));
}

std::vector<uint64_t> NodeTensor::PlacesSideBySide(NodeId node) const {
  struct Load {
    size_t index;  // by the first partition: the same on all nodes, or all of a rack
    size_t partitions = 0;
  };
  absl::flat_hash_map<const ServerLink*, Load> loads;
  std::vector<size_t> ordinals;  // of a partition among those of its link
  ordinals.reserve(owners.size());
  for (const PartitionOwner& owner : owners) {
    Load& load = loads.try_emplace(owner.link, Load{loads.size()}).first->second;
    ordinals.push_back(load.partitions++);
  }
  std::vector<uint64_t> places;
  places.reserve(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) {
    const Load& load = loads.at(owners[i].link);
    const size_t turn = (load.index + node.value()) % loads.size();
    const auto step = static_cast<double>(bytes) / static_cast<double>(load.partitions);
    const double part = (static_cast<double>(turn) + 0.5) / static_cast<double>(loads.size());
    places.push_back(1 + static_cast<uint64_t>((static_cast<double>(ordinals[i]) + part) * step));
  }
  return places;
}

void NodeTensor::EndRound() {
  rounds.Finish();
  std::fill(device.pushes.begin(), device.pushes.end(), DevicePart::Push{});
  device.direct = false;
  open = {};
}

void NodeTensor::NotePush(uint32_t local_rank, int64_t called, int64_t now) {
  if (pushes.first_call == 0 || called < pushes.first_call) pushes.first_call = called;
  pushes.last_call = called;
  pushes.last_push = now;
  pushes.last_rank = local_rank;
}

uint64_t NodeTensor::StagedBytes() const {
  uint64_t staged = bytes;
  for (const DevicePart::Push& push : device.pushes) {
    if (push.used) staged = std::min(staged, push.staged);
  }
  return staged;
}

std::vector<uint32_t> NodeTensor::SegmentsWithData() const {
  std::set<uint32_t> segments;
  for (uint32_t rank = 0; rank < uses.size(); ++rank) {
    if (rounds.HasData(rank))
      segments.insert(device.pushes[rank].used ? device.pushes[rank].lead : rank);
  }
  return {segments.begin(), segments.end()};
}

absl::Status NodeTensor::PrepareContribution() {
  std::vector<uint32_t> with_data;
  for (uint32_t rank = 0; rank < uses.size(); ++rank) {
    if (rounds.HasData(rank)) with_data.push_back(rank);
  }
  if (shape.op == ReduceOp::kBroadcast && with_data.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrFormat("local ranks %d and %d both sent data for the broadcast '%s': all ranks "
                        "must name the same root",
                        with_data[0], with_data[1], shape.name));
  }
  segments_ = SegmentsWithData();
  contribution_is_empty = segments_.empty();
  must_reduce = segments_.size() > 1 || (shape.wire.lossy() && !contribution_is_empty);
  // A single rank's data is sent from the rank's own segment: no copy.
  if (must_reduce) {
    source_ = node_sum_.memory->memory().data();
  } else {
    source_ = contribution_is_empty ? nullptr : contributions[segments_[0]]->memory().data();
  }
  return absl::OkStatus();
}

void NodeTensor::ReduceInNodeOf(uint32_t partition) {
  const size_t offset = OffsetOf(partition);
  std::vector<const void*> inputs;
  for (const uint32_t segment : segments_) {
    inputs.push_back(contributions[segment]->memory().data() + offset);
  }
  const ReduceOp op = shape.op == ReduceOp::kAccumulate ? ReduceOp::kSum : shape.op;
  const size_t elements = BytesOf(partition) / SizeOf(shape.dtype);
  void* const sum = node_sum_.memory->memory().data() + offset;
  if (!shape.wire.lossy()) return ReduceInNode(shape.dtype, op, sum, inputs, elements);
  const auto* in = static_cast<const float*>(inputs.front());
  auto* const out = static_cast<float*>(sum);
  if (inputs.size() > 1) {
    ReduceInNode(shape.dtype, op, sum, inputs, elements);
    in = out;
  }
  const uint64_t key = RoundingKey(shape.name, rounds.round().value(), node_sum_.node.value());
  RoundToWire(shape.wire, key, partition * partition_elements, elements, in, out);
}

Bytes NodeTensor::Contribution(uint32_t partition) const {
  if (contribution_is_empty) return {};
  const std::byte* const source = IsOnHost(partition) ? source_ : device.range->memory().data();
  return Bytes(source + OffsetOf(partition), BytesOf(partition));
}

}  // namespace addend
