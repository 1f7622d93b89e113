#include "tests/simulation/control.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "services/scheduler/store/format.h"

namespace addend::simulation {
namespace {

// As in lib/member/session.cc.
constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// As lib/rpc/client.cc has it.
constexpr absl::Duration kGrpcKeepalive = absl::Seconds(10);

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

// ---- the store ----

absl::Status SimStore::Apply(uint64_t leader_now, std::span<const StoreWrite> writes) {
  if (leader_now != leader) return absl::FailedPreconditionError("another scheduler leads");
  switch (std::exchange(next, Next::kOk)) {
    case Next::kFail:
      return absl::ResourceExhaustedError("the disk is full");
    case Next::kBefore:
      return absl::AbortedError("it died in a write");
    case Next::kAfter:
      Write(writes);
      return absl::AbortedError("it died behind a write");
    case Next::kOk:
      Write(writes);
  }
  return absl::OkStatus();
}

void SimStore::Write(std::span<const StoreWrite> writes) {
  auto& undo = undo_.emplace_back();
  for (const StoreWrite& write : writes) {
    const auto found = entries.find(write.key);
    undo.emplace(write.key, found == entries.end() ? std::nullopt : std::optional(found->second));
    if (write.value.has_value()) {
      entries[write.key] = *write.value;
    } else {
      entries.erase(write.key);
    }
  }
  if (undo_.size() > kUndo) undo_.pop_front();
}

void SimStore::LosePower(size_t lost) {
  for (; lost > 0 && !undo_.empty(); --lost) {
    for (const auto& [key, value] : undo_.back()) {
      if (value.has_value()) {
        entries[key] = *value;
      } else {
        entries.erase(key);
      }
    }
    undo_.pop_back();
  }
  undo_.clear();
}

// ---- the scheduler ----

Scheduler::Scheduler(std::shared_ptr<Process> process, Network* network, SimStore* store,
                     const Options& options)
    : process_(std::move(process)),
      network_(network),
      store_(store),
      number_(++store->leader),
      membership_(
          {.lease = options.lease,
           .react_to_stragglers = true,
           .version = "simulated",
           .store = "simulated",
           .make_key = [world = process_->world()] { return world->random().Key(); },
           .token_lifetime = absl::Hours(1),
           .token_clock = [world = process_->world()] { return world->Now(); },
           .servers_digest = {},
           .first_job_number = static_cast<uint64_t>(absl::ToUnixMicros(process_->world()->Now()))},
          process_->Now()) {}

absl::Status Scheduler::Start() {
  const std::vector<StoreEntry> entries(store_->entries.begin(), store_->entries.end());
  ADDEND_RETURN_IF_ERROR(CheckFormat("simulated", entries));
  ADDEND_RETURN_IF_ERROR(membership_.Restore(now(), entries));
  if (const auto format = FormatToWrite(entries); format.has_value()) {
    if (const absl::Status stored = store_->Apply(number_, {&*format, 1}); !stored.ok()) {
      End(stored);
      return absl::OkStatus();
    }
  }
  Tick();
  LookAfterStreams();
  return absl::OkStatus();
}

void Scheduler::Tick() {
  Outcome<absl::Time> tick = membership_.Tick(now());
  const absl::Time next = tick.answer;
  if (!Keep(tick.decision)) return;
  const absl::Duration pause =
      std::clamp(next - now(), absl::Milliseconds(20), absl::Milliseconds(500));
  process_->After(pause, [this] { Tick(); });
}

// A member's end is gone, or its path is cut: the stream breaks.
void Scheduler::LookAfterStreams() {
  process_->After(absl::Milliseconds(50), [this] { LookAfterStreams(); });
  for (auto next = streams_.begin(); next != streams_.end();) {
    const auto [watch, stream] = *next++;
    if (stream->open && stream->member->alive()) continue;
    process_->Trace(absl::StrFormat("the watch of %s has ended", stream->member->name()));
    streams_.erase(watch);
    membership_.WatchBroke(now(), watch);
  }
}

bool Scheduler::Keep(const Decision& decision) {
  if (!process_->alive()) return false;
  if (!decision.writes.empty()) {
    if (const absl::Status stored = store_->Apply(number_, decision.writes); !stored.ok()) {
      End(stored);
      return false;
    }
  }
  for (const std::string& reason : decision.reasons) process_->Trace(reason);
  Deliver(decision);
  return true;
}

// Nothing may be told that is not safe in the store.
void Scheduler::End(const absl::Status& why) {
  process_->Trace(absl::StrFormat("ends: %s", why.message()));
  process_->Kill();
  OnDeath(/*silent=*/false);
}

void Scheduler::OnDeath(bool silent) {
  for (const auto& entry : std::exchange(streams_, {})) {
    const std::shared_ptr<Stream>& stream = entry.second;
    process_->world()->After(silent ? kGrpcKeepalive : network_->Latency(), [stream] {
      stream->member->Do([stream] {
        if (!stream->open) return;
        stream->open = false;
        stream->on_end(absl::UnavailableError("the scheduler is gone"));
      });
    });
  }
}

void Scheduler::Deliver(const Decision& decision) {
  for (const WatchEnd& end : decision.ended) {
    const auto found = streams_.find(end.watch);
    if (found == streams_.end()) continue;
    End(found->second, end.reason);
    streams_.erase(found);
  }
  for (const ServerSend& send : decision.to_servers) {
    const auto found = streams_.find(send.watch);
    if (found == streams_.end()) continue;
    Send(found->second, [stream = found->second, update = send.update] {
      if (stream->open) stream->on_server(*update);
    });
  }
  for (const NodeSend& send : decision.to_nodes) {
    const auto found = streams_.find(send.watch);
    if (found == streams_.end()) continue;
    Send(found->second, [stream = found->second, update = send.update] {
      if (stream->open) stream->on_node(*update);
    });
  }
}

void Scheduler::Send(const std::shared_ptr<Stream>& stream, Task task) {
  World* const world = process_->world();
  stream->last = std::max(stream->last, world->Now() + network_->Latency());
  world->At(stream->last, [network = network_, stream, from = process_,
                           task = std::move(task)]() mutable {
    // gRPC's keepalive ends a stream over a cut path.
    if (network->IsCut(from->host(), stream->member->host())) {
      if (!stream->open) return;
      stream->open = false;
      stream->member->Do([stream] { stream->on_end(absl::UnavailableError("the path is cut")); });
      return;
    }
    stream->member->Do(std::move(task));
  });
}

void Scheduler::End(const std::shared_ptr<Stream>& stream, const absl::Status& why) {
  Send(stream, [stream, why] {
    if (!stream->open) return;
    stream->open = false;
    stream->on_end(why);
  });
}

void Scheduler::OpenWatch(const v1::WatchRequest& request, std::shared_ptr<Stream> stream) {
  const WatchId watch = next_watch_++;
  stream->scheduler = number_;
  streams_[watch] = stream;
  const absl::Status status = stream->on_server
                                  ? Take(membership_.WatchServer(now(), request, watch))
                                  : Take(membership_.WatchNode(now(), request, watch));
  if (status.ok()) return;
  streams_.erase(watch);
  End(stream, status);
}

// ---- the member ----

absl::Duration Session::Pause() {
  return process_->world()->random().Between(absl::Milliseconds(100), absl::Milliseconds(1000));
}

void Session::Call(absl::Duration deadline, CallFn call, DoneFn done) {
  auto answered = std::make_shared<DoneFn>(std::move(done));
  auto answer = [process = process_, answered](const absl::Status& status) {
    process->Do([answered, status] {
      if (!*answered) return;
      const DoneFn once = std::exchange(*answered, nullptr);
      once(status);
    });
  };
  World* const world = process_->world();
  process_->After(deadline, [answer] { answer(absl::DeadlineExceededError("no answer")); });
  world->After(network_->Latency(), [self = shared_from_this(), network = network_, place = place_,
                                     process = process_, world, answer, call = std::move(call)] {
    if (network->IsCut(process->host(), place->host) || !process->alive()) return;
    const std::shared_ptr<Scheduler> scheduler = place->scheduler;
    if (scheduler == nullptr || !scheduler->process()->alive()) {
      return world->After(network->Latency(), [answer] {
        answer(absl::UnavailableError("the scheduler's host refuses the connection"));
      });
    }
    scheduler->process()->Do([self, network, place, process, world, answer, call, scheduler] {
      if (!process->alive()) return;  // its request is lost with its connection
      const absl::Status status = call(scheduler.get());
      const bool died = !scheduler->process()->alive();
      world->After(network->Latency(),
                   [self, network, place, process, answer, status, died, scheduler] {
                     if (network->IsCut(process->host(), place->host)) return;
                     process->Do([self, scheduler] { self->OnHeard(*scheduler); });
                     answer(died ? absl::UnavailableError("the scheduler has ended") : status);
                   });
    });
  });
}

// The connection to another scheduler is new: a watch over the former has ended.
void Session::OnHeard(const Scheduler& scheduler) {
  const bool other = heard_ != 0 && heard_ != scheduler.number();
  heard_ = scheduler.number();
  if (!other || stream_ == nullptr || !stream_->open || left_) return;
  const bool of_former = stream_->scheduler != 0 && stream_->scheduler != scheduler.number();
  if (of_former) WatchLater();
}

void Session::Register(const v1::MemberId* former) {
  registering_ = true;
  auto id = std::make_shared<v1::MemberId>();
  auto lease = std::make_shared<absl::Duration>();
  const bool again = former != nullptr;
  Call(
      kCallTimeout,
      [self = shared_from_this(), id, lease, again](Scheduler* scheduler) {
        auto registered =
            self->hooks_.register_member(scheduler, again ? &self->id_ : nullptr, lease.get());
        if (registered.ok()) *id = *std::move(registered);
        return registered.status();
      },
      [self = shared_from_this(), id, lease, again](const absl::Status& status) {
        if (self->left_) return;
        if (IsUnreachable(status)) {
          return self->process_->After(self->Pause(), [self, again] {
            if (!self->left_) self->Register(again ? &self->id_ : nullptr);
          });
        }
        self->registering_ = false;
        if (!status.ok()) {
          self->left_ = true;
          return self->hooks_.on_fatal(status);
        }
        self->id_ = *id;
        self->lease_ = *lease;
        ++self->epoch_;
        if (!again) {
          self->hooks_.on_registered();
          self->ScheduleBeat(self->lease_ / 3);
        }
        // The former stream belongs to the former registration.
        if (self->stream_ != nullptr) self->stream_->open = false;
        self->OpenWatch();
        self->SendNext();
      });
}

void Session::RegisterAgain(uint64_t epoch) {
  if (epoch != epoch_ || registering_ || left_) return;
  Register(&id_);
}

void Session::ScheduleBeat(absl::Duration delay) {
  process_->After(delay, [self = shared_from_this(), beat = ++beats_] { self->Beat(beat); });
}

void Session::BeatSoon() {
  if (epoch_ > 0) ScheduleBeat(absl::ZeroDuration());
}

void Session::Beat(uint64_t beat) {
  if (beat != beats_ || left_) return;
  v1::HeartbeatRequest request;
  *request.mutable_member() = id_;
  hooks_.beat(&request);
  ScheduleBeat(lease_ / 3);
  Call(
      std::max(lease_ / 3, absl::Seconds(1)),
      [request](Scheduler* scheduler) {
        return scheduler->Take(scheduler->membership().Heartbeat(scheduler->now(), request));
      },
      [self = shared_from_this(), epoch = epoch_](const absl::Status& status) {
        if (absl::IsNotFound(status)) self->RegisterAgain(epoch);
      });
}

void Session::OpenWatch() {
  v1::WatchRequest request;
  *request.mutable_member() = id_;
  hooks_.announce(&request);
  const uint64_t watch = ++watches_;
  auto stream = std::make_shared<Scheduler::Stream>();
  stream->member = process_;
  if (hooks_.on_server) {
    stream->on_server = [self = shared_from_this()](const v1::ServerUpdate& update) {
      self->hooks_.on_server(update);
    };
  }
  if (hooks_.on_node) {
    stream->on_node = [self = shared_from_this()](const v1::NodeUpdate& update) {
      self->hooks_.on_node(update);
    };
  }
  stream->on_end = [self = shared_from_this(), watch, epoch = epoch_](const absl::Status& why) {
    if (watch != self->watches_ || self->left_) return;
    if (absl::IsNotFound(why)) return self->RegisterAgain(epoch);
    self->WatchLater();
  };
  stream_ = stream;
  Call(
      kCallTimeout,
      [request, stream](Scheduler* scheduler) {
        scheduler->OpenWatch(request, stream);
        return absl::OkStatus();
      },
      [self = shared_from_this(), watch](const absl::Status& status) {
        if (watch == self->watches_ && !status.ok() && !self->left_) self->WatchLater();
      });
}

void Session::WatchLater() {
  stream_->open = false;
  const uint64_t watch = ++watches_;
  process_->After(Pause(), [self = shared_from_this(), watch] {
    if (watch == self->watches_ && !self->left_) self->OpenWatch();
  });
}

void Session::Send(Report report) {
  reports_.push_back(std::move(report));
  SendNext();
}

void Session::SendNext() {
  if (sending_ || reports_.empty() || epoch_ == 0 || registering_ || left_) return;
  sending_ = true;
  if (!std::exchange(noted_, true) && hooks_.on_report) hooks_.on_report(reports_.front());
  Call(
      kCallTimeout,
      [report = reports_.front(), id = id_](Scheduler* scheduler) {
        Membership& membership = scheduler->membership();
        const absl::Time now = scheduler->now();
        struct Caller {
          Membership& m;
          absl::Time now;
          auto operator()(const v1::DeclareRequest& r) { return m.Declare(now, r); }
          auto operator()(const v1::UndeclareRequest& r) { return m.Undeclare(now, r); }
          auto operator()(const v1::ReportTrainersRequest& r) { return m.ReportTrainers(now, r); }
          auto operator()(const v1::ReportIdleRequest& r) { return m.ReportIdle(now, r); }
          auto operator()(const v1::ReportFailureRequest& r) { return m.ReportFailure(now, r); }
          auto operator()(const v1::ReportServerLostRequest& r) {
            return m.ReportServerLost(now, r);
          }
          auto operator()(const v1::AckChangeRequest& r) { return m.AckChange(now, r); }
        };
        return std::visit(
            [&](auto request) {
              *request.mutable_member() = id;
              return scheduler->Take(Caller{membership, now}(request));
            },
            report);
      },
      [self = shared_from_this(), epoch = epoch_](const absl::Status& status) {
        if (self->left_) return;
        self->sending_ = false;
        if (absl::IsNotFound(status)) return self->RegisterAgain(epoch);
        if (IsUnreachable(status)) {
          return self->process_->After(self->Pause(), [self] { self->SendNext(); });
        }
        const Report report = std::move(self->reports_.front());
        self->reports_.pop_front();
        self->noted_ = false;
        const bool late = absl::IsFailedPrecondition(status) || absl::IsAborted(status);
        if (!status.ok() && !late && !std::holds_alternative<v1::ReportFailureRequest>(report)) {
          const uint32_t generation =
              std::visit([](const auto& request) { return request.generation(); }, report);
          self->reports_.push_front(report::Failed(Generation(generation), status));
        }
        self->SendNext();
      });
}

void Session::Leave() {
  if (left_ || epoch_ == 0) return;
  Call(
      kCallTimeout,
      [id = id_](Scheduler* scheduler) {
        return scheduler->Take(scheduler->membership().Leave(scheduler->now(), id));
      },
      [](const absl::Status&) {});
  left_ = true;
  if (stream_ != nullptr) stream_->open = false;
}

}  // namespace addend::simulation
