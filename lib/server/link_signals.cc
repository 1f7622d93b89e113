// Both ends of a signalling stream on gRPC's callback API. Speaker has the common part; Answerer is
// the server's end, LinkCaller::Caller the client's.

#include "lib/server/link_signals.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"

namespace addend {
// Not an unnamed namespace: LinkCaller::Caller, which the header names, derives from its classes.
namespace link_signals {

using rdma::Signal;
using rdma::Signals;

// Time for the last messages to arrive when the process ends.
constexpr std::chrono::seconds kGoodbyeTimeout(1);
// Signals buffered before Listen(): a peer needs two, its ends and a goodbye. Further signals, of a
// peer that goes on after a refusal, are dropped.
constexpr size_t kUnheardMost = 16;
// Bounds for a peer: queue pairs of a link (as many as rdma_link.cc allows), and bytes of its
// reason.
constexpr int kLanesMost = 256;
constexpr size_t kReasonBytesMost = 4096;

v1::LinkSignal WordOf(const Signal& signal) {
  v1::LinkSignal word;
  if (signal.ends.has_value()) {
    v1::LinkEnds* const ends = word.mutable_ends();
    ends->set_version(signal.ends->version);
    ends->set_shard(signal.ends->shard);
    for (const auto& lane : signal.ends->lanes) {
      v1::LinkLane* const added = ends->add_lanes();
      if (!lane.has_value()) continue;
      *added->mutable_port() = ToProto(lane->port);
      added->set_queue_pair(lane->queue_pair);
      added->set_first_psn(lane->first_psn);
    }
  }
  if (signal.goodbye.has_value()) {
    v1::LinkGoodbye* const goodbye = word.mutable_goodbye();
    goodbye->set_code(static_cast<uint32_t>(signal.goodbye->raw_code()));
    goodbye->set_message(Message(*signal.goodbye));
    goodbye->set_exit_code(static_cast<uint32_t>(ExitCodeOf(*signal.goodbye)));
    goodbye->set_path_failed(rdma::IsPathFailure(*signal.goodbye));
  }
  return word;
}

absl::Status ReasonIn(const v1::LinkGoodbye& goodbye) {
  absl::Status why(static_cast<absl::StatusCode>(goodbye.code()),
                   goodbye.message().substr(0, kReasonBytesMost));
  if (why.ok()) return why;
  why = rdma::SaidByPeer(WithExitStatus(std::move(why), static_cast<int>(goodbye.exit_code())));
  return goodbye.path_failed() ? rdma::PathFailure(std::move(why)) : why;
}

absl::StatusOr<Signal> SignalIn(const v1::LinkSignal& word) {
  Signal signal;
  if (word.has_goodbye()) signal.goodbye = ReasonIn(word.goodbye());
  if (!word.has_ends()) return signal;
  if (word.ends().lanes_size() > kLanesMost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the peer offers %d queue pairs for a link, more than the limit of %d: it "
                        "is not a summation server or agent of this version",
                        word.ends().lanes_size(), kLanesMost));
  }
  Signal::Ends& ends = signal.ends.emplace();
  ends.version = word.ends().version();
  ends.shard = word.ends().shard();
  for (const v1::LinkLane& lane : word.ends().lanes()) {
    ends.lanes.emplace_back();
    if (!lane.has_port()) continue;
    ADDEND_ASSIGN_OR_RETURN(const rdma::PortAddress port, FromProto(lane.port()));
    ends.lanes.back() = rdma::LaneAddress{port, lane.queue_pair(), lane.first_psn()};
  }
  return signal;
}

// The common part of both ends of a stream: a queue of outgoing messages, a listener, and an end
// that loses no queued message. gRPC may answer on the caller's stack, so its methods are called
// without the lock.
template <typename Reactor>
class Speaker : public Reactor {
 public:
  using ListenFn = Signals::ListenFn;

