// The session's protocol. A call without an answer moves to the next scheduler in the list; an
// answer keeps the session there (TryNext, StayWith). NOT_FOUND means that the scheduler has lost
// this member's registration: the calling thread registers again. The epoch prevents a second
// registration by another thread that has seen the same error (RegisterAgain).

#include "lib/member/session.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/client.h"
#include "lib/rpc/request_bounds.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"

namespace addend::internal {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
constexpr absl::Duration kRegisterTimeout = absl::Seconds(2);
constexpr absl::Duration kBetweenSchedulers = absl::Milliseconds(200);
constexpr absl::Duration kLeaveTimeout = absl::Milliseconds(1500);
constexpr absl::Duration kHopelessLeaveTimeout = absl::Milliseconds(300);
constexpr std::chrono::milliseconds kGiveUpInterval(50);
constexpr absl::Duration kBetweenLines = absl::Seconds(5);
constexpr absl::Duration kShortestInterval = absl::Milliseconds(10);  // of heartbeats

// The incidents of heartbeats that were not answered; the next heartbeat repeats them.
class Unanswered {
 public:
  void AddTo(v1::HeartbeatRequest* request) {
    const double waited_s = absl::ToDoubleSeconds(SteadyNow() - since_);
    if (request->incidents_size() > kMost) {
      request->mutable_incidents()->DeleteSubrange(kMost, request->incidents_size() - kMost);
    }
    for (v1::Incident& incident : incidents_) {
      if (request->incidents_size() == kMost) break;
      incident.set_age_s(incident.age_s() + waited_s);
      *request->add_incidents() = std::move(incident);
    }
    incidents_.clear();
  }
  void Keep(const v1::HeartbeatRequest& request) {
    incidents_.assign(request.incidents().begin(), request.incidents().end());
    since_ = SteadyNow();
  }

 private:
  static constexpr int kMost = 100;
  std::vector<v1::Incident> incidents_;
  absl::Time since_ = SteadyNow();
};

}  // namespace

// Registers a running call with Stop(), which cancels it.
class Session::CallScope {
 public:
  CallScope(Session* session, grpc::ClientContext* context, bool is_watch)
      : session_(session), context_(context), is_watch_(is_watch) {
    MutexLock lock(&session_->mu_);
    session_->calls_.insert(context);
    if (is_watch) session_->watch_call_ = context;
    if (session_->stopping_) context->TryCancel();
  }
  ~CallScope() {
    MutexLock lock(&session_->mu_);
    session_->calls_.erase(context_);
    if (is_watch_) session_->watch_call_ = nullptr;
  }

 private:
  Session* const session_;
  grpc::ClientContext* const context_;
  const bool is_watch_;
};

Session::Session(const MemberOptions& options) : options_(options), outage_(options.scheduler) {
  for (const std::string& target : Targets(options.scheduler)) {
    stubs_.push_back(v1::Scheduler::NewStub(Dial(target, ProcessIdentity(), kMaxUpdateBytes)));
  }
}

absl::Status Session::Join(Hooks hooks) {
  hooks_ = std::move(hooks);
  ADDEND_RETURN_IF_ERROR(RegisterFirst());
  heartbeat_ = std::thread([this] { RunHeartbeat(); });
  watch_ = std::thread([this] { RunWatch(); });
  return absl::OkStatus();
}

absl::Status Session::RegisterFirst() {
  const absl::Time start = SteadyNow();
  const absl::Time deadline = start + options_.connect_timeout;
  absl::Time next_line = start + std::min(absl::Seconds(1), options_.connect_timeout / 2);
  Backoff backoff;
  while (true) {
    grpc::ClientContext context;
    SetDeadline(&context,
                std::clamp(deadline - SteadyNow(), absl::Milliseconds(100), kRegisterTimeout));
    const size_t used = current_;
    auto registered = RegisterUnlessGivenUp(&context);
    if (registered.ok()) {
      MutexLock lock(&mu_);
      registered_ = *std::move(registered);
      epoch_ = 1;
      return absl::OkStatus();
    }
    if (absl::IsUnimplemented(registered.status())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s answers, but is not an Addend scheduler; check the address", options_.scheduler));
    }
    if (absl::IsAlreadyExists(registered.status()) &&
        SteadyNow() - start < options_.until_place_is_free && Sleep(backoff.Next())) {
      continue;
    }
    if (!IsUnreachable(registered.status())) return registered.status();
    TryNext(used);
    if (options_.give_up && options_.give_up()) {
      return absl::CancelledError(
          absl::StrFormat("stopped while waiting for the scheduler %s", options_.scheduler));
    }
    const absl::Time now = SteadyNow();
    if (now < deadline && now < next_line) {
      Sleep(std::min(backoff.Next(), deadline - now));
      continue;
    }
    const std::string reason = WhyUnreachable(options_.scheduler, registered.status());
    if (now >= deadline) {
      return MakeFailure(
          FailureKind::kUnreachable,
          absl::StrFormat(
              "scheduler %s has not answered for %.0f s (%s); check the address and that it runs",
              options_.scheduler, absl::ToDoubleSeconds(now - start), reason));
    }
    spdlog::warn("scheduler {} has not answered for {:.0f} s ({}); giving up in {:.0f} s",
                 options_.scheduler, absl::ToDoubleSeconds(now - start), reason,
                 absl::ToDoubleSeconds(deadline - now));
    next_line = now + kBetweenLines;
  }
}

