// Memory of a GPU: the group of ranks that aggregate on theirs, the segments that copies go to, and
// the rounds. What touches the GPU is behind device_library.h.
#include <cstring>
#include <utility>

#include "lib/client/context.h"
#include "lib/client/ipc.h"
#include "lib/client/objects.h"

namespace addend::client {

// Lives as long as the GPU's library may call it, which may be longer than the context.
class Context::Sink final : public DeviceSink {
 public:
  explicit Sink(Context* context) : context_(context) {}
  virtual ~Sink() = default;
  void Staged(uint64_t round, uint64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (context_ != nullptr) context_->OnStaged(round, bytes);
  }
  void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (context_ != nullptr) context_->OnFetched(tensor, number, offset, bytes);
  }
  void Failed(const char* why) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (context_ != nullptr) context_->FailDevice(MakeError(ADDEND_ERROR_PEER_LOST, "%s", why));
  }
  void Detach() {
    const std::lock_guard<std::mutex> lock(mu_);
    context_ = nullptr;
  }

 private:
  std::mutex mu_;
  Context* context_;  // guarded by mu_; null: it has ended
};

Error Context::OpenDevice(std::shared_ptr<Device>* device) {
  Lock lock(mu_);
  device_changed_.wait(lock, [&] { return !opening_device_ || shut_ || !failure_.ok(); });
  Error error = Usable(lock);
  if (!error.ok()) return error;
  if (device_ == nullptr) {
    opening_device_ = true;
    lock.unlock();
    auto sink = std::make_shared<Sink>(this);
    std::shared_ptr<Device> opened;
    error = Device::Open(sink, &opened);
    lock.lock();
    if (error.ok()) {
      sink_ = std::move(sink);
      error = JoinGroup(lock, opened.get());
    }
    opening_device_ = false;
    device_changed_.notify_all();
    if (!error.ok()) return error;
    device_ = std::move(opened);
  }
  *device = device_;
  return {};
}

// Until all local ranks have named their GPU. How long that may take is the agent's matter.
Error Context::JoinGroup(Lock& lock, Device* device) {
  ipc::Message message;
  message.type = ipc::Type::kDevice;
  socket_->Send(message, {}, device->bus_id());
  const auto ended = [&] { return shut_ || !failure_.ok(); };
  device_changed_.wait(lock, [&] { return in_group_ || ended(); });
  Error error = Usable(lock);
  if (!error.ok() || group_.members == 1) return error;
  if (group_.member == 0) {
    lock.unlock();
    std::string id;
    error = device->MakeId(&id);
    if (!error.ok()) FailDevice(error);
    lock.lock();
    if (!error.ok()) return error;
    group_id_ = std::move(id);
    message.type = ipc::Type::kGroupId;
    socket_->Send(message, {}, group_id_);
  }
  device_changed_.wait(lock, [&] { return !group_id_.empty() || ended(); });
  error = Usable(lock);
  if (!error.ok()) return error;
  lock.unlock();
  error = device->Join(group_, group_id_, ordered_);  // both are constant from now on
  if (!error.ok()) FailDevice(error);
  lock.lock();
  return error;
}

// Once for each tensor: copies of rounds go to the first member's segment.
Error Context::Attach(const std::shared_ptr<Tensor>& tensor,
                      const std::shared_ptr<Device>& device) {
  Lock lock(mu_);
  const auto ended = [&] { return shut_ || !failure_.ok(); };
  using Attached = Tensor::Attached;
  device_changed_.wait(lock, [&] { return tensor->attached != Attached::kAsked || ended(); });
  Error error = Usable(lock);
  if (!error.ok() || tensor->attached == Attached::kYes) return error;
  tensor->attached = Attached::kAsked;
  if (group_.member != 0) {
    ipc::Message message;
    message.type = ipc::Type::kAttach;
    message.tensor = tensor->number;
    socket_->Send(message, {}, {});
    device_changed_.wait(lock, [&] { return tensor->group_contribution != nullptr || ended(); });
    error = Usable(lock);
    if (!error.ok()) return error;
  }
  lock.unlock();
  device->Map(tensor->for_device(), /*read_only=*/false);
  device->Map(*tensor->results, /*read_only=*/true);
  OfferDirect(tensor.get(), device.get());
  lock.lock();
  tensor->device = device;
  tensor->attached = Attached::kYes;
  device_changed_.notify_all();
  return {};
}

