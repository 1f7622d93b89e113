// The declarations of nodes.
#include "services/scheduler/declarations.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "services/scheduler/updates.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

}  // namespace

void Declarations::Declare(NodeId node, const v1::TensorDescriptor& descriptor,
                           const PartitionSize& size) {
  const absl::Status valid = CheckDescriptor(descriptor, size);
  if (!valid.ok()) {
    return SendError(node,
                     TensorErrorOf(descriptor.name(), FailureKind::kMismatch, Message(valid)));
  }
  using Kind = Agreements::Declared::Kind;
  const Agreements::Declared declared =
      job_.current.tensors.Declare(job_.name, node, descriptor, &job_.next_agreement);
  if (declared.kind == Kind::kRepeated) return Repeat(node, *declared.tensor, descriptor);
  if (declared.kind == Kind::kNoRoom) {
    return SendError(
        node, TensorErrorOf(descriptor.name(), FailureKind::kResources, Message(declared.why)));
  }
  if (declared.created) scope_.changes.Store(job_.id);  // the next agreement's number
  scope_.changes.StoreAgreement(job_.id, declared.tensor->agreement);
  if (declared.tensor->stage == Stages::REFUSED) {
    SendError(node, declared.tensor->error);
  } else if (declared.front) {
    Evaluate(declared.tensor);
  }
}

// Answers a declaration that was taken before, for the node that has repeated it.
void Declarations::Repeat(NodeId node, const DeclaredTensor& tensor,
                          const v1::TensorDescriptor& descriptor) {
  if (tensor.stage == Stages::REFUSED) {
    SendError(node, tensor.error);
  } else if (!Agree(tensor.descriptor, descriptor)) {
    SendError(node, TensorErrorOf(
                        tensor.descriptor.name(), FailureKind::kMismatch,
                        absl::StrFormat("tensor '%s' is declared as %s by node %d, but node %d "
                                        "has declared it as %s before: undeclare it first",
                                        tensor.descriptor.name(), Describe(descriptor),
                                        node.value(), node.value(), Describe(tensor.descriptor))));
  } else if (tensor.stage == Stages::PLANNED && tensor.recovering.empty()) {
    v1::NodeUpdate& update = scope_.changes.Single(job_.id, node);
    FillServers(job_, scope_.fleet, &update);
    *update.add_tensors() = PlanForNodes(job_, tensor);
  }
}

// Takes the front agreement on a name a step further, if it can go.
void Declarations::Evaluate(DeclaredTensor* tensor) {
  switch (Agreements::Judge(*tensor, job_.AllIn(tensor->declared))) {
    case Agreements::Verdict::kWaits:
      return;
    case Agreements::Verdict::kAgreed:
      return ready_.push_back(tensor->agreement);
    case Agreements::Verdict::kDiffers:
      break;
  }
  placement_.Refuse(
      tensor, FailureKind::kMismatch,
      absl::StrFormat("tensor '%s' is declared as %s by node %d but as %s by node %d: all "
                      "ranks must declare the same",
                      tensor->descriptor.name(), Describe(tensor->descriptor),
                      tensor->first_node.value(), Describe(*tensor->differing),
                      tensor->differing_node.value()));
}

void Declarations::Undeclare(NodeId node, const std::string& name) {
  DeclaredTensor* const tensor = job_.current.tensors.Undeclare(node, name);
  if (tensor == nullptr) return;
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  if (job_.AllIn(tensor->undeclared)) Remove(tensor->agreement);
}

// All nodes have undeclared the tensor, so it is the front agreement on its name: the next follows.
void Declarations::Remove(uint64_t agreement) {
  DeclaredTensor& tensor = job_.current.tensors.at(agreement);
  if (tensor.stage == Stages::PLANNED) {
    scope_.changes.Broadcast(job_.id).add_removed(tensor.plan.tensor_id());
  }
  if (tensor.stage == Stages::PLANNED || tensor.stage == Stages::RESERVING) {
    ledger_.Remove(&tensor, {});
  }
  std::erase(ready_, agreement);
  scope_.changes.DeleteAgreement(job_.id, agreement);
  job_.current.departures.Forget(tensor.descriptor.name());
  DeclaredTensor* const next = job_.current.tensors.Remove(agreement);
  if (next != nullptr) Evaluate(next);
}

void Declarations::GoOnWithout() {
  std::vector<uint64_t> undeclared;
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    if (job_.AllIn(tensor.undeclared)) undeclared.push_back(agreement);
  }
  for (const uint64_t agreement : undeclared) Remove(agreement);
  for (auto& [agreement, tensor] : job_.current.tensors) {
    if (job_.current.tensors.Front(tensor.descriptor.name()) == &tensor) Evaluate(&tensor);
  }
  std::sort(ready_.begin(), ready_.end());
  ready_.erase(std::unique(ready_.begin(), ready_.end()), ready_.end());
}

void Declarations::Plan() { placement_.PlanAll(ready_); }

}  // namespace addend
