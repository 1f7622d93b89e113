// A push waits in the tensor's queue until the reader has ended the earlier rounds (EndRound), and
// copies its contribution outside of the mutex.
#include "lib/client/operations.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "lib/client/objects.h"

namespace addend::client {
namespace {

// A longer timeout is as good as no limit, and would overflow the clock's arithmetic.
constexpr double kLongestWaitS = 1e8;

std::string ToText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

std::string Describe(const Declaration& declaration) {
  const std::string text = std::string(Name(declaration.dtype)) + ToText(declaration.shape) + " " +
                           std::string(Name(declaration.op));
  if (declaration.participants.all()) return text;
  return text + " of " + declaration.participants.Text();
}

}  // namespace

Operations::Operations(std::string agent, CopyFn copy, SendFn send, DeviceRounds* device_rounds)
    : agent_(std::move(agent)),
      copy_(std::move(copy)),
      send_(std::move(send)),
      device_rounds_(device_rounds) {}

template <typename Ready>
bool Operations::WaitFor(std::condition_variable* condition, Lock* lock, double timeout_s,
                         Ready ready) {
  if (ready()) return true;
  std::optional<SteadyTime> deadline;
  if (timeout_s >= 0 && timeout_s <= kLongestWaitS) {
    deadline = std::chrono::steady_clock::now() +
               std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(timeout_s));
  }
  if (reading_ != nullptr) {
    lock->unlock();
    reading_->While(
        [&] {
          const Lock inner(mu_);
          return ready();
        },
        deadline);
    lock->lock();
    if (waiting_ > 0) reading_->HandOver();
    if (ready()) return true;
  }
  if (timeout_s == 0) return false;
  ++waiting_;
  bool in_time = true;
  if (deadline) {
    in_time = condition->wait_until(*lock, *deadline, ready);
  } else {
    condition->wait(*lock, ready);
  }
  --waiting_;
  return in_time;
}

Error Operations::Usable(const Lock&) const {
  if (shut_) return MakeError(ADDEND_ERROR_STATE, "addend_shutdown was called");
  return failure_;
}

Error Operations::Declare(Declaration declaration, std::shared_ptr<Tensor>* tensor) {
  Error error = StartDeclaration(std::move(declaration), tensor);
  return error.ok() ? AwaitDeclaration(*tensor) : error;
}

Error Operations::StartDeclaration(Declaration declaration, std::shared_ptr<Tensor>* tensor) {
  const Lock lock(mu_);
  Error error = Usable(lock);
  if (!error.ok()) return error;
  const auto found = by_name_.find(declaration.name);
  if (found != by_name_.end()) {
    const std::shared_ptr<Tensor> known = found->second;
    const Declaration former{known->name, known->shape,        known->dtype,
                             known->op,   known->participants, known->wire};
    if (former != declaration) {
      return MakeError(ADDEND_ERROR_MISMATCH,
                       "tensor \"%s\" is declared as %s in this process, and now as %s; undeclare "
                       "it first or choose another name",
                       known->name.c_str(), Describe(former).c_str(),
                       Describe(declaration).c_str());
    }
    *tensor = known;
    return {};
  }
  auto made = std::make_shared<Tensor>();
  made->id = Objects::Get().NewId();
  made->name = std::move(declaration.name);
  made->shape = std::move(declaration.shape);
  made->dtype = declaration.dtype;
  made->op = declaration.op;
  made->participants = std::move(declaration.participants);
  made->wire = declaration.wire;
  made->bytes = SizeOf(made->dtype);
  for (const int64_t dimension : made->shape) made->bytes *= static_cast<size_t>(dimension);
  by_name_[made->name] = made;
  by_request_[made->id] = made;
  const std::string& participants = made->participants.bits();
  const ipc::DeclareMessage message{
      made->id,  made->dtype, made->op, made->shape, made->name + participants, participants.size(),
      made->wire};
  send_(message.Encode());
  *tensor = std::move(made);
  return {};
}

Error Operations::AwaitDeclaration(const std::shared_ptr<Tensor>& tensor) {
  Lock lock(mu_);
  WaitFor(&declared_, &lock, -1, [&] { return tensor->declared || shut_ || !failure_.ok(); });
  Error error = Usable(lock);
  return error.ok() ? tensor->refusal : error;
}

Error Operations::Undeclare(const std::shared_ptr<Tensor>& tensor) {
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
  send_(ipc::UndeclareMessage{tensor->number}.Encode());
  return {};
}