// The agent decides round by round whether a NIC reads the contribution there.
void Context::OfferDirect(Tensor* tensor, Device* device) {
  if (!direct_ || tensor->bytes < ipc::kDirectBytesMin) return;
  GuardedFd dmabuf;
  std::byte* memory = nullptr;
  const Error error = device->Export(tensor->bytes, &memory, &dmabuf);
  if (!error.ok()) {
    direct_ = false;
    return Say(
        Format("no GPUDirect RDMA for tensor \"%s\" and later ones: %s; they go through host "
               "memory",
               tensor->name.c_str(), error.text.c_str()));
  }
  tensor->direct = memory;
  ipc::Message message;
  message.type = ipc::Type::kDirect;
  message.tensor = tensor->number;
  message.bytes = tensor->bytes;
  socket_->Send(message, {}, {}, std::move(dmabuf));
}

Error Context::PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                              int32_t priority, std::shared_ptr<Operation>* operation) {
  void* const here = tensor->contribution->data();
  if (tensor->bytes == 0) {  // nothing that a GPU could do for it
    return Push(tensor, memory.in == nullptr ? nullptr : here, nullptr, priority, operation);
  }
  std::shared_ptr<Device> device;
  Error error = OpenDevice(&device);
  if (error.ok()) error = Attach(tensor, device);
  if (!error.ok()) return error;
  auto made = std::make_shared<Operation>();
  made->tensor = tensor;
  made->in = here;
  made->empty = memory.in == nullptr;
  made->priority = priority;
  made->on_device = std::make_unique<DeviceRound>();
  DeviceRound& round = *made->on_device;
  round.id = Objects::Get().NewId();
  round.tensor = tensor->number;
  round.elements = tensor->bytes / SizeOf(tensor->dtype);
  round.dtype = tensor->dtype;
  round.caller_dtype = memory.dtype;
  round.op = tensor->op;
  round.in = memory.in;
  round.out = memory.out;
  round.contribution = tensor->for_device().data();
  error = device->Begin(&round, memory.stream);
  if (!error.ok()) {
    FailDevice(error);
    return error;
  }
  error = Enqueue(made);
  if (error.ok()) *operation = std::move(made);
  return error;
}

void Context::StartDevicePush(const std::shared_ptr<Operation>& operation) {
  Tensor& tensor = *operation->tensor;
  DeviceRound& round = *operation->on_device;
  const Lock lock(mu_);
  if (operation->done.load()) return;
  operation->round = round.number = ++tensor.rounds;
  round.result = tensor.results->data() + (operation->round & 1) * ipc::SlotBytes(tensor.bytes);
  {
    const std::lock_guard<std::mutex> staging_lock(staging_mu_);
    staging_[round.id] = {tensor.number, operation->round, tensor.bytes};
  }
  ipc::Message message;
  message.type = ipc::Type::kPush;
  message.tensor = tensor.number;
  message.round = operation->round;
  message.priority = operation->priority;
  message.flags =
      static_cast<uint16_t>(ipc::kFlagDevice | (operation->empty ? ipc::kFlagEmpty : 0));
  socket_->Send(message, {}, {});
}

Error Context::WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s,
                            void* stream) {
  Error error = Wait(operation, timeout_s);
  if (!error.ok() || operation->on_device == nullptr) return error;
  return operation->tensor->device->WaitOn(operation->on_device.get(), stream);
}

Error Context::OnGroup(const Packet& packet) {
  const ipc::Message& message = packet.message;
  ipc::Group group;
  group.member = static_cast<uint32_t>(message.local_rank);
  group.members = static_cast<uint32_t>(message.local_size);
  group.scatter = message.flags & ipc::kFlagScatter;
  group.num_roots = static_cast<uint32_t>(packet.text.size() / sizeof(uint32_t));
  if (group.members == 0 || group.members > ipc::kMaxGroup || group.member >= group.members ||
      group.num_roots > ipc::kMaxGroup || (!group.scatter && group.num_roots == 0)) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s sent a group of GPUs that cannot be",
                     socket_->path().c_str());
  }
  std::memcpy(group.roots, packet.text.data(), group.num_roots * sizeof(uint32_t));
  const Lock lock(mu_);
  group_ = group;
  ordered_ = message.flags & ipc::kFlagOrdered;
  direct_ = message.flags & ipc::kFlagDirect;
  in_group_ = true;
  device_changed_.notify_all();
  return {};
}

Error Context::OnGroupId(const Packet& packet) {
  const Lock lock(mu_);
  group_id_ = packet.text;
  device_changed_.notify_all();
  return {};
}