absl::StatusOr<Session::Registered> Session::RegisterUnlessGivenUp(grpc::ClientContext* context) {
  auto answer =
      std::async(std::launch::async, [&] { return hooks_.register_member(context, nullptr); });
  while (answer.wait_for(kGiveUpInterval) == std::future_status::timeout) {
    if (options_.give_up && options_.give_up()) context->TryCancel();
  }
  return answer.get();
}

void Session::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
    stopped_.NotifyAll();
  }
  if (heartbeat_.joinable()) heartbeat_.join();
  if (watch_.joinable()) watch_.join();
  prober_.Stop();
}

void Session::Leave() {
  Stop();
  v1::LeaveRequest request;
  {
    MutexLock lock(&mu_);
    if (left_ || epoch_ == 0) return;
    left_ = true;
    *request.mutable_member() = registered_.id;
  }
  grpc::ClientContext context;
  SetDeadline(&context, answers_ ? kLeaveTimeout : kHopelessLeaveTimeout);
  v1::LeaveResponse response;
  const absl::Status status = FromGrpc(stub()->Leave(&context, request, &response));
  if (!status.ok()) {
    spdlog::info("the scheduler {} was not told that this member leaves ({})", options_.scheduler,
                 ShortReason(status));
  }
}

v1::MemberId Session::id() const {
  MutexLock lock(&mu_);
  return registered_.id;
}

uint64_t Session::epoch() const {
  MutexLock lock(&mu_);
  return epoch_;
}

bool Session::Sleep(absl::Duration duration) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration);
  MutexLock lock(&mu_);
  while (!stopping_ && stopped_.WaitUntil(&mu_, deadline)) {
  }
  return !stopping_;
}

void Session::BeatSoon() {
  MutexLock lock(&mu_);
  beat_soon_ = true;
  stopped_.NotifyAll();
}

void Session::FillBeat(v1::HeartbeatRequest* request) {
  *request->mutable_member() = id();
  hooks_.beat(request);
}

void Session::WasCarried(size_t scheduler) {
  answers_ = true;
  StayWith(scheduler);
  outage_.OnAnswer(SteadyNow());
  MutexLock lock(&mu_);
  carried_at_ = SteadyNow();
}

// The other member's heartbeats come as often as this one's, but not to the moment.
bool Session::IsCarried(absl::Duration interval) const {
  MutexLock lock(&mu_);
  return SteadyNow() - carried_at_ < 1.25 * interval;
}

bool Session::SleepUntilBeat(absl::Duration duration) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(duration);
  MutexLock lock(&mu_);
  while (!stopping_ && !beat_soon_ && stopped_.WaitUntil(&mu_, deadline)) {
  }
  beat_soon_ = false;
  return !stopping_;
}

absl::Status Session::Call(absl::Duration timeout,
                           absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call) {
  grpc::ClientContext context;
  SetDeadline(&context, timeout);
  const CallScope scope(this, &context, /*is_watch=*/false);
  const size_t used = current_;
  const absl::Status status = FromGrpc(call(&context));
  if (!stopping_) answers_ = !IsUnreachable(status);
  if (!IsUnreachable(status)) {
    StayWith(used);
    outage_.OnAnswer(SteadyNow());
  } else if (!stopping_) {
    TryNext(used);
    outage_.OnFailure(status, SteadyNow());
  }
  return status;
}

void Session::StayWith(size_t used) {
  MutexLock lock(&mu_);
  current_ = used;
  if (watch_call_ != nullptr && watched_ != used) watch_call_->TryCancel();
}

