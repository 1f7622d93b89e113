// Declares tensors to the scheduler, and finds them.
#include "services/worker_agent/tensor_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/utf8.h"
#include "lib/client/addend.h"

namespace addend {
namespace {

constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 44;

v1::TensorDescriptor DescriptorOf(const TensorShape& shape, uint32_t nodes) {
  v1::TensorDescriptor descriptor;
  descriptor.set_name(shape.name);
  descriptor.set_dtype(static_cast<v1::DType>(shape.dtype));
  descriptor.set_op(static_cast<v1::ReduceOp>(shape.op));
  for (const int64_t dim : shape.dims) descriptor.add_shape(dim);
  descriptor.set_reduction_tree(ToString(NumericsIn(nodes, shape.wire)));
  descriptor.set_participants(shape.participants.bits());
  return descriptor;
}

}  // namespace

absl::StatusOr<TensorShape> ReadShape(ipc::DeclareMessage declare, uint64_t job_size,
                                      const WireFormat& job_wire) {
  TensorShape shape{.name = declare.name(),
                    .dtype = declare.dtype,
                    .op = declare.op,
                    .dims = std::move(declare.shape),
                    .participants = {}};
  if (shape.name.empty() || shape.name.size() > kMaxNameBytes || !IsUtf8(shape.name)) {
    return absl::InvalidArgumentError("a tensor's name must be UTF-8 and not empty");
  }
  if (static_cast<uint8_t>(shape.dtype) >= kDTypes ||
      static_cast<uint8_t>(shape.op) >= kReduceOps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s' has an unknown dtype or operation", shape.name));
  }
  const auto participants = Participants::FromBits(declare.participants(), job_size);
  if (!participants) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the participants of tensor '%s' are not ranks of this job, which has ranks 0..%d",
        shape.name, job_size - 1));
  }
  shape.participants = *participants;
  const bool may_be_lossy = MayBeLossy(shape.dtype, shape.op);
  if (declare.wire && (static_cast<uint8_t>(declare.wire->dtype) >= kWireDTypes ||
                       (declare.wire->lossy() && !may_be_lossy))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor '%s' cannot travel in the type that its declaration names", shape.name));
  }
  if (may_be_lossy) shape.wire = declare.wire.value_or(job_wire);
  uint64_t elements = 1;
  for (const int64_t dim : shape.dims) {
    if (dim < 0 || (dim > 0 && elements > kMaxTensorBytes / static_cast<uint64_t>(dim))) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor '%s' has a negative dimension or is too large", shape.name));
    }
    elements *= static_cast<uint64_t>(dim);
  }
  return shape;
}

absl::StatusOr<TensorTable::Shared> TensorTable::Attach(uint32_t local_rank, TensorShape shape,
                                                        Shared* conflicting) {
  if (!shape.participants.Contains(ranks_->RankOf(local_rank))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d has declared tensor '%s' of %s, to which it does not belong",
                        ranks_->RankOf(local_rank), shape.name, shape.participants.Text()));
  }
  std::deque<Shared>& instances = by_name_[shape.name];
  for (const Shared& tensor : instances) {
    const NodeTensor::Use use = tensor->uses[local_rank];
    if (use != NodeTensor::Use::kNever && use != NodeTensor::Use::kOutside) continue;
    if (tensor->shape != shape) {
      absl::Status mismatch = Mismatch(*tensor, shape, local_rank);
      *conflicting = tensor;
      tensor->uses[local_rank] = NodeTensor::Use::kReleased;
      if (!tensor->agreement.differing) {
        tensor->agreement.differing = std::move(shape);
        if (tensor->agreement.declared) DeclareDiffering(*tensor);
      }
      return mismatch;
    }
    tensor->uses[local_rank] = NodeTensor::Use::kAttached;
    return tensor;
  }
  if (by_number_.size() >= kMaxTensors) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' is one too many: a job has at most %d tensors", shape.name, kMaxTensors));
  }
  std::vector<bool> taking_part;
  for (uint32_t rank = 0; rank < ranks_->size(); ++rank) {
    taking_part.push_back(shape.participants.Contains(ranks_->RankOf(rank)));
  }
  ADDEND_ASSIGN_OR_RETURN(const auto tensor, NodeTensor::Create(next_number_++, std::move(shape),
                                                                taking_part, ranks_->node()));
  by_number_[tensor->number] = tensor;
  instances.push_back(tensor);
  tensor->uses[local_rank] = NodeTensor::Use::kAttached;
  return tensor;
}