  void Listen(ListenFn listen) {
    MutexLock lock(&mu_);
    listen_ = std::move(listen);
    for (auto& word : unheard_) listen_(std::move(word));
    unheard_.clear();
  }
  void Say(v1::LinkSignal word) {
    {
      MutexLock lock(&mu_);
      if (broken_ || ending_) return;
      unsaid_.push_back(std::move(word));
      if (writing_) return;
      writing_ = true;
    }
    this->StartWrite(&unsaid_front());
  }
  // Ends the stream after the queued messages.
  void End() {
    {
      MutexLock lock(&mu_);
      ending_ = true;
    }
    EndIfDue();
  }
  void OnWriteDone(bool ok) override {
    bool more = false;
    {
      MutexLock lock(&mu_);
      unsaid_.pop_front();
      broken_ = broken_ || !ok;
      more = writing_ = !broken_ && !unsaid_.empty();
    }
    if (more) return this->StartWrite(&unsaid_front());
    EndIfDue();
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      OnWord(heard_);
      return this->StartRead(&heard_);
    }
    {
      MutexLock lock(&mu_);
      broken_ = true;
    }
    EndIfDue();
  }

 protected:
  // Runs `act` on the call, which does not end meanwhile; does nothing if the call has ended.
  template <typename Act>
  void BeforeItEnds(Act act) {
    {
      MutexLock lock(&mu_);
      if (finished_) return;
      held_ = true;
    }
    act();
    {
      MutexLock lock(&mu_);
      held_ = false;
    }
    EndIfDue();
  }
  // Starts the first read, which keeps the stream alive from then on.
  void Begin(std::shared_ptr<Speaker> self) {
    self_ = std::move(self);
    this->StartRead(&heard_);
  }
  virtual void OnWord(const v1::LinkSignal& word) { Tell(SignalIn(word)); }
  // Ends the call; nothing is under way any more.
  virtual void Finish() = 0;
  bool IsEnding() {
    MutexLock lock(&mu_);
    return ending_;
  }
  void Tell(absl::StatusOr<Signal> word) {
    MutexLock lock(&mu_);
    if (listen_) {
      listen_(std::move(word));
    } else if (unheard_.size() < kUnheardMost) {
      unheard_.push_back(std::move(word));
    }
  }
  // gRPC no longer uses this object.
  void Over(absl::Status why) {
    Tell(std::move(why));
    const std::shared_ptr<TheEnd> end = end_;
    self_.reset();  // may delete this object: no member may be used below
    MutexLock lock(&end->mu);
    end->reached = true;
    end->cv.NotifyAll();
  }
  // Waits until `deadline` for gRPC to stop using this object; returns whether it has.
  bool WaitUntilOver(std::chrono::steady_clock::time_point deadline) const {
    MutexLock lock(&end_->mu);
    while (!end_->reached && end_->cv.WaitUntil(&end_->mu, deadline)) {
    }
    return end_->reached;
  }

 private:
  // Only the front message is read without the lock, while it is written.
  v1::LinkSignal& unsaid_front() {
    MutexLock lock(&mu_);
    return unsaid_.front();
  }
  void EndIfDue() {
    {
      MutexLock lock(&mu_);
      if (finished_ || held_ || writing_ || !(broken_ || (ending_ && unsaid_.empty()))) return;
      finished_ = true;
    }
    Finish();
  }

  struct TheEnd {
    Mutex mu;
    CondVar cv;
    bool reached ABSL_GUARDED_BY(mu) = false;
  };
  const std::shared_ptr<TheEnd> end_ = std::make_shared<TheEnd>();
  std::shared_ptr<Speaker> self_;
  v1::LinkSignal heard_;
  Mutex mu_;
  ListenFn listen_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::StatusOr<Signal>> unheard_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::LinkSignal> unsaid_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;    // the stream can neither send nor receive
  bool ending_ ABSL_GUARDED_BY(mu_) = false;    // no further message will be sent
  bool held_ ABSL_GUARDED_BY(mu_) = false;      // BeforeItEnds() is running
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish() was called
};