absl::Status Session::CallUntilAnswered(
    absl::FunctionRef<grpc::Status(grpc::ClientContext*, const v1::MemberId&)> call) {
  Backoff backoff;
  while (true) {
    const uint64_t epoch = this->epoch();
    const v1::MemberId id = this->id();
    const absl::Status status =
        Call(kCallTimeout, [&](grpc::ClientContext* context) { return call(context, id); });
    if (absl::IsNotFound(status)) {
      if (!RegisterAgain(epoch)) return absl::CancelledError("the member cannot come back");
    } else if (!IsUnreachable(status)) {
      return status;
    }
    if (!Sleep(backoff.Next())) return absl::CancelledError("the member stops");
  }
}

void Session::WatchWorks() {
  watch_works_ = true;
  outage_.OnAnswer(SteadyNow());
}

void Session::RunHeartbeat() {
  bool try_next = false;
  Unanswered unanswered;
  while (true) {
    absl::Duration interval;
    uint64_t epoch = 0;
    v1::HeartbeatRequest request;
    {
      MutexLock lock(&mu_);
      interval = std::max(absl::Seconds(registered_.lease_s) / 3, kShortestInterval);
      epoch = epoch_;
      *request.mutable_member() = registered_.id;
    }
    if (!SleepUntilBeat(try_next ? kBetweenSchedulers : interval)) return;
    if (IsCarried(interval)) {
      try_next = false;
      continue;
    }
    hooks_.beat(&request);
    unanswered.AddTo(&request);
    prober_.Take(request.mutable_probes());
    ShortenSentences(&request);
    const absl::Status status = Call(std::max(interval, absl::Seconds(1)), [&](auto* context) {
      v1::HeartbeatResponse response;
      const grpc::Status answered = stub()->Heartbeat(context, request, &response);
      if (answered.ok()) {
        KeepClusterTime(response.now_unix_s());
        prober_.Measure(response.probe());
        if (hooks_.on_beat_answer) hooks_.on_beat_answer(response, current_);
      }
      return answered;
    });
    if (!status.ok()) unanswered.Keep(request);
    try_next = IsUnreachable(status) && stubs_.size() > 1;
    if (absl::IsNotFound(status)) {
      if (!RegisterAgain(epoch)) return;
    } else if (!status.ok() && !IsUnreachable(status)) {
      spdlog::warn("scheduler {} refused a heartbeat: {}", options_.scheduler, Message(status));
    }
  }
}

void Session::RunWatch() {
  Backoff backoff;
  while (!stopping_) {
    const uint64_t epoch = this->epoch();
    watch_works_ = false;
    absl::Status status;
    const size_t used = current_;
    {
      grpc::ClientContext context;  // no deadline: a watch lasts as long as the member
      const CallScope scope(this, &context, /*is_watch=*/true);
      {
        MutexLock lock(&mu_);
        watched_ = used;
      }
      status = hooks_.watch(id(), &context);
    }
    if (stopping_) return;
    if (watch_works_) backoff.Reset();
    if (absl::IsNotFound(status)) {
      if (!RegisterAgain(epoch)) return;
    } else if (IsUnreachable(status)) {
      // RegisterAgain cancels the stream too; that is no outage.
      if (this->epoch() == epoch && current_ == used) {
        TryNext(used);
        outage_.OnFailure(status, SteadyNow());
      }
    } else if (!status.ok()) {
      spdlog::warn("scheduler {} ended the watch: {}", options_.scheduler, Message(status));
    }
    if (!Sleep(backoff.Next())) return;
  }
}

bool Session::RegisterAgain(uint64_t epoch) {
  MutexLock registering(&registering_);
  v1::MemberId previous;
  {
    MutexLock lock(&mu_);
    if (failed_) return false;
    if (epoch_ != epoch) return true;  // another thread has registered meanwhile
    previous = registered_.id;
  }
  spdlog::warn("scheduler {} does not know this member any more; registering again",
               options_.scheduler);
  absl::StatusOr<Registered> registered = absl::UnknownError("");
  const absl::Status status = Call(kCallTimeout, [&](grpc::ClientContext* context) {
    registered = hooks_.register_member(context, &previous);
    return ToGrpc(registered.status());
  });
  if (stopping_ || IsUnreachable(status)) return true;  // the caller tries again
  if (!status.ok()) {
    Fail(status);
    return false;
  }
  MutexLock lock(&mu_);
  registered_ = *std::move(registered);
  ++epoch_;
  // The old stream may hang on the lost registration; a new stream starts with the whole state.
  if (watch_call_ != nullptr) watch_call_->TryCancel();
  return true;
}

void Session::Fail(absl::Status status) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(failed_, true)) return;
  }
  options_.on_fatal(std::move(status));
}

}  // namespace addend::internal
