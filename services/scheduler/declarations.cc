// The declarations of nodes.
#include "services/scheduler/declarations.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "services/scheduler/job_servers.h"
#include "services/scheduler/updates.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

std::string Differs(const DeclaredTensor& tensor, const v1::TensorDescriptor& other, NodeId node) {
  return absl::StrFormat(
      "tensor '%s' is declared as %s by node %d but as %s by node %d: all ranks must declare the "
      "same",
      tensor.descriptor.name(), Describe(tensor.descriptor), tensor.first_node.value(),
      Describe(other), node.value());
}

}  // namespace

void Declarations::Declare(NodeId node, const v1::TensorDescriptor& descriptor, uint32_t number) {
  const auto answer = [&](v1::TensorError error) {
    error.set_number(number);
    *scope_.changes.Single(job_.id, node).add_errors() = std::move(error);
  };
  const absl::StatusOr<Participants> participants = Check(node, descriptor);
  if (!participants.ok()) {
    return answer(
        TensorErrorOf(descriptor.name(), FailureKind::kMismatch, Message(participants.status())));
  }
  using Kind = Agreements::Declared::Kind;
  const Agreements::Declared declared = job_.current.tensors.Declare(
      job_.name, node, descriptor, *participants, &job_.next_agreement);
  if (declared.kind == Kind::kRepeated) {
    if (declared.tensor->stage == Stages::REFUSED) return answer(declared.tensor->error);
    return Repeat(node, declared.tensor, descriptor, *participants);
  }
  if (declared.kind == Kind::kNoRoom) {
    return answer(TensorErrorOf(descriptor.name(), FailureKind::kResources, Message(declared.why)));
  }
  if (declared.kind == Kind::kLate) {
    return answer(TensorErrorOf(descriptor.name(), FailureKind::kMismatch,
                                Differs(*declared.tensor, descriptor, node)));
  }
  if (declared.created) scope_.changes.Store(job_.id);  // the next agreement's number
  job_.CountNodes(declared.tensor);
  // Not with every node that declares the same: to a scheduler that is started again, nodes declare
  // again what has no plan yet.
  const bool told_again =
      declared.tensor->stage == Stages::COLLECTING && !declared.tensor->differing;
  if (declared.created || !told_again) {
    scope_.changes.StoreAgreement(job_.id, declared.tensor->agreement);
  }
  if (declared.tensor->stage == Stages::REFUSED) {
    answer(declared.tensor->error);
  } else if (declared.front) {
    Evaluate(declared.tensor);
  }
}

// What another node has declared alike has been checked.
absl::StatusOr<Participants> Declarations::Check(NodeId node,
                                                 const v1::TensorDescriptor& descriptor) {
  const DeclaredTensor* const last = job_.current.tensors.Last(descriptor.name());
  if (last == nullptr || !Agree(last->descriptor, descriptor)) {
    if (!partition_size_) partition_size_ = PartitionSizeOf(job_, scope_.fleet);
    ADDEND_RETURN_IF_ERROR(CheckDescriptor(descriptor, *partition_size_));
    ADDEND_RETURN_IF_ERROR(CheckNumerics(descriptor, job_.settings.num_nodes()));
    if (IsLossy(descriptor)) job_.current.lossy = true;
  }
  ADDEND_ASSIGN_OR_RETURN(Participants participants, job_.ParticipantsOf(descriptor));
  if (!job_.IsAmong(node, participants) || participants.bits() != descriptor.participants()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s' of %s cannot be declared by node %d, which has none of them",
                        descriptor.name(), participants.Text(), node.value()));
  }
  return participants;
}

// A declaration that was taken before. A node whose ranks differ declares both, so that all nodes
// hear of it.
void Declarations::Repeat(NodeId node, DeclaredTensor* tensor,
                          const v1::TensorDescriptor& descriptor,
                          const Participants& participants) {
  if (!Agree(tensor->descriptor, descriptor)) {
    if (job_.current.tensors.Front(tensor->descriptor.name()) != tensor) {
      // Other nodes still have the former tensor of the name, and hear of this tensor after it.
      if (!tensor->differing) TakeDiffering(node, tensor, descriptor, participants);
      return;
    }
    Fail(tensor, absl::StrFormat("tensor '%s' is declared as %s and as %s by ranks of node %d: all "
                                 "ranks must declare the same",
                                 tensor->descriptor.name(), Describe(tensor->descriptor),
                                 Describe(descriptor), node.value()));
    if (tensor->stage == Stages::REFUSED) TakeDiffering(node, tensor, descriptor, participants);
  } else if (tensor->stage == Stages::PLANNED && tensor->recovering.empty()) {
    scope_.changes.TellServers(job_.id, node);
    *scope_.changes.Single(job_.id, node).add_tensors() = PlanForNodes(job_, *tensor);
  }
}

