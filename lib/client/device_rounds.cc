// The steps of a GPU round: Begin and Start in the caller's thread, then the agent's messages.
#include "lib/client/device_rounds.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace addend::client {

// Lives as long as the GPU library may call it, which may be longer than the rounds.
class DeviceRounds::Sink final : public DeviceSink {
 public:
  explicit Sink(DeviceRounds* rounds) : rounds_(rounds) {}
  virtual ~Sink() = default;
  void Staged(uint64_t round, uint64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (rounds_ != nullptr) rounds_->OnStaged(round, bytes);
  }
  void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (rounds_ != nullptr) rounds_->OnFetched({{tensor, number, offset, bytes}});
  }
  void Failed(const char* why) override {
    const std::lock_guard<std::mutex> lock(mu_);
    if (rounds_ != nullptr) rounds_->Fail(MakeError(ADDEND_ERROR_PEER_LOST, "%s", why));
  }
  void Detach() {
    const std::lock_guard<std::mutex> lock(mu_);
    rounds_ = nullptr;
  }

 private:
  std::mutex mu_;
  DeviceRounds* rounds_;  // guarded by mu_; null after Detach
};

DeviceRounds::DeviceRounds(std::string agent, SendFn send, FailFn fail, OpenFn open)
    : agent_(std::move(agent)),
      send_(std::move(send)),
      fail_(std::move(fail)),
      open_(std::move(open)) {}

Error DeviceRounds::Open(std::shared_ptr<Device>* device) {
  Lock lock(mu_);
  changed_.wait(lock, [&] { return !opening_ || !ended_.ok(); });
  if (!ended_.ok()) return ended_;
  if (device_ == nullptr) {
    opening_ = true;
    lock.unlock();
    auto sink = std::make_shared<Sink>(this);
    std::shared_ptr<Device> opened;
    Error error = open_(sink, &opened);
    lock.lock();
    if (error.ok()) {
      sink_ = std::move(sink);
      error = JoinGroup(lock, opened.get());
    }
    opening_ = false;
    changed_.notify_all();
    if (!error.ok()) return error;
    device_ = std::move(opened);
  }
  *device = device_;
  return {};
}

// Waits until all local ranks have named their GPU. The agent limits that time.
Error DeviceRounds::JoinGroup(Lock& lock, Device* device) {
  send_(ipc::DeviceMessage{device->bus_id()}.Encode(), {});
  changed_.wait(lock, [&] { return in_group_ || !ended_.ok(); });
  if (!ended_.ok()) return ended_;
  if (group_.members == 1) return {};
  if (group_.member == 0) {
    lock.unlock();
    std::string id;
    const Error error = device->MakeId(&id);
    if (!error.ok()) Fail(error);
    lock.lock();
    if (!error.ok()) return error;
    group_id_ = std::move(id);
    send_(ipc::GroupIdMessage{group_id_}.Encode(), {});
  }
  changed_.wait(lock, [&] { return !group_id_.empty() || !ended_.ok(); });
  if (!ended_.ok()) return ended_;
  lock.unlock();
  Error error = device->Join(group_, group_id_, ordered_);  // constant from now on
  if (!error.ok()) Fail(error);
  lock.lock();
  return error;
}

// Called once for each tensor: copies of its rounds go to the first member's segment.
Error DeviceRounds::Attach(Tensor* tensor, const std::shared_ptr<Device>& device) {
  using Attached = Tensor::Attached;
  Lock lock(mu_);
  changed_.wait(lock, [&] { return tensor->attached != Attached::kAsked || !ended_.ok(); });
  if (!ended_.ok()) return ended_;
  if (tensor->attached == Attached::kYes) return {};
  tensor->attached = Attached::kAsked;
  if (group_.member != 0) {
    send_(ipc::AttachMessage{tensor->number}.Encode(), {});
    changed_.wait(lock, [&] { return tensor->group_contribution != nullptr || !ended_.ok(); });
    if (!ended_.ok()) return ended_;
  }
  lock.unlock();
  device->Map(tensor->for_device(), /*read_only=*/false);
  device->Map(*tensor->results, /*read_only=*/true);
  OfferDirect(tensor, device.get());
  lock.lock();
  tensor->device = device;
  tensor->attached = Attached::kYes;
  changed_.notify_all();
  return {};
}

// Offers the tensor's device memory; the agent decides in each round whether a NIC reads the
// contribution there.
void DeviceRounds::OfferDirect(Tensor* tensor, Device* device) {
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
  send_(ipc::DirectMessage{tensor->number, tensor->bytes}.Encode(), std::move(dmabuf));
}

Error DeviceRounds::Begin(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                          uint64_t id, Operation* operation) {
  std::shared_ptr<Device> device;
  Error error = Open(&device);
  if (error.ok()) error = Attach(tensor.get(), device);
  if (!error.ok()) return error;
  operation->on_device = std::make_unique<DeviceRound>();
  DeviceRound& round = *operation->on_device;
  round.id = id;
  round.tensor = tensor->number;
  round.elements = tensor->bytes / SizeOf(tensor->dtype);
  round.dtype = tensor->dtype;
  round.caller_dtype = memory.dtype;
  round.op = tensor->op;
  round.in = memory.in;
  round.out = memory.out;
  round.contribution = tensor->for_device().data();
  error = device->Begin(&round, memory.stream);
  if (!error.ok()) Fail(error);
  return error;
}

