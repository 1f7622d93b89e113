// The control plane of a simulation: the scheduler's decider behind calls and watches as gRPC
// carries them, its store, and the members' side of both.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/member/announced.h"
#include "lib/member/report.h"
#include "services/scheduler/membership.h"
#include "services/worker_agent/scheduler_reports.h"
#include "tests/simulation/network.h"

namespace addend::simulation {

// A store whose content outlives the scheduler, and which fails as a disk does.
class SimStore final {
 public:
  // What happens at the next write.
  enum class Next : uint8_t {
    kOk,
    kFail,    // the disk is full
    kBefore,  // the scheduler's process dies before its write is safe ...
    kAfter,   // ... or behind it, without the answer
  };
  Next next = Next::kOk;
  // A scheduler that another has followed writes nothing any more.
  uint64_t leader = 0;
  // The content that a scheduler finds after a loss of power: without the last `lost` batches.
  void LosePower(size_t lost);
  // An empty store, as of a scheduler without a disk.
  void LoseAll() {
    entries.clear();
    undo_.clear();
  }
  std::map<std::string, std::string> entries;

  absl::Status Apply(uint64_t leader, std::span<const StoreWrite> writes);

 private:
  void Write(std::span<const StoreWrite> writes);

  static constexpr size_t kUndo = 8;
  std::deque<std::map<std::string, std::optional<std::string>>> undo_;  // of the last batches
};

// A scheduler's process. Another may follow while it stands still: the first finds that it leads no
// more when it writes.
class Scheduler {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
  };
  // `store` outlives it.
  Scheduler(std::shared_ptr<Process> process, Network* network, SimStore* store,
            const Options& options);
  absl::Status Start();
  // The process is dead: the members' streams end. `silent`: only their keepalive tells them.
  void OnDeath(bool silent);

  const std::shared_ptr<Process>& process() const { return process_; }
  Membership& membership() { return membership_; }

  // Runs an event of the decider, with all that follows from it. On the process.
  template <typename Answer>
  Answer Take(Outcome<Answer> outcome) {
    if (!Keep(outcome.decision)) {
      return Answer(absl::UnavailableError("the scheduler's store has failed"));
    }
    return std::move(outcome.answer);
  }
  absl::Time now() const { return process_->Now(); }
  uint64_t number() const { return number_; }  // among all schedulers of the run

  // A stream of updates to a member.
  struct Stream {
    std::shared_ptr<Process> member;
    std::function<void(const v1::ServerUpdate&)> on_server;
    std::function<void(const v1::NodeUpdate&)> on_node;
    std::function<void(const absl::Status&)> on_end;
    uint64_t scheduler = 0;  // its number; 0: the request is on its way
    absl::Time last;         // the arrival of the last update
    bool open = true;        // at the member's end
  };
  void OpenWatch(const v1::WatchRequest& request, std::shared_ptr<Stream> stream);

 private:
  bool Keep(const Decision& decision);
  void End(const absl::Status& why);
  void Deliver(const Decision& decision);
  void Send(const std::shared_ptr<Stream>& stream, Task task);
  void End(const std::shared_ptr<Stream>& stream, const absl::Status& why);
  void Tick();
  void LookAfterStreams();

  const std::shared_ptr<Process> process_;
  Network* const network_;
  SimStore* const store_;
  const uint64_t number_;  // as a leader
  Membership membership_;
  std::map<WatchId, std::shared_ptr<Stream>> streams_;
  WatchId next_watch_ = 1;
};

// Where members find the scheduler.
struct SchedulerPlace {
  std::string host;
  std::shared_ptr<Scheduler> scheduler = nullptr;  // null: nobody listens
};

// A member's session with the scheduler, as lib/member/session.h keeps it: registration, lease,
// watch, and reports in their order.
class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Hooks {
    // Registers; the id of the member, and its lease.
    std::function<absl::StatusOr<v1::MemberId>(Scheduler*, const v1::MemberId* former,
                                               absl::Duration* lease)>
        register_member;
    std::function<void(v1::HeartbeatRequest*)> beat;
    std::function<void(v1::WatchRequest*)> announce;
    std::function<void(const v1::ServerUpdate&)> on_server;  // null for a node
    std::function<void(const v1::NodeUpdate&)> on_node;      // null for a server
    std::function<void(const Report&)> on_report;            // about to be sent; null for a server
    std::function<void()> on_registered;                     // the first time
    std::function<void(const absl::Status&)> on_fatal;
  };
  Session(std::shared_ptr<Process> process, Network* network, SchedulerPlace* place, Hooks hooks)
      : process_(std::move(process)), network_(network), place_(place), hooks_(std::move(hooks)) {}

  void Start() { Register(nullptr); }
  void Send(Report report);
  void BeatSoon();
  // Calls the scheduler once: `call` runs there, `done` here.
  using CallFn = std::function<absl::Status(Scheduler*)>;
  using DoneFn = std::function<void(const absl::Status&)>;
  void Call(absl::Duration deadline, CallFn call, DoneFn done);
  void Leave();
  // Opens a new watch, which begins with the whole state.
  void WatchAgain() {
    if (!left_) WatchLater();
  }
  const v1::MemberId& id() const { return id_; }

 private:
  void OnHeard(const Scheduler& scheduler);
  void Register(const v1::MemberId* former);
  void RegisterAgain(uint64_t epoch);
  void Beat(uint64_t beat);
  void ScheduleBeat(absl::Duration delay);
  void OpenWatch();
  void WatchLater();
  void SendNext();
  absl::Duration Pause();

  const std::shared_ptr<Process> process_;
  Network* const network_;
  SchedulerPlace* const place_;
  const Hooks hooks_;
  v1::MemberId id_;
  absl::Duration lease_;
  uint64_t epoch_ = 0;  // registrations
  bool registering_ = false;
  bool left_ = false;
  uint64_t beats_ = 0;
  uint64_t watches_ = 0;
  std::shared_ptr<Scheduler::Stream> stream_;
  uint64_t heard_ = 0;  // the number of the scheduler that has answered last
  std::deque<Report> reports_;
  bool sending_ = false;
  bool noted_ = false;  // on_report has been called for the first
};

}  // namespace addend::simulation
