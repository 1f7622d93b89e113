// Joins the parts of a client, and ends them in the order of their dependencies.
#include "lib/client/context.h"

#include <utility>

#include "lib/client/messages.h"
#include "lib/client/objects.h"

namespace addend::client {
namespace {

constexpr int kFlushMs = 1000;

}  // namespace

Context::Context(std::unique_ptr<AgentSocket> socket, const Place& place, const Settings& settings)
    : socket_(std::move(socket)),
      place_(place),
      device_rounds_(
          socket_->path(),
          [this](const ipc::Encoded& message, GuardedFd fd) {
            socket_->Send(message, std::move(fd));
          },
          [this](const Error& error) { operations_.Fail(error); }),
      operations_(
          socket_->path(), CopyAtRate(settings.staging_bytes_per_s),
          [this](const ipc::Encoded& message) { socket_->Send(message); }, &device_rounds_),
      reader_(
          socket_->path(), place.num_nodes / place.nodes_per_agent,
          [this](Packet* packet, AgentSocket::Event* event) {
            return socket_->TryReceive(packet, event);
          },
          &operations_, &device_rounds_),
      reading_({.deliver = [this] { return reader_.Deliver(); },
                .await = [this](int timeout_ms) { socket_->Await(timeout_ms); }},
               settings.most_spin) {
  operations_.DeliverBy(&reading_);
}

Context::~Context() { Shutdown(); }

Error Context::Open(const Settings& settings, std::shared_ptr<Context>* context) {
  std::unique_ptr<AgentSocket> socket;
  Place place;
  const Error error = JoinJob(settings, &socket, &place);
  if (!error.ok()) return error;
  context->reset(new Context(std::move(socket), place, settings));
  (*context)->reading_.Start();
  return {};
}

Error Context::PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                              int32_t priority, std::shared_ptr<Operation>* operation) {
  if (!tensor->participants.all()) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "tensor \"%s\" of %s cannot be pushed from a GPU: push it from host memory",
                     tensor->name.c_str(), tensor->participants.Text().c_str());
  }
  reading_.KeepToThread();  // a GPU's work goes on while nobody waits
  void* const here = tensor->contribution->data();
  if (tensor->bytes == 0) {  // an empty tensor needs no work on the GPU
    return operations_.Push(tensor, memory.in == nullptr ? nullptr : here, nullptr, priority,
                            operation);
  }
  auto made = std::make_shared<Operation>();
  made->tensor = tensor;
  made->in = here;
  made->empty = memory.in == nullptr;
  made->priority = priority;
  Error error = device_rounds_.Begin(tensor, memory, Objects::Get().NewId(), made.get());
  if (error.ok()) error = operations_.Enqueue(made);
  if (error.ok()) *operation = std::move(made);
  return error;
}

Error Context::WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s,
                            void* stream) {
  Error error = operations_.Wait(operation, timeout_s);
  if (!error.ok() || operation->on_device == nullptr) return error;
  return operation->tensor->device->WaitOn(operation->on_device.get(), stream);
}

void Context::Shutdown() {
  if (!operations_.Close()) return;
  socket_->Wake();
  reading_.Join();
  device_rounds_.Detach();
  socket_->Send(ipc::ShutdownMessage().Encode());
  socket_->Flush(kFlushMs);
  operations_.Clear();
}

}  // namespace addend::client
