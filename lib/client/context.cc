// The calls of the caller's threads. A push waits in the tensor's queue until the reader has ended
// the earlier rounds (reader.cc), and copies its contribution outside of the mutex.
#include "lib/client/context.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "lib/client/copy.h"
#include "lib/client/messages.h"
#include "lib/client/objects.h"

namespace addend::client {
namespace {

constexpr int kFlushMs = 1000;
// A longer timeout is as good as no limit, and would overflow the clock's arithmetic.
constexpr double kLongestWaitS = 1e8;

// Returns false if the time limit passes first.
template <typename Ready>
bool WaitFor(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
             double timeout_s, Ready ready) {
  if (timeout_s < 0 || timeout_s > kLongestWaitS) {
    condition.wait(lock, ready);
    return true;
  }
  return condition.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
}

std::string ToText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

std::string Describe(const std::vector<int64_t>& shape, DType dtype, ReduceOp op) {
  return std::string(Name(dtype)) + ToText(shape) + " " + std::string(Name(op));
}

}  // namespace

Context::Context(std::unique_ptr<AgentSocket> socket, const Place& place,
                 double staging_bytes_per_s)
    : socket_(std::move(socket)),
      place_(place),
      staging_bytes_per_s_(staging_bytes_per_s),
      nodes_present_(place.num_nodes),
      device_rounds_(
          socket_->path(),
          [this](const ipc::Encoded& message, GuardedFd fd) {
            socket_->Send(message, std::move(fd));
          },
          [this](const Error& error) { FailJob(error); }) {}

Context::~Context() { Shutdown(); }

Error Context::Open(const Settings& settings, std::shared_ptr<Context>* context) {
  std::unique_ptr<AgentSocket> socket;
  Place place;
  const Error error = JoinJob(settings, &socket, &place);
  if (!error.ok()) return error;
  context->reset(new Context(std::move(socket), place, settings.staging_bytes_per_s));
  (*context)->StartReader();
  return {};
}

Error Context::Usable(const Lock&) const {
  if (shut_) return MakeError(ADDEND_ERROR_STATE, "addend_shutdown was called");
  return failure_;
}

Error Context::Declare(std::string name, std::vector<int64_t> shape, DType dtype, ReduceOp op,
                       std::shared_ptr<Tensor>* tensor) {
  Lock lock(mu_);
  Error error = Usable(lock);
  if (!error.ok()) return error;
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) {
    const std::shared_ptr<Tensor> known = found->second;
    if (known->shape != shape || known->dtype != dtype || known->op != op) {
      return MakeError(ADDEND_ERROR_MISMATCH,
                       "tensor \"%s\" is declared as %s in this process, and now as %s; undeclare "
                       "it first or choose another name",
                       name.c_str(), Describe(known->shape, known->dtype, known->op).c_str(),
                       Describe(shape, dtype, op).c_str());
    }
    *tensor = known;
    return AwaitDeclared(lock, known);
  }
  auto made = std::make_shared<Tensor>();
  made->id = Objects::Get().NewId();
  made->name = std::move(name);
  made->shape = std::move(shape);
  made->dtype = dtype;
  made->op = op;
  made->bytes = SizeOf(dtype);
  for (const int64_t dimension : made->shape) made->bytes *= static_cast<size_t>(dimension);
  by_name_[made->name] = made;
  by_request_[made->id] = made;
  const ipc::DeclareMessage message{made->id, dtype, op, made->shape, made->name};
  socket_->Send(message.Encode());
  *tensor = made;
  return AwaitDeclared(lock, made);
}

Error Context::AwaitDeclared(Lock& lock, const std::shared_ptr<Tensor>& tensor) {
  declared_.wait(lock, [&] { return tensor->declared || shut_ || !failure_.ok(); });
  Error error = Usable(lock);
  return error.ok() ? tensor->refusal : error;
}

