// The reader: the only thread of a context that receives the agent's messages.
#include <pthread.h>
#include <signal.h>

#include <utility>

#include "lib/client/context.h"
#include "lib/client/copy.h"
#include "lib/client/messages.h"

namespace addend::client {

void Context::StartReader() {
  // The caller's threads handle signals: Python's handlers and a debugger rely on it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  reader_ = std::thread([this] { Read(); });
  pthread_setname_np(reader_.native_handle(), "addend-reader");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Context::Read() {
  for (;;) {
    Packet packet;
    AgentSocket::Event event;
    Error error = socket_->Receive(-1, &packet, &event);
    if (error.ok() && event == AgentSocket::Event::kWoken) return;
    if (error.ok() && event == AgentSocket::Event::kClosed) {
      error = MakeError(ADDEND_ERROR_PEER_LOST,
                        "the agent at %s closed the connection without a reason: it died or was "
                        "killed; its log says more",
                        socket_->path().c_str());
    }
    if (error.ok()) error = OnPacket(std::move(packet));
    if (!error.ok()) {
      FailJob(error);
      return;
    }
  }
}

Error Context::OnPacket(Packet packet) {
  switch (packet.message.type) {
    case ipc::Type::kDeclared:
      return OnDeclared(std::move(packet));
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
      return device_rounds_.OnGroup(packet.Decode<ipc::GroupMessage>());
    case ipc::Type::kGroupId:
      device_rounds_.OnGroupId(packet.Decode<ipc::GroupIdMessage>());
      return {};
    case ipc::Type::kAttached:
      return OnAttached(packet);
    case ipc::Type::kDirect:
      device_rounds_.OnNotDirect();
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
                       socket_->path().c_str(), static_cast<unsigned>(packet.message.type));
  }
}

Error Context::MapSegments(const Packet& packet, Tensor* tensor) {
  if (packet.fds.size() != 2) {
    return MakeError(ADDEND_ERROR_RESOURCES,
                     "received %zu of the 2 descriptors of tensor \"%s\"; raise this process's "
                     "limit of open files (ulimit -n)",
                     packet.fds.size(), tensor->name.c_str());
  }
  const std::string what = "tensor \"" + tensor->name + "\"";
  const size_t slot_bytes = ipc::SlotBytes(tensor->bytes);
  Error error = Segment::Map(packet.fds[0].get(), slot_bytes, Segment::Access::kReadWrite, what,
                             &tensor->contribution);
  if (!error.ok()) return error;
  return Segment::Map(packet.fds[1].get(), 2 * slot_bytes, Segment::Access::kReadOnly, what,
                      &tensor->results);
}

Error Context::OnDeclared(Packet packet) {
  const auto message = packet.Decode<ipc::DeclaredMessage>();
  Lock lock(mu_);
  const auto found = by_request_.find(message.request);
  if (found == by_request_.end()) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s answered a declaration nobody made",
                     socket_->path().c_str());
  }
  const std::shared_ptr<Tensor> tensor = found->second;
  by_request_.erase(found);
  lock.unlock();
  Error refusal = message.code != 0 ? FromAgent(message.code, message.reason)
                                    : MapSegments(packet, tensor.get());
  lock.lock();
  tensor->number = message.tensor;
  tensor->declared = true;
  if (refusal.ok()) {
    by_number_[tensor->number] = tensor;
  } else {
    tensor->refusal = std::move(refusal);
    by_name_.erase(tensor->name);  // the name may be declared again
  }
  declared_.notify_all();
  return {};
}

Error Context::OnResult(const Packet& packet) {
  const auto message = packet.Decode<ipc::ResultMessage>();
  Lock lock(mu_);
  const auto found = by_number_.find(message.tensor);
  if (found == by_number_.end() || found->second->pending.empty() ||
      found->second->pending.front()->round != message.round || message.round == 0) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s sent a result of tensor number %u, round %llu, which is not "
                     "under way",
                     socket_->path().c_str(), message.tensor,
                     static_cast<unsigned long long>(message.round));
  }
  const std::shared_ptr<Tensor> tensor = found->second;
  const std::shared_ptr<Operation> operation = tensor->pending.front();
  Error error;
  if (message.code != 0) {
    error = FromAgent(message.code, message.reason);
  } else if (operation->on_device != nullptr && !operation->enqueued) {
    error = MakeError(ADDEND_ERROR_INTERNAL,
                      "the agent at %s sent the end of a result of which parts are missing",
                      socket_->path().c_str());
  } else {
    operation->result =
        tensor->results->data() + (message.round & 1) * ipc::SlotBytes(tensor->bytes);
    void* const out = operation->out;
    if (out != nullptr && tensor->bytes > 0) {
      operation->copying_out = true;
      lock.unlock();
      Stage(out, operation->result, tensor->bytes);
      copied_out_bytes_.fetch_add(tensor->bytes, std::memory_order_relaxed);
      lock.lock();
      operation->copying_out = false;
    }
  }
  rounds_.fetch_add(1, std::memory_order_relaxed);
  tensor->pending.pop_front();
  const std::shared_ptr<Operation> next =
      tensor->pending.empty() ? nullptr : tensor->pending.front();
  End(lock, operation, std::move(error));
  lock.unlock();
  if (next != nullptr) StartPush(next);
  return {};
}

Error Context::OnAttached(const Packet& packet) {
  std::shared_ptr<Tensor> tensor;
  {
    const Lock lock(mu_);
    const auto found = by_number_.find(packet.Decode<ipc::AttachedMessage>().tensor);
    if (found == by_number_.end()) return {};  // the tensor has been undeclared since
    tensor = found->second;
  }
  return device_rounds_.OnAttached(tensor.get(), packet.fds);
}

// Finds the GPU operation that is under way with this tensor and round.
Error Context::FindOnDevice(uint32_t tensor, uint64_t round,
                            std::shared_ptr<Operation>* operation) {
  const Lock lock(mu_);
  const auto found = by_number_.find(tensor);
  if (found != by_number_.end() && !found->second->pending.empty()) {
    *operation = found->second->pending.front();
    if ((*operation)->on_device != nullptr && (*operation)->round == round && round != 0) {
      return {};
    }
  }
  return MakeError(ADDEND_ERROR_INTERNAL,
                   "the agent at %s spoke of tensor number %u, round %llu, which is not under way "
                   "on this rank's GPU",
                   socket_->path().c_str(), tensor, static_cast<unsigned long long>(round));
}

Error Context::OnDevicePacket(const Packet& packet) {
  std::shared_ptr<Operation> operation;
  if (packet.message.type == ipc::Type::kContribute) {
    const auto message = packet.Decode<ipc::ContributeMessage>();
    Error error = FindOnDevice(message.tensor, message.round, &operation);
    return error.ok() ? device_rounds_.OnContribute(operation.get(), message) : error;
  }
  if (packet.message.type == ipc::Type::kFetch) {
    const auto message = packet.Decode<ipc::FetchMessage>();
    Error error = FindOnDevice(message.range.tensor, message.range.round, &operation);
    return error.ok() ? device_rounds_.OnFetch(operation.get(), message) : error;
  }
  const auto message = packet.Decode<ipc::ArrivedMessage>();
  Error error = FindOnDevice(message.range.tensor, message.range.round, &operation);
  return error.ok() ? device_rounds_.OnArrived(operation.get(), message) : error;
}

void Context::FailJob(const Error& error) {
  const Lock lock(mu_);
  if (!failure_.ok()) return;
  failure_ = error;
  if (!shut_) device_rounds_.End(error);
  EndAll(lock, error);
}

}  // namespace addend::client