void Declarations::TakeDiffering(NodeId node, DeclaredTensor* tensor,
                                 const v1::TensorDescriptor& descriptor,
                                 const Participants& participants) {
  tensor->differing = descriptor;
  tensor->differing_node = node;
  tensor->participants = tensor->participants.UnitedWith(participants);
  job_.CountNodes(tensor);
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
}

// A mismatch, also of a tensor that is in use. A plan that the nodes do not know yet is given up:
// it would follow the refusal, and be taken for the next tensor of the name.
void Declarations::Fail(DeclaredTensor* tensor, const std::string& message) {
  if (tensor->stage == Stages::PLANNED) {
    v1::TensorError* const error = scope_.changes.Broadcast(job_.id).add_errors();
    *error = TensorErrorOf(tensor->descriptor.name(), FailureKind::kMismatch, message);
    error->set_tensor_id(tensor->plan.tensor_id());
    return;
  }
  std::erase(ready_, tensor->agreement);
  if (tensor->stage == Stages::RESERVING) ledger_.Remove(tensor, {});
  placement_.Refuse(tensor, FailureKind::kMismatch, message);
}

// Takes the front agreement on a name a step further, if it can go.
void Declarations::Evaluate(DeclaredTensor* tensor) {
  switch (Agreements::Judge(*tensor, job_.AllIn(tensor->declared, *tensor))) {
    case Agreements::Verdict::kWaits:
      return;
    case Agreements::Verdict::kAgreed:
      return ready_.push_back(tensor->agreement);
    case Agreements::Verdict::kDiffers:
      break;
  }
  placement_.Refuse(tensor, FailureKind::kMismatch,
                    Differs(*tensor, *tensor->differing, tensor->differing_node));
}

void Declarations::Undeclare(NodeId node, const std::string& name) {
  DeclaredTensor* const tensor = job_.current.tensors.Undeclare(node, name);
  if (tensor == nullptr) return;
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  if (job_.AllIn(tensor->undeclared, *tensor)) Remove(tensor->agreement);
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

void Declarations::RefuseClash(const Standstill::Clash& clash) {
  for (const std::string& name : {clash.first, clash.second}) {
    const DeclaredTensor* const front = job_.current.tensors.Front(name);
    if (front == nullptr) continue;
    Fail(&job_.current.tensors.at(front->agreement), clash.message);
  }
}

void Declarations::GoOnWithout() {
  std::vector<uint64_t> undeclared;
  for (const auto& [agreement, tensor] : job_.current.tensors) {
    if (job_.AllIn(tensor.undeclared, tensor)) undeclared.push_back(agreement);
  }
  for (const uint64_t agreement : undeclared) Remove(agreement);
  for (auto& [agreement, tensor] : job_.current.tensors) {
    if (job_.current.tensors.Front(tensor.descriptor.name()) == &tensor) Evaluate(&tensor);
  }
  std::sort(ready_.begin(), ready_.end());
  ready_.erase(std::unique(ready_.begin(), ready_.end()), ready_.end());
}

void Declarations::GoOnWithServers() {
  auto& due = job_.current.servers_due;
  if (!due.until) return;
  const bool over = scope_.changes.now() >= *due.until;
  if (over) due.until.reset();
  if (!due.awaited) return;
  const std::vector<const Server*> servers = EligibleServers(job_, scope_.fleet);
  const bool one_is_there = std::any_of(servers.begin(), servers.end(),
                                        [](const Server* server) { return !server->draining; });
  if (!over && !one_is_there) return;
  due.awaited = false;
  GoOnWithout();
  Plan();
}

void Declarations::Plan() { placement_.PlanAll(ready_); }

}  // namespace addend