Error Context::Undeclare(const std::shared_ptr<Tensor>& tensor) {
  const Lock lock(mu_);
  Error error = Usable(lock);
  if (!error.ok()) return error;
  if (tensor->undeclared) {
    return MakeError(ADDEND_ERROR_STATE, "tensor \"%s\" is undeclared already",
                     tensor->name.c_str());
  }
  if (!tensor->pending.empty()) {
    return MakeError(ADDEND_ERROR_STATE,
                     "tensor \"%s\" has %zu pending push-pulls; wait for them before undeclaring "
                     "it",
                     tensor->name.c_str(), tensor->pending.size());
  }
  tensor->undeclared = true;
  by_name_.erase(tensor->name);
  by_number_.erase(tensor->number);
  socket_->Send(ipc::UndeclareMessage{tensor->number}.Encode());
  return {};
}

Error Context::Push(const std::shared_ptr<Tensor>& tensor, const void* in, void* out,
                    int32_t priority, std::shared_ptr<Operation>* operation) {
  auto made = std::make_shared<Operation>();
  made->tensor = tensor;
  made->in = in;
  made->out = out;
  made->empty = in == nullptr;
  made->priority = priority;
  Error error = Enqueue(made);
  if (error.ok()) *operation = std::move(made);
  return error;
}

Error Context::Enqueue(const std::shared_ptr<Operation>& operation) {
  Tensor& tensor = *operation->tensor;
  {
    const Lock lock(mu_);
    Error error = Usable(lock);
    if (!error.ok()) return error;
    if (tensor.undeclared) {
      return MakeError(ADDEND_ERROR_STATE, "tensor \"%s\" is undeclared; declare it again first",
                       tensor.name.c_str());
    }
    tensor.pending.push_back(operation);
    if (tensor.pending.size() > 1) return {};  // the reader starts it later
  }
  StartPush(operation);
  return {};
}

void Context::StartPush(const std::shared_ptr<Operation>& operation) {
  Tensor& tensor = *operation->tensor;
  Lock lock(mu_);
  if (operation->done.load()) return;
  if (operation->on_device != nullptr) return StartDevicePush(lock, operation);
  const auto called = std::chrono::steady_clock::now();
  const void* const in = operation->in;
  // A tensor computed in place is already in the segment (addend_alloc).
  if (in != nullptr && in != tensor.contribution->data() && tensor.bytes > 0) {
    operation->copying_in = true;
    lock.unlock();
    Stage(tensor.contribution->data(), in, tensor.bytes);
    copied_in_bytes_.fetch_add(tensor.bytes, std::memory_order_relaxed);
    lock.lock();
    operation->copying_in = false;
    operation->changed.notify_all();
  }
  operation->kept.reset();
  if (operation->done.load()) return;  // the job ended during the copy
  operation->round = ++tensor.rounds;
  const std::chrono::nanoseconds copied_in = std::chrono::steady_clock::now() - called;
  const ipc::PushMessage message{.tensor = tensor.number,
                                 .round = operation->round,
                                 .priority = operation->priority,
                                 .empty = operation->empty,
                                 .copied_in_ns = static_cast<uint64_t>(copied_in.count())};
  // Under the lock, so that the result cannot arrive before the round is recorded.
  socket_->Send(message.Encode());
}

void Context::StartDevicePush(const Lock&, const std::shared_ptr<Operation>& operation) {
  Tensor& tensor = *operation->tensor;
  operation->round = ++tensor.rounds;
  device_rounds_.Start(operation.get());
  const ipc::PushMessage message{.tensor = tensor.number,
                                 .round = operation->round,
                                 .priority = operation->priority,
                                 .empty = operation->empty,
                                 .on_device = true};
  socket_->Send(message.Encode());
}

Error Context::PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                              int32_t priority, std::shared_ptr<Operation>* operation) {
  void* const here = tensor->contribution->data();
  if (tensor->bytes == 0) {  // an empty tensor needs no work on the GPU
    return Push(tensor, memory.in == nullptr ? nullptr : here, nullptr, priority, operation);
  }
  auto made = std::make_shared<Operation>();
  made->tensor = tensor;
  made->in = here;
  made->empty = memory.in == nullptr;
  made->priority = priority;
  Error error = device_rounds_.Begin(tensor, memory, Objects::Get().NewId(), made.get());
  if (error.ok()) error = Enqueue(made);
  if (error.ok()) *operation = std::move(made);
  return error;
}