class Answerer final : public Speaker<grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>> {
 public:
  Answerer(grpc::CallbackServerContext* context, Incarnation server, BeginFn begin)
      : context_(context), server_(server), begin_(std::move(begin)) {}
  void Begin(const std::shared_ptr<Answerer>& self, std::chrono::milliseconds patience) {
    me_ = self;
    Speaker::Begin(self);
    const gpr_timespec from_now = gpr_time_from_millis(patience.count(), GPR_TIMESPAN);
    patience_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), from_now),
                  [answerer = std::weak_ptr<Answerer>(self)](bool) {
                    if (const auto alive = answerer.lock()) alive->OnPatienceOver();
                  });
    v1::LinkSignal word;
    word.mutable_challenge()->set_nonce(std::string(auth::TextOf(nonce_)));
    word.mutable_challenge()->set_incarnation(server_.value());
    Say(std::move(word));
  }
  void OnDone() override { Over(absl::UnavailableError("the node has ended the conversation")); }

 private:
  void OnWord(const v1::LinkSignal& word) override;
  // The peer sent nothing, or its request was refused: cancels the call, since a goodbye would wait
  // for a peer that may not read.
  void OnPatienceOver() {
    if (spoken_.exchange(true) && !IsEnding()) return;
    BeforeItEnds([this] { context_->TryCancel(); });
  }
  void Finish() override { ServerBidiReactor::Finish(grpc::Status::OK); }

  grpc::CallbackServerContext* const context_;  // valid until the call has ended
  const Incarnation server_;
  const auth::Secret nonce_ = auth::NewSecret();
  std::atomic<bool> spoken_ = false;  // the first message has come, or the time for it is over
  BeginFn begin_;                     // null after its call
  grpc::Alarm patience_;
  std::weak_ptr<Answerer> me_;
};

// Signals that end the stream when they are destroyed.
template <typename T>
class SignalsOf final : public Signals {
 public:
  explicit SignalsOf(std::shared_ptr<T> speaker) : speaker_(std::move(speaker)) {}
  ~SignalsOf() override { speaker_->End(); }
  void Listen(ListenFn listen) override { speaker_->Listen(std::move(listen)); }
  void Say(Signal signal) override { speaker_->Say(WordOf(signal)); }

 private:
  const std::shared_ptr<T> speaker_;
};

void Answerer::OnWord(const v1::LinkSignal& word) {
  if (!begin_) return Speaker::OnWord(word);
  const BeginFn begin = std::exchange(begin_, nullptr);
  if (spoken_.exchange(true)) return;
  auto rest = std::make_unique<SignalsOf<Answerer>>(me_.lock());
  auto signal = SignalIn(word);
  if (!signal.ok() || !signal->ends.has_value()) {
    return rest->Say({.ends = std::nullopt,
                      .goodbye = signal.ok() ? absl::InvalidArgumentError(
                                                   "the peer's first message offers no queue pairs")
                                             : signal.status()});
  }
  const v1::LinkAccess& access = word.access();
  begin({.terms = {.claim = {.job = JobId(access.job_id()),
                             .generation = Generation(access.generation()),
                             .node = NodeId(access.node_rank()),
                             .expires_unix_s = access.expires_unix_s()},
                   .node = Incarnation(access.incarnation()),
                   .server = server_,
                   .shard = signal->ends->shard,
                   .server_nonce = nonce_},
         .proof = access.proof(),
         .offer = *std::move(signal->ends)},
        std::move(rest));
}

}  // namespace link_signals

v1::RdmaPort ToProto(const rdma::PortAddress& port) {
  v1::RdmaPort proto;
  proto.set_device(port.device);
  proto.set_fabric(static_cast<v1::RdmaPort::Fabric>(port.fabric));
  proto.set_gid(port.gid.data(), port.gid.size());
  proto.set_lid(port.lid);
  proto.set_mtu_bytes(port.mtu_bytes);
  return proto;
}

absl::StatusOr<rdma::PortAddress> FromProto(const v1::RdmaPort& port) {
  rdma::PortAddress address;
  if (port.gid().size() != address.gid.size() || port.fabric() < v1::RdmaPort::INFINIBAND ||
      port.fabric() > v1::RdmaPort::ROCE_V2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the RDMA port '%s' has no valid address", port.device()));
  }
  address.device = port.device();
  address.fabric = static_cast<rdma::Fabric>(port.fabric());
  std::copy(port.gid().begin(), port.gid().end(), address.gid.begin());
  address.lid = static_cast<uint16_t>(port.lid());
  address.mtu_bytes = port.mtu_bytes();
  return address;
}