absl::Status TensorTable::Mismatch(const NodeTensor& tensor, const TensorShape& shape,
                                   uint32_t local_rank) const {
  const auto other = std::find_if(tensor.uses.begin(), tensor.uses.end(), [](NodeTensor::Use use) {
    return use == NodeTensor::Use::kAttached || use == NodeTensor::Use::kReleased;
  });
  const auto other_rank = static_cast<uint32_t>(other - tensor.uses.begin());
  return absl::FailedPreconditionError(
      absl::StrFormat("tensor '%s' is declared as %s by rank %d but as %s by rank %d (both on "
                      "node %d): all ranks must declare the same",
                      shape.name, tensor.shape.ToString(), ranks_->RankOf(other_rank),
                      shape.ToString(), ranks_->RankOf(local_rank), ranks_->node().value()));
}

void TensorTable::DeclareFront(const std::string& name) {
  NodeTensor& front = *by_name_.at(name).front();
  if (front.agreement.declared) return;
  front.agreement.declared = true;
  slots_->Enter(generation_, front);
  reports_->Send(report::Declare(generation_, DescriptorOf(front.shape, nodes_), front.number));
  if (front.agreement.differing) DeclareDiffering(front);
}

void TensorTable::DeclareDiffering(const NodeTensor& tensor) {
  reports_->Send(report::Declare(generation_, DescriptorOf(*tensor.agreement.differing, nodes_),
                                 tensor.number));
}

TensorTable::Shared TensorTable::Attached(uint32_t number, uint32_t local_rank) const {
  const auto it = by_number_.find(number);
  const bool attached =
      it != by_number_.end() && it->second->uses[local_rank] == NodeTensor::Use::kAttached;
  return attached ? it->second : nullptr;
}

bool TensorTable::Release(const Shared& tensor, uint32_t local_rank) {
  tensor->uses[local_rank] = NodeTensor::Use::kReleased;
  return IsDone(*tensor);
}

bool TensorTable::IsDone(const NodeTensor& tensor) {
  if (!tensor.AllReleased()) return false;
  if (!tensor.agreement.declared) return !tensor.agreement.differing;
  return tensor.agreement.refused || (tensor.planned() && !tensor.agreement.differing);
}

void TensorTable::Remove(const Shared& tensor) {
  by_number_.erase(tensor->number);
  const std::string& name = tensor->shape.name;
  std::deque<Shared>& instances = by_name_[name];
  std::erase(instances, tensor);
  if (tensor->agreement.declared) {
    slots_->Remove(generation_, *tensor);
    reports_->Send(report::Undeclare(generation_, name));
  }
  if (instances.empty()) {
    by_name_.erase(name);
  } else {
    DeclareFront(name);
  }
}

void TensorTable::DeclareAgain() const {
  for (const auto& [name, instances] : by_name_) {
    if (instances.empty()) continue;
    const NodeTensor& front = *instances.front();
    if (!front.agreement.declared || front.planned() || !front.error.ok()) continue;
    reports_->Send(report::Declare(generation_, DescriptorOf(front.shape, nodes_), front.number));
  }
}

TensorTable::Shared TensorTable::ByNumber(uint32_t number) const {
  const auto it = by_number_.find(number);
  return it == by_number_.end() ? nullptr : it->second;
}

TensorTable::Shared TensorTable::ByName(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() || it->second.empty() ? nullptr : it->second.front();
}

TensorTable::Shared TensorTable::ById(TensorId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

absl::Status TensorTable::FirstError() const {
  for (const auto& [number, tensor] : by_number_) {
    if (!tensor->error.ok() && tensor->error_code != ADDEND_ERROR_PEER_LOST) return tensor->error;
  }
  return absl::OkStatus();
}

std::vector<TensorTable::Shared> TensorTable::InOrder() const {
  std::vector<Shared> tensors;
  tensors.reserve(by_id_.size());
  for (const auto& [id, tensor] : by_id_) tensors.push_back(tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const Shared& a, const Shared& b) { return a->id < b->id; });
  return tensors;
}

}  // namespace addend
