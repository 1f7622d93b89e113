// The reader: the one thread of a context that receives what the agent says.
#include <pthread.h>
#include <signal.h>

#include <utility>

#include "lib/client/context.h"
#include "lib/client/copy.h"
#include "lib/client/ipc.h"

namespace addend::client {

void Context::StartReader() {
  // Signals are for the caller's threads: Python's handlers and a debugger rely on it.
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
      progress_.Print(packet.text);
      return {};
    case ipc::Type::kMembers:
      nodes_present_ = packet.message.num_nodes;
      nodes_waiting_ = packet.message.size;
      return {};
    case ipc::Type::kGroup:
      return OnGroup(packet);
    case ipc::Type::kGroupId:
      return OnGroupId(packet);
    case ipc::Type::kAttached:
      return OnAttached(packet);
    case ipc::Type::kContribute:
      return OnContribute(packet);
    case ipc::Type::kDirect:
      direct_ = false;
      return {};
    case ipc::Type::kFetch:
      return OnFetch(packet);
    case ipc::Type::kArrived:
      return OnArrived(packet);
    case ipc::Type::kFailure:
      return FromAgent(packet.message.code, packet.text);
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
  Lock lock(mu_);
  const auto found = by_request_.find(packet.message.request);
  if (found == by_request_.end()) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s answered a declaration nobody made",
                     socket_->path().c_str());
  }
  const std::shared_ptr<Tensor> tensor = found->second;
  by_request_.erase(found);
  lock.unlock();
  Error refusal = packet.message.code != 0 ? FromAgent(packet.message.code, packet.text)
                                           : MapSegments(packet, tensor.get());
  lock.lock();
  tensor->number = packet.message.tensor;
  tensor->declared = true;
  if (refusal.ok()) {
    by_number_[tensor->number] = tensor;
  } else {
    tensor->refusal = std::move(refusal);
    by_name_.erase(tensor->name);  // the name may be tried again
  }
  declared_.notify_all();
  return {};
}

Error Context::OnResult(const Packet& packet) {
  const ipc::Message& message = packet.message;
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
    error = FromAgent(message.code, packet.text);
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

void Context::FailJob(const Error& error) {
  const Lock lock(mu_);
  if (!failure_.ok()) return;
  failure_ = error;
  EndAll(lock, error);
}

}  // namespace addend::client
