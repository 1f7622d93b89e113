// The declarations of a job's nodes.
#include "services/scheduler/agreements.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

uint64_t TextBytes(const v1::TensorDescriptor& descriptor) {
  return descriptor.name().size() + descriptor.participants().size();
}

}  // namespace

v1::TensorError TensorErrorOf(const std::string& name, FailureKind kind, std::string message) {
  ToldFailure told = TellFailure(kind);
  v1::TensorError error;
  error.set_name(name);
  error.set_kind(std::move(told.name));
  error.set_exit_code(told.exit_status);
  error.set_message(std::move(message));
  return error;
}

bool Agree(const v1::TensorDescriptor& a, const v1::TensorDescriptor& b) {
  const auto tree = [](const v1::TensorDescriptor& d) -> std::string_view {
    return d.reduction_tree().empty() ? std::string_view("flat") : d.reduction_tree();
  };
  return a.dtype() == b.dtype() && a.op() == b.op() && tree(a) == tree(b) &&
         a.participants() == b.participants() &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

Agreements::Declared Agreements::Declare(const std::string& job, NodeId node,
                                         const v1::TensorDescriptor& descriptor,
                                         const Participants& participants,
                                         uint64_t* next_agreement) {
  std::deque<uint64_t>& queue = by_name_[descriptor.name()];
  // The node's position in the queue: behind the last agreement in which it has taken part.
  size_t position = queue.size();
  while (position > 0 && !tensors_.at(queue[position - 1]).declared.Contains(node)) --position;
  Declared result;
  if (position > 0) {
    DeclaredTensor& last = tensors_.at(queue[position - 1]);
    // The first answer was lost, or the node has not undeclared the tensor.
    if (!last.undeclared.Contains(node)) {
      result.kind = Declared::Kind::kRepeated;
      result.tensor = &last;
      return result;
    }
  }
  if (position == queue.size()) {
    result.why = CheckRoom(job, descriptor);
    if (!result.why.ok()) {
      if (queue.empty()) by_name_.erase(descriptor.name());
      result.kind = Declared::Kind::kNoRoom;
      return result;
    }
    DeclaredTensor tensor;
    tensor.agreement = (*next_agreement)++;
    tensor.descriptor = descriptor;
    tensor.participants = participants;
    tensor.first_node = node;
    queue.push_back(tensor.agreement);
    name_bytes_ += TextBytes(descriptor);
    tensors_.emplace(tensor.agreement, std::move(tensor));
    result.created = true;
  }
  DeclaredTensor& tensor = tensors_.at(queue[position]);
  const bool agreed = tensor.stage == Stages::RESERVING || tensor.stage == Stages::PLANNED;
  if (agreed && !Agree(tensor.descriptor, descriptor)) {
    result.kind = Declared::Kind::kLate;
    result.tensor = &tensor;
    return result;
  }
  tensor.declared.Insert(node);
  if (!tensor.differing && !Agree(tensor.descriptor, descriptor)) {
    tensor.differing = descriptor;
    tensor.participants = tensor.participants.UnitedWith(participants);
    tensor.nodes = 0;
    tensor.differing_node = node;
  }
  result.tensor = &tensor;
  result.front = position == 0;
  return result;
}

absl::Status Agreements::CheckRoom(const std::string& job,
                                   const v1::TensorDescriptor& descriptor) const {
  const std::string& name = descriptor.name();
  if (tensors_.size() >= kMaxTensors) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("tensor '%s' cannot be declared: job '%s' has %d tensors, and may have no "
                        "more; undeclare those that are not needed",
                        name, job, tensors_.size()));
  }
  if (TextBytes(descriptor) >
      kMaxJobsTensorNameBytes - std::min(kMaxJobsTensorNameBytes, name_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' cannot be declared: the names of job '%s''s tensors, and the lists of their "
        "ranks, have %d bytes together, and may have at most %d; give its tensors shorter names",
        name, job, name_bytes_, kMaxJobsTensorNameBytes));
  }
  return absl::OkStatus();
}

DeclaredTensor* Agreements::Undeclare(NodeId node, const std::string& name) {
  const auto queue = by_name_.find(name);
  if (queue == by_name_.end()) return nullptr;
  for (const uint64_t agreement : queue->second) {
    DeclaredTensor& tensor = tensors_.at(agreement);
    if (tensor.declared.Contains(node) && tensor.undeclared.Insert(node)) return &tensor;
  }
  return nullptr;
}

DeclaredTensor* Agreements::Remove(uint64_t agreement) {
  const std::string name = tensors_.at(agreement).descriptor.name();
  name_bytes_ -= TextBytes(tensors_.at(agreement).descriptor);
  tensors_.erase(agreement);
  const auto queue = by_name_.find(name);
  queue->second.pop_front();
  if (!queue->second.empty()) return &tensors_.at(queue->second.front());
  by_name_.erase(queue);
  return nullptr;
}

Agreements::Verdict Agreements::Judge(const DeclaredTensor& tensor, bool all_declared) {
  if (tensor.stage != Stages::COLLECTING) return Verdict::kWaits;
  if (tensor.differing) return Verdict::kDiffers;
  return all_declared ? Verdict::kAgreed : Verdict::kWaits;
}

void Agreements::Restore(DeclaredTensor tensor) {
  by_name_[tensor.descriptor.name()].push_back(tensor.agreement);
  name_bytes_ += TextBytes(tensor.descriptor);
  tensors_.emplace(tensor.agreement, std::move(tensor));
}

void Agreements::SetId(DeclaredTensor* tensor, TensorId id) {
  tensor->plan.set_tensor_id(id.value());
  by_id_[id.value()] = tensor->agreement;
}

void Agreements::ClearId(const DeclaredTensor& tensor) { by_id_.erase(tensor.plan.tensor_id()); }

DeclaredTensor* Agreements::Find(uint64_t agreement) {
  const auto found = tensors_.find(agreement);
  return found == tensors_.end() ? nullptr : &found->second;
}

DeclaredTensor* Agreements::Find(TensorId id) {
  const auto found = by_id_.find(id.value());
  return found == by_id_.end() ? nullptr : &tensors_.at(found->second);
}

const DeclaredTensor* Agreements::Front(const std::string& name) const {
  const auto queue = by_name_.find(name);
  return queue == by_name_.end() ? nullptr : &tensors_.at(queue->second.front());
}

const DeclaredTensor* Agreements::Last(const std::string& name) const {
  const auto queue = by_name_.find(name);
  return queue == by_name_.end() ? nullptr : &tensors_.at(queue->second.back());
}

}  // namespace addend