Error Context::OnAttached(const Packet& packet) {
  Lock lock(mu_);
  const auto found = by_number_.find(packet.message.tensor);
  if (found == by_number_.end()) return {};  // it has been undeclared since
  const std::shared_ptr<Tensor> tensor = found->second;
  lock.unlock();
  if (packet.fds.size() != 1) {
    return MakeError(ADDEND_ERROR_RESOURCES,
                     "received no descriptor of the contribution of tensor \"%s\"; raise this "
                     "process's limit of open files (ulimit -n)",
                     tensor->name.c_str());
  }
  std::unique_ptr<Segment> segment;
  Error error =
      Segment::Map(packet.fds[0].get(), ipc::SlotBytes(tensor->bytes), Segment::Access::kReadWrite,
                   "tensor \"" + tensor->name + "\"", &segment);
  if (!error.ok()) return error;
  lock.lock();
  tensor->group_contribution = std::move(segment);
  device_changed_.notify_all();
  return {};
}

Error Context::FindOnDevice(const ipc::Message& message, std::shared_ptr<Operation>* operation) {
  const Lock lock(mu_);
  const auto found = by_number_.find(message.tensor);
  if (found != by_number_.end() && !found->second->pending.empty()) {
    *operation = found->second->pending.front();
    if ((*operation)->on_device != nullptr && (*operation)->round == message.round &&
        message.round != 0) {
      return {};
    }
  }
  return MakeError(ADDEND_ERROR_INTERNAL,
                   "the agent at %s spoke of tensor number %u, round %llu, which is not under way "
                   "on this rank's GPU",
                   socket_->path().c_str(), message.tensor,
                   static_cast<unsigned long long>(message.round));
}

Error Context::OnContribute(const Packet& packet) {
  std::shared_ptr<Operation> operation;
  Error error = FindOnDevice(packet.message, &operation);
  if (!error.ok()) return error;
  const Tensor& tensor = *operation->tensor;
  const bool direct = packet.message.flags & ipc::kFlagDirect;
  operation->on_device->direct = direct ? tensor.direct : nullptr;
  error = tensor.device->Contribute(operation->on_device.get(), packet.message.request);
  if (!error.ok()) FailDevice(error);
  return error;
}

Error Context::OnFetch(const Packet& packet) {
  std::shared_ptr<Operation> operation;
  Error error = FindOnDevice(packet.message, &operation);
  if (!error.ok()) return error;
  const uint64_t bytes = operation->tensor->bytes;
  if (operation->on_device->direct == nullptr || packet.message.offset > bytes ||
      packet.message.bytes > bytes - packet.message.offset) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s asked for a part of a contribution that is not on the GPU",
                     socket_->path().c_str());
  }
  error = operation->tensor->device->Fetch(operation->on_device.get(), packet.message.offset,
                                           packet.message.bytes);
  if (!error.ok()) FailDevice(error);
  return error;
}

Error Context::OnArrived(const Packet& packet) {
  std::shared_ptr<Operation> operation;
  Error error = FindOnDevice(packet.message, &operation);
  if (!error.ok()) return error;
  const uint64_t bytes = operation->tensor->bytes;
  if (packet.message.offset > bytes || packet.message.bytes > bytes - packet.message.offset) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s sent a part beyond its tensor",
                     socket_->path().c_str());
  }
  error = operation->tensor->device->Arrived(operation->on_device.get(), packet.message.offset,
                                             packet.message.bytes, &operation->enqueued);
  if (!error.ok()) FailDevice(error);
  return error;
}

// Within CUDA's callbacks: it only sends a message.
void Context::OnStaged(uint64_t id, uint64_t bytes) {
  ipc::Message message;
  message.type = ipc::Type::kStaged;
  message.bytes = bytes;
  {
    const std::lock_guard<std::mutex> lock(staging_mu_);
    const auto found = staging_.find(id);
    if (found == staging_.end()) return;
    message.tensor = found->second.tensor;
    message.round = found->second.round;
    if (bytes == found->second.bytes) staging_.erase(found);
  }
  socket_->Send(message, {}, {});
}

// Within CUDA's callbacks: it only sends a message.
void Context::OnFetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) {
  ipc::Message message;
  message.type = ipc::Type::kFetched;
  message.tensor = tensor;
  message.round = number;
  message.offset = offset;
  message.bytes = bytes;
  socket_->Send(message, {}, {});
}

// The agent tells the others, as of any rank that is lost.
void Context::FailDevice(const Error& error) {
  ipc::Message message;
  message.type = ipc::Type::kDeviceFailed;
  socket_->Send(message, {}, std::string_view(error.text).substr(0, ipc::kMaxTextBytes));
  FailJob(error);
}

void Context::DetachDevice() {
  std::shared_ptr<Sink> sink;
  {
    const Lock lock(mu_);
    sink = sink_;
  }
  if (sink != nullptr) sink->Detach();
}

}  // namespace addend::client