class LinkCaller::Caller final
    : public link_signals::Speaker<grpc::ClientBidiReactor<v1::LinkSignal, v1::LinkSignal>> {
 public:
  explicit Caller(ProveFn prove) : prove_(std::move(prove)) {}
  static std::shared_ptr<Caller> Call(const std::string& server, ProveFn prove) {
    auto caller = std::make_shared<Caller>(std::move(prove));
    caller->stub_ = v1::Summation::NewStub(Dial(server));
    caller->stub_->async()->Converse(&caller->context_, caller.get());
    // Other threads send at any time: the hold keeps the call open until they have learned of its
    // end.
    caller->AddHold();
    caller->Begin(caller);
    caller->StartCall();
    return caller;
  }
  using Speaker::WaitUntilOver;
  // Keeps ends back until the server's challenge has come.
  void Say(v1::LinkSignal word) {
    if (word.has_ends()) {
      MutexLock lock(&unproved_mu_);
      ends_ = std::move(word);
    } else {
      Speaker::Say(std::move(word));
    }
    SayEndsIfDue();
  }
  void Cancel() { context_.TryCancel(); }
  void OnDone(const grpc::Status& status) override {
    if (status.ok()) return Over(absl::UnavailableError("the server has ended the conversation"));
    const absl::Status why = FromGrpc(status);
    Over(absl::Status(why.code(), ShortReason(why)));
  }

 private:
  void OnWord(const v1::LinkSignal& word) override {
    if (!word.has_challenge()) return Speaker::OnWord(word);
    {
      MutexLock lock(&unproved_mu_);
      challenge_ = word.challenge();
    }
    SayEndsIfDue();
  }
  void SayEndsIfDue() {
    v1::LinkSignal word;
    {
      MutexLock lock(&unproved_mu_);
      if (!ends_.has_value() || !challenge_.has_value() || !prove_) return;
      word = *std::move(ends_);
      *word.mutable_access() = std::exchange(prove_, nullptr)(*challenge_, word.ends().shard());
    }
    Speaker::Say(std::move(word));
  }
  void Finish() override {
    StartWritesDone();
    RemoveHold();
  }

  Mutex unproved_mu_;
  ProveFn prove_ ABSL_GUARDED_BY(unproved_mu_);  // null after its call
  std::optional<v1::LinkSignal> ends_ ABSL_GUARDED_BY(unproved_mu_);
  std::optional<v1::LinkChallenge> challenge_ ABSL_GUARDED_BY(unproved_mu_);
  std::unique_ptr<v1::Summation::Stub> stub_;
  grpc::ClientContext context_;
};

LinkCaller::LinkCaller() = default;

LinkCaller::~LinkCaller() {
  const auto deadline = std::chrono::steady_clock::now() + link_signals::kGoodbyeTimeout;
  for (const auto& call : calls_) {
    if (call->WaitUntilOver(deadline)) continue;
    call->Cancel();  // gRPC ends the call soon
    while (!call->WaitUntilOver(std::chrono::steady_clock::now() + link_signals::kGoodbyeTimeout)) {
    }
  }
}

std::unique_ptr<rdma::Signals> LinkCaller::Call(const std::string& server, ProveFn prove) {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(calls_, [now](const auto& call) { return call->WaitUntilOver(now); });
  calls_.push_back(Caller::Call(server, std::move(prove)));
  return std::make_unique<link_signals::SignalsOf<Caller>>(calls_.back());
}

grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* AnswerCall(
    grpc::CallbackServerContext* context, Incarnation server, BeginFn begin,
    std::chrono::milliseconds patience) {
  auto answerer = std::make_shared<link_signals::Answerer>(context, server, std::move(begin));
  answerer->Begin(answerer, patience);
  return answerer.get();
}

}  // namespace addend