Error Context::WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s,
                            void* stream) {
  Error error = Wait(operation, timeout_s);
  if (!error.ok() || operation->on_device == nullptr) return error;
  return operation->tensor->device->WaitOn(operation->on_device.get(), stream);
}

void Context::Stage(void* to, const void* from, size_t bytes) const {
  const auto began = std::chrono::steady_clock::now();
  Copy(to, from, bytes);
  if (staging_bytes_per_s_ <= 0) return;
  const std::chrono::duration<double> least(static_cast<double>(bytes) / staging_bytes_per_s_);
  std::this_thread::sleep_until(began + least);
}

Error Context::Wait(const std::shared_ptr<Operation>& operation, double timeout_s) {
  if (!operation->done.load(std::memory_order_acquire)) {
    Lock lock(mu_);
    const auto done = [&] { return operation->done.load(std::memory_order_acquire); };
    if (!WaitFor(operation->changed, lock, timeout_s, done)) {
      return MakeError(ADDEND_ERROR_TIMEOUT,
                       "tensor \"%s\" is still under way after %g s; the operation goes on",
                       operation->tensor->name.c_str(), timeout_s);
    }
  }
  return operation->error;
}

void Context::Release(const std::shared_ptr<Operation>& operation) {
  Lock lock(mu_);
  operation->tagged = false;
  if (operation->done.load()) return;
  operation->changed.wait(lock, [&] { return !operation->copying_in && !operation->copying_out; });
  operation->out = nullptr;
  const Tensor& tensor = *operation->tensor;
  const bool waits = !operation->done.load() && operation->round == 0;
  if (!waits || operation->empty || operation->in == tensor.contribution->data()) return;
  operation->kept = std::make_unique<std::byte[]>(tensor.bytes);
  std::memcpy(operation->kept.get(), operation->in, tensor.bytes);
  operation->in = operation->kept.get();
}

void Context::SetTag(const std::shared_ptr<Operation>& operation, uint64_t tag) {
  const Lock lock(mu_);
  operation->tagged = true;
  operation->tag = tag;
  if (!operation->done.load()) return;
  done_tags_.push_back(tag);
  tag_done_.notify_one();
}

Error Context::NextDone(double timeout_s, uint64_t* tag) {
  Lock lock(mu_);
  const auto ready = [&] { return !done_tags_.empty() || shut_ || !failure_.ok(); };
  if (!WaitFor(tag_done_, lock, timeout_s, ready)) {
    return MakeError(ADDEND_ERROR_TIMEOUT, "no push-pull has ended within %g s", timeout_s);
  }
  if (done_tags_.empty()) return Usable(lock);
  *tag = done_tags_.front();
  done_tags_.pop_front();
  return {};
}

void Context::End(const Lock&, const std::shared_ptr<Operation>& operation, Error error) {
  if (operation->done.load()) return;
  operation->error = std::move(error);
  operation->done.store(true, std::memory_order_release);
  operation->changed.notify_all();
  if (!operation->tagged) return;
  done_tags_.push_back(operation->tag);
  tag_done_.notify_one();
}

void Context::EndAll(const Lock& lock, const Error& error) {
  for (const auto& [name, tensor] : by_name_) {
    for (const std::shared_ptr<Operation>& operation : tensor->pending) {
      End(lock, operation, error);
    }
    tensor->pending.clear();
  }
  declared_.notify_all();
  tag_done_.notify_all();
}

addend_statistics Context::statistics() const {
  return {copied_in_bytes_.load(std::memory_order_relaxed),
          copied_out_bytes_.load(std::memory_order_relaxed),
          rounds_.load(std::memory_order_relaxed)};
}

void Context::Shutdown() {
  {
    const Lock lock(mu_);
    if (std::exchange(shut_, true)) return;
    device_rounds_.End(Usable(lock));
  }
  socket_->Wake();
  if (reader_.joinable()) reader_.join();
  device_rounds_.Detach();
  socket_->Send(ipc::ShutdownMessage().Encode());
  socket_->Flush(kFlushMs);
  const Lock lock(mu_);
  EndAll(lock, MakeError(ADDEND_ERROR_STATE,
                         "addend_shutdown was called while this push-pull was pending"));
  by_name_.clear();
  by_number_.clear();
}

}  // namespace addend::client
