// The meaning of each message: errors of a tensor go to its declaration or its round, all others
// end the job.
#include "lib/client/reader.h"

#include <utility>

#include "lib/client/messages.h"
#include "lib/client/segment.h"

namespace addend::client {
namespace {

Error MapSegments(const Packet& packet, Tensor* tensor) {
  if (packet.fds.size() != 2) {
    return MakeError(ADDEND_ERROR_RESOURCES,
                     "received %zu of the 2 descriptors of tensor \"%s\"; raise this process's "
                     "limit of open files (ulimit -n)",
                     packet.fds.size(), tensor->name.c_str());
  }
  const std::string what = "tensor \"" + tensor->name + "\"";
  const size_t slot_bytes = ipc::SlotBytes(tensor->bytes);
  Error error = Segment::Map(packet.fds[0].get(), slot_bytes, Segment::Access::kReadWrite, what,
                             &tensor->contribution, ipc::kGuardBytes);
  if (!error.ok()) return error;
  return Segment::Map(packet.fds[1].get(), 2 * slot_bytes, Segment::Access::kReadOnly, what,
                      &tensor->results);
}

}  // namespace

AgentReader::AgentReader(std::string agent, int32_t nodes, ReceiveFn receive,
                         Operations* operations, DeviceRounds* device_rounds)
    : agent_(std::move(agent)),
      receive_(std::move(receive)),
      operations_(operations),
      device_rounds_(device_rounds),
      nodes_present_(nodes) {}

Reading::Step AgentReader::Deliver() {
  Packet packet;
  AgentSocket::Event event;
  Error error = receive_(&packet, &event);
  if (error.ok() && event == AgentSocket::Event::kTimeout) return Reading::Step::kNothing;
  if (error.ok() && event == AgentSocket::Event::kWoken) return Reading::Step::kOver;
  if (error.ok() && event == AgentSocket::Event::kClosed) {
    error = MakeError(ADDEND_ERROR_PEER_LOST,
                      "the agent at %s closed the connection without a reason: it died or was "
                      "killed; its log says more",
                      agent_.c_str());
  }
  if (error.ok()) error = OnPacket(packet);
  if (error.ok()) return Reading::Step::kDelivered;
  operations_->Fail(error);
  return Reading::Step::kOver;
}

Error AgentReader::OnPacket(const Packet& packet) {
  switch (packet.message.type) {
    case ipc::Type::kDeclared:
      return OnDeclared(packet);
    case ipc::Type::kResult:
      return OnResult(packet);
    case ipc::Type::kProgress:
      progress_.Print(packet.Decode<ipc::ProgressMessage>().text);
      return {};
    case ipc::Type::kMembers: {
      const auto members = packet.Decode<ipc::MembersMessage>();
      nodes_present_ = members.nodes;
      nodes_waiting_ = members.waiting;
      return {};
    }
    case ipc::Type::kGroup:
      return device_rounds_->OnGroup(packet.Decode<ipc::GroupMessage>());
    case ipc::Type::kGroupId:
      device_rounds_->OnGroupId(packet.Decode<ipc::GroupIdMessage>());
      return {};
    case ipc::Type::kAttached:
      return OnAttached(packet);
    case ipc::Type::kDirect:
      device_rounds_->OnNotDirect();
      return {};
    case ipc::Type::kContribute:
    case ipc::Type::kFetch:
    case ipc::Type::kArrived:
      return OnDevicePacket(packet);
    case ipc::Type::kFailure: {
      const auto failure = packet.Decode<ipc::FailureMessage>();
      return FromAgent(failure.code, failure.reason);
    }
    default:
      return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s sent a message of unknown type %u",
                       agent_.c_str(), static_cast<unsigned>(packet.message.type));
  }
}

Error AgentReader::OnDeclared(const Packet& packet) {
  const auto message = packet.Decode<ipc::DeclaredMessage>();
  const std::shared_ptr<Tensor> tensor = operations_->TakeDeclared(message.request);
  if (tensor == nullptr) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s answered a declaration nobody made",
                     agent_.c_str());
  }
  Error refusal = message.code != 0 ? FromAgent(message.code, message.reason)
                                    : MapSegments(packet, tensor.get());
  operations_->EndDeclaration(tensor, message.tensor, std::move(refusal));
  return {};
}

Error AgentReader::OnResult(const Packet& packet) {
  const auto message = packet.Decode<ipc::ResultMessage>();
  Error outcome = message.code != 0 ? FromAgent(message.code, message.reason) : Error{};
  return operations_->EndRound(message.tensor, message.round, std::move(outcome));
}

Error AgentReader::OnAttached(const Packet& packet) {
  const auto message = packet.Decode<ipc::AttachedMessage>();
  const std::shared_ptr<Tensor> tensor = operations_->Find(message.tensor);
  if (tensor == nullptr) return {};  // the tensor has been undeclared since
  return device_rounds_->OnAttached(tensor.get(), packet.fds);
}

// Finds the GPU operation that is under way with this tensor and round.
Error AgentReader::FindOnDevice(uint32_t tensor, uint64_t round,
                                std::shared_ptr<Operation>* operation) const {
  *operation = operations_->FindUnderWay(tensor, round);
  if (*operation != nullptr && (*operation)->on_device != nullptr) return {};
  return MakeError(ADDEND_ERROR_INTERNAL,
                   "the agent at %s spoke of tensor number %u, round %llu, which is not under way "
                   "on this rank's GPU",
                   agent_.c_str(), tensor, static_cast<unsigned long long>(round));
}

Error AgentReader::OnDevicePacket(const Packet& packet) {
  std::shared_ptr<Operation> operation;
  if (packet.message.type == ipc::Type::kContribute) {
    const auto message = packet.Decode<ipc::ContributeMessage>();
    Error error = FindOnDevice(message.tensor, message.round, &operation);
    return error.ok() ? device_rounds_->OnContribute(operation.get(), message) : error;
  }
  if (packet.message.type == ipc::Type::kFetch) {
    const auto message = packet.Decode<ipc::FetchMessage>();
    Error error = FindOnDevice(message.range.tensor, message.range.round, &operation);
    return error.ok() ? device_rounds_->OnFetch(operation.get(), message) : error;
  }
  const auto message = packet.Decode<ipc::ArrivedMessage>();
  Error error = FindOnDevice(message.range.tensor, message.range.round, &operation);
  return error.ok() ? device_rounds_->OnArrived(operation.get(), message) : error;
}

}  // namespace addend::client