Error Operations::Push(const std::shared_ptr<Tensor>& tensor, const void* in, void* out,
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

Error Operations::Enqueue(const std::shared_ptr<Operation>& operation) {
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

void Operations::StartPush(const std::shared_ptr<Operation>& operation) {
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
    copy_(tensor.contribution->data(), in, tensor.bytes);
    copied_in_bytes_.fetch_add(tensor.bytes, std::memory_order_relaxed);
    lock.lock();
    operation->copying_in = false;
    operation->changed.notify_all();
    if (EndIfDue(lock, operation)) return;
  }
  operation->kept.reset();
  operation->round = ++tensor.rounds;
  const std::chrono::nanoseconds copied_in = std::chrono::steady_clock::now() - called;
  const ipc::PushMessage message{.tensor = tensor.number,
                                 .round = operation->round,
                                 .priority = operation->priority,
                                 .empty = operation->empty,
                                 .copied_in_ns = static_cast<uint64_t>(copied_in.count()),
                                 .spun_us = SpunSince(lock)};
  // Under the lock, so that the result cannot arrive before the round is recorded.
  send_(message.Encode());
}

// In microseconds, since the last call.
uint32_t Operations::SpunSince(const Lock&) {
  if (reading_ == nullptr) return 0;
  const auto spun = std::chrono::duration_cast<std::chrono::microseconds>(reading_->spun());
  const std::chrono::microseconds untold = spun - std::exchange(told_spun_, spun);
  return static_cast<uint32_t>(untold.count());
}

void Operations::StartDevicePush(const Lock&, const std::shared_ptr<Operation>& operation) {
  Tensor& tensor = *operation->tensor;
  operation->round = ++tensor.rounds;
  device_rounds_->Start(operation.get());
  const ipc::PushMessage message{.tensor = tensor.number,
                                 .round = operation->round,
                                 .priority = operation->priority,
                                 .empty = operation->empty,
                                 .on_device = true};
  send_(message.Encode());
}

Error Operations::Wait(const std::shared_ptr<Operation>& operation, double timeout_s) {
  if (!operation->done.load(std::memory_order_acquire)) {
    Lock lock(mu_);
    const auto done = [&] { return operation->done.load(std::memory_order_acquire); };
    if (!WaitFor(&operation->changed, &lock, timeout_s, done)) {
      return MakeError(ADDEND_ERROR_TIMEOUT,
                       "tensor \"%s\" is still under way after %g s; the operation goes on",
                       operation->tensor->name.c_str(), timeout_s);
    }
  }
  return operation->error;
}

void Operations::Release(const std::shared_ptr<Operation>& operation) {
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

void Operations::SetTag(const std::shared_ptr<Operation>& operation, uint64_t tag) {
  const Lock lock(mu_);
  operation->tagged = true;
  operation->tag = tag;
  if (!operation->done.load()) return;
  done_tags_.push_back(tag);
  tag_done_.notify_one();
}

Error Operations::NextDone(double timeout_s, uint64_t* tag) {
  Lock lock(mu_);
  // After the job's end every tag comes before the error.
  const auto ready = [&] {
    return !done_tags_.empty() || ((shut_ || !failure_.ok()) && copying_ == 0);
  };
  if (!WaitFor(&tag_done_, &lock, timeout_s, ready)) {
    return MakeError(ADDEND_ERROR_TIMEOUT, "no push-pull has ended within %g s", timeout_s);
  }
  if (done_tags_.empty()) return Usable(lock);
  *tag = done_tags_.front();
  done_tags_.pop_front();
  return {};
}

std::shared_ptr<Tensor> Operations::TakeDeclared(uint64_t request) {
  const Lock lock(mu_);
  const auto found = by_request_.find(request);
  if (found == by_request_.end()) return nullptr;
  std::shared_ptr<Tensor> tensor = std::move(found->second);
  by_request_.erase(found);
  return tensor;
}

void Operations::EndDeclaration(const std::shared_ptr<Tensor>& tensor, uint32_t number,
                                Error refusal) {
  const Lock lock(mu_);
  tensor->number = number;
  tensor->declared = true;
  if (refusal.ok()) {
    by_number_[number] = tensor;
  } else {
    tensor->refusal = std::move(refusal);
    by_name_.erase(tensor->name);  // the name may be declared again
  }
  declared_.notify_all();
}

std::shared_ptr<Tensor> Operations::Find(uint32_t number) const {
  const Lock lock(mu_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

std::shared_ptr<Operation> Operations::FindUnderWay(uint32_t number, uint64_t round) const {
  const Lock lock(mu_);
  return UnderWay(lock, number, round);
}

std::shared_ptr<Operation> Operations::UnderWay(const Lock&, uint32_t number,
                                                uint64_t round) const {
  const auto found = by_number_.find(number);
  if (found == by_number_.end() || found->second->pending.empty()) return nullptr;
  const std::shared_ptr<Operation>& first = found->second->pending.front();
  return first->round == round && round != 0 ? first : nullptr;
}

Error Operations::EndRound(uint32_t number, uint64_t round, Error outcome) {
  Lock lock(mu_);
  const std::shared_ptr<Operation> operation = UnderWay(lock, number, round);
  if (operation == nullptr) {
    return MakeError(ADDEND_ERROR_INTERNAL,
                     "the agent at %s sent a result of tensor number %u, round %llu, which is not "
                     "under way",
                     agent_.c_str(), number, static_cast<unsigned long long>(round));
  }
  if (outcome.ok() && operation->on_device != nullptr && !operation->enqueued) {
    outcome = MakeError(ADDEND_ERROR_INTERNAL,
                        "the agent at %s sent the end of a result of which parts are missing",
                        agent_.c_str());
  }
  if (outcome.ok()) CopyOut(lock, operation.get());
  rounds_.fetch_add(1, std::memory_order_relaxed);
  if (EndIfDue(lock, operation)) return {};
  std::deque<std::shared_ptr<Operation>>& pending = operation->tensor->pending;
  pending.pop_front();
  const std::shared_ptr<Operation> next = pending.empty() ? nullptr : pending.front();
  End(lock, operation, std::move(outcome));
  lock.unlock();
  if (next != nullptr) StartPush(next);
  return {};
}

void Operations::CopyOut(Lock& lock, Operation* operation) {
  const Tensor& tensor = *operation->tensor;
  operation->result =
      tensor.results->data() + (operation->round & 1) * ipc::SlotBytes(tensor.bytes);
  void* const out = operation->out;
  if (out == nullptr || tensor.bytes == 0) return;
  operation->copying_out = true;
  lock.unlock();
  copy_(out, operation->result, tensor.bytes);
  copied_out_bytes_.fetch_add(tensor.bytes, std::memory_order_relaxed);
  lock.lock();
  operation->copying_out = false;
}

void Operations::End(const Lock&, const std::shared_ptr<Operation>& operation, Error error) {
  if (operation->done.load() || !operation->error.ok()) return;
  operation->error = std::move(error);
  if (operation->copying_in || operation->copying_out) {
    ++copying_;  // EndIfDue follows the copy: at its end the caller may free its memory
    return;
  }
  operation->done.store(true, std::memory_order_release);
  operation->changed.notify_all();
  if (!operation->tagged) return;
  done_tags_.push_back(operation->tag);
  tag_done_.notify_one();
}

bool Operations::EndIfDue(const Lock& lock, const std::shared_ptr<Operation>& operation) {
  if (operation->error.ok()) return false;
  --copying_;
  End(lock, operation, std::exchange(operation->error, {}));
  tag_done_.notify_all();
  return true;
}

void Operations::EndAll(const Lock& lock, const Error& error) {
  for (const auto& [name, tensor] : by_name_) {
    for (const std::shared_ptr<Operation>& operation : tensor->pending) {
      End(lock, operation, error);
    }
    tensor->pending.clear();
  }
  declared_.notify_all();
  tag_done_.notify_all();
}

addend_statistics Operations::statistics() const {
  return {copied_in_bytes_.load(std::memory_order_relaxed),
          copied_out_bytes_.load(std::memory_order_relaxed),
          rounds_.load(std::memory_order_relaxed)};
}

void Operations::Fail(const Error& error) {
  const Lock lock(mu_);
  if (!failure_.ok()) return;
  failure_ = error;
  if (!shut_) device_rounds_->End(error);
  // Before the callers hear of it, and write their tensors again. Not in Clear(): a rank that
  // leaves in good order has contributed to the rounds under way.
  for (const auto& [name, tensor] : by_name_) {
    if (!tensor->pending.empty() && tensor->contribution != nullptr) {
      tensor->contribution->Withdraw();
    }
  }
  EndAll(lock, error);
}

bool Operations::Close() {
  const Lock lock(mu_);
  if (std::exchange(shut_, true)) return false;
  device_rounds_->End(Usable(lock));
  return true;
}

void Operations::Clear() {
  const Lock lock(mu_);
  EndAll(lock, MakeError(ADDEND_ERROR_STATE,
                         "addend_shutdown was called while this push-pull was pending"));
  by_name_.clear();
  by_number_.clear();
}

}  // namespace addend::client