void DeviceRounds::Start(Operation* operation) {
  const Tensor& tensor = *operation->tensor;
  DeviceRound& round = *operation->on_device;
  round.number = operation->round;
  round.result = tensor.results->data() + (operation->round & 1) * ipc::SlotBytes(tensor.bytes);
  const std::lock_guard<std::mutex> lock(staging_mu_);
  staging_[round.id] = {tensor.number, operation->round, tensor.bytes};
}

void DeviceRounds::End(const Error& error) {
  const Lock lock(mu_);
  ended_ = error;
  changed_.notify_all();
}

void DeviceRounds::Detach() {
  std::shared_ptr<Sink> sink;
  {
    const Lock lock(mu_);
    sink = sink_;
  }
  if (sink != nullptr) sink->Detach();
}

Error DeviceRounds::OnGroup(const ipc::GroupMessage& message) {
  ipc::Group group;
  group.member = message.member;
  group.members = message.members;
  group.scatter = message.scatter;
  group.num_roots = static_cast<uint32_t>(message.roots.size());
  if (group.members == 0 || group.members > ipc::kMaxGroup || group.member >= group.members ||
      group.num_roots > ipc::kMaxGroup || (!group.scatter && group.num_roots == 0)) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s sent a group of GPUs that cannot be",
                     agent_.c_str());
  }
  std::copy(message.roots.begin(), message.roots.end(), group.roots);
  const Lock lock(mu_);
  group_ = group;
  ordered_ = message.ordered;
  direct_ = message.direct;
  in_group_ = true;
  changed_.notify_all();
  return {};
}

void DeviceRounds::OnGroupId(const ipc::GroupIdMessage& message) {
  const Lock lock(mu_);
  group_id_ = message.id;
  changed_.notify_all();
}

Error DeviceRounds::OnAttached(Tensor* tensor, const std::vector<GuardedFd>& fds) {
  if (fds.size() != 1) {
    return MakeError(ADDEND_ERROR_RESOURCES,
                     "received no descriptor of the contribution of tensor \"%s\"; raise this "
                     "process's limit of open files (ulimit -n)",
                     tensor->name.c_str());
  }
  std::unique_ptr<Segment> segment;
  Error error =
      Segment::Map(fds[0].get(), ipc::SlotBytes(tensor->bytes), Segment::Access::kReadWrite,
                   "tensor \"" + tensor->name + "\"", &segment);
  if (!error.ok()) return error;
  const Lock lock(mu_);
  tensor->group_contribution = std::move(segment);
  changed_.notify_all();
  return {};
}

Error DeviceRounds::OnContribute(Operation* operation, const ipc::ContributeMessage& message) {
  const Tensor& tensor = *operation->tensor;
  operation->on_device->direct = message.direct ? tensor.direct : nullptr;
  Error error = tensor.device->Contribute(operation->on_device.get(), message.with_data);
  if (!error.ok()) Fail(error);
  return error;
}

Error DeviceRounds::OnFetch(Operation* operation, const ipc::FetchMessage& message) {
  const uint64_t bytes = operation->tensor->bytes;
  const ipc::Range& range = message.range;
  if (operation->on_device->direct == nullptr || range.offset > bytes ||
      range.bytes > bytes - range.offset) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s asked for a part of a contribution that is not on the GPU",
                     agent_.c_str());
  }
  const Error error =
      operation->tensor->device->Fetch(operation->on_device.get(), range.offset, range.bytes);
  if (!error.ok()) Fail(error);
  return error;
}

Error DeviceRounds::OnArrived(Operation* operation, const ipc::ArrivedMessage& message) {
  const uint64_t bytes = operation->tensor->bytes;
  const ipc::Range& range = message.range;
  if (range.offset > bytes || range.bytes > bytes - range.offset) {
    return MakeError(ADDEND_ERROR_INTERNAL, "the agent at %s sent a part beyond its tensor",
                     agent_.c_str());
  }
  Error error = operation->tensor->device->Arrived(operation->on_device.get(), range.offset,
                                                   range.bytes, &operation->enqueued);
  if (!error.ok()) Fail(error);
  return error;
}

// Runs within CUDA's callbacks: it only sends a message.
void DeviceRounds::OnStaged(uint64_t id, uint64_t bytes) {
  ipc::StagedMessage message;
  message.bytes = bytes;
  {
    const std::lock_guard<std::mutex> lock(staging_mu_);
    const auto found = staging_.find(id);
    if (found == staging_.end()) return;
    message.tensor = found->second.tensor;
    message.round = found->second.round;
    if (bytes == found->second.bytes) staging_.erase(found);
  }
  send_(message.Encode(), {});
}

// Runs within CUDA's callbacks: it only sends a message.
void DeviceRounds::OnFetched(const ipc::FetchedMessage& message) { send_(message.Encode(), {}); }

// The agent informs the other ranks, as for any lost rank.
void DeviceRounds::Fail(const Error& error) {
  send_(ipc::DeviceFailedMessage{error.text}.Encode(), {});
  fail_(error);
}

}  // namespace addend::client
