#include "tests/simulation/swarm.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend::simulation {
namespace {

// From the end of the faults on, all that is open has to complete within so long.
constexpr absl::Duration kCalm = absl::Seconds(240);

// From the end of the last rank until nothing is on its way any more.
constexpr absl::Duration kSettle = absl::Seconds(30);

// From the end of a process until it is started again.
constexpr absl::Duration kRestart = absl::Seconds(1);

// Carries out the faults of a schedule.
class Story final {
 public:
  Story(const Schedule& schedule, bool trace)
      : schedule_(schedule), world_(schedule.seed, trace), cluster_(&world_, schedule.plan) {}

  Outcome Go() {
    last_ = world_.Now();
    for (const Fault& fault : schedule_.faults) {
      const absl::Time at = world_.Now() + fault.at;
      last_ = std::max(last_, at + fault.lasts);
      world_.At(at, [this, &fault] { Happen(fault); });
    }
    if (schedule_.faults_in_changes) {
      cluster_.on_change = [this](const OwnersChange& change) {
        if (world_.Now() < last_ && world_.random().OneIn(4)) FaultInChange(change);
      };
    }
    CheckWaits();
    const absl::Time calm = last_ + absl::Seconds(1);
    world_.At(calm, [this] { Calm(); });
    while (world_.Step(calm + kCalm) && !Done()) {
    }
    // If the agent of a rank that has left early is gone too, nobody knows that the others wait in
    // vain, but for the stall timeout.
    if (cluster_.oracle()->any_left()) {
      while (world_.Step(calm + kCalm + kStallTimeout) && !Done()) {
      }
    }
    if (world_.violation().empty() && !Done()) world_.Violate("not complete: " + Pending());
    const absl::Time settled = world_.Now() + kSettle;
    while (world_.Step(settled)) {
    }
    CheckLeftOver();
    return {.events = world_.steps(),
            .faults = happened_,
            .results = cluster_.oracle()->results(),
            .relayed = cluster_.network()->relayed_sums(),
            .trace_hash = world_.trace_hash(),
            .violation = world_.violation(),
            .last_lines = {world_.last_lines().begin(), world_.last_lines().end()}};
  }

 private:
  // Of a server: the tensor, partition and round.
  using Wait = std::tuple<std::string, TensorId, uint32_t, Round>;

  bool Done() const {
    if (!calm_) return false;
    return std::all_of(const_cast<Cluster&>(cluster_).ranks().begin(),
                       const_cast<Cluster&>(cluster_).ranks().end(),
                       [](const auto& rank) { return rank->done(); });
  }
  std::string Pending() {
    std::string text;
    for (const auto& rank : cluster_.ranks()) {
      if (rank->done()) continue;
      if (!text.empty()) text += "; ";
      text += rank->Describe();
    }
    ForEachEngine(TraceRounds);
    return text;
  }
  template <typename Function>
  void ForEachEngine(Function function) {
    for (const auto& server : cluster_.servers()) function(*server->process(), *server->engine());
    for (const JobPlan& job : cluster_.plan().jobs) {
      for (uint32_t node = 0; node < job.nodes; ++node) {
        const auto& agent = cluster_.agent(&job, node);
        if (agent != nullptr) function(*agent->process(), *agent->engine());
      }
    }
  }
  // All ranks have left, so no server holds memory for a tensor any more.
  void CheckLeftOver() {
    ForEachEngine([this](const Process& process, const Engine& engine) {
      const uint64_t used = engine.stats().memory_used_bytes;
      if (used == 0) return;
      world_.Violate(absl::StrFormat("%s still uses %d bytes", process.name(), used));
    });
  }
  // A server that waits names the nodes for which it waits.
  void CheckWaits() {
    std::set<Wait> nameless;
    ForEachEngine([this, &nameless](const Process& process, const Engine& engine) {
      for (const OpenRoundInfo& round : engine.RollCall(JobId(), 100)) {
        if (!round.missing.empty()) continue;
        const Wait wait(process.name(), round.tensor, round.partition, round.round);
        nameless.insert(wait);
        if (!nameless_.contains(wait)) continue;
        world_.Violate(absl::StrFormat("%s waits for nobody in round %d of %s/%d: %s",
                                       process.name(), round.round.value(), round.name,
                                       round.partition, round.state));
      }
    });
    nameless_ = std::move(nameless);
    if (!Done()) world_.After(absl::Seconds(1), [this] { CheckWaits(); });
  }
  // The nodes for which the server waits.
  static void TraceRounds(const Process& process, const Engine& engine) {
    for (const OpenRoundInfo& round : engine.RollCall(JobId(), 100)) {
      std::string missing;
      for (const NodeId node : round.missing) missing += absl::StrFormat(" %d", node.value());
      process.Trace(absl::StrFormat("%s/%d, round %d: %s, without%s", round.name, round.partition,
                                    round.round.value(), round.state, missing));
    }
  }
  absl::Duration lease() const { return schedule_.plan.lease; }
  absl::Duration latency() const { return schedule_.plan.path.latency; }
  // Members whose scheduler falls silent find the next after the keepalive.
  void ExcuseLateScheduler() {
    if (2 * lease() < absl::Seconds(12)) {
      cluster_.oracle()->ExcuseAll("members cannot find a new scheduler within two leases");
    }
  }

  const JobPlan* JobOf(uint64_t a) const {
    return &cluster_.plan().jobs[a % cluster_.plan().jobs.size()];
  }
  void Note(const std::string& what) {
    ++happened_;
    world_.Trace("fault", what);
  }
  void Note(const Fault& fault, std::string_view whom) {
    const bool lasts = fault.lasts > absl::ZeroDuration();
    Note(absl::StrFormat("%s: %s%s%s", NameOf(fault.kind), whom,
                         lasts ? " for " + absl::FormatDuration(fault.lasts) : "",
                         fault.silent ? ", silently" : ""));
  }
  void StopProcess(const Fault& fault, const std::shared_ptr<Process>& process) {
    Note(fault, process->name());
    process->Stop();
    world_.After(fault.lasts, [process] { process->Continue(); });
  }
  void CutPath(const Fault& fault, const std::string& a, const std::string& b) {
    if (!MayCut(a, b)) return;
    Note(fault, a + " and " + b);
    CutFor(fault.lasts, a, b);
  }
  void CutFor(absl::Duration lasts, const std::string& a, const std::string& b) {
    cluster_.network()->Cut(a, b);
    world_.After(lasts, [this, a, b] { cluster_.network()->Heal(a, b); });
  }
  // On a path that is cut, a connection that was reset comes back a second after it heals at the
  // latest (a lost SYN). If that is longer than a lease, a node may accuse the other all the time.
  bool MayReset(const std::string& a, const std::string& b) {
    return !cluster_.network()->IsCut(a, b) || MayAccuse(a, b);
  }
  // The same, the other way round.
  bool MayCut(const std::string& a, const std::string& b) {
    return !WasResetOfLate(a, b) || MayAccuse(a, b);
  }
  void ResetPath(const std::string& a, const std::string& b) {
    resets_[std::minmax(a, b)] = world_.Now();
    cluster_.network()->Reset(a, b);
  }
  bool WasResetOfLate(const std::string& a, const std::string& b) const {
    const auto reset = resets_.find(std::minmax(a, b));
    return reset != resets_.end() && world_.Now() - reset->second < lease();
  }
  // False: too many nodes may be lost already.
  bool MayAccuse(const std::string& a, const std::string& b) {
    std::vector<DataHost> nodes;
    for (const DataHost& host : DataHosts()) {
      if (host.job != nullptr && (host.name == a || host.name == b)) nodes.push_back(host);
    }
    if (nodes.size() < 2 || nodes[0].job != nodes[1].job) return true;
    return MayLose(nodes[0].job, nodes[0].node) && MayLose(nodes[1].job, nodes[1].node);
  }
  // In turns of 10 ms or so, as a machine that many others share.
  void SlowDown(const std::shared_ptr<Process>& process, absl::Time until) {
    if (!process->alive()) return;
    process->Continue();
    if (world_.Now() >= until) return;
    Random& random = world_.random();
    world_.After(random.Between(absl::Microseconds(10), absl::Milliseconds(2)),
                 [process] { process->Stop(); });
    world_.After(random.Between(absl::Milliseconds(2), absl::Milliseconds(20)),
                 [this, process, until] { SlowDown(process, until); });
  }
  // A host of CPU servers or of a node.
  struct DataHost {
    std::string name;
    const JobPlan* job = nullptr;  // of the node
    uint32_t node = 0;
  };
  std::vector<DataHost> DataHosts() {
    std::vector<DataHost> hosts;
    for (const auto& server : cluster_.servers()) hosts.push_back({server->process()->host()});
    for (const JobPlan& job : cluster_.plan().jobs) {
      for (uint32_t node = 0; node < job.nodes; ++node) {
        hosts.push_back({absl::StrFormat("%s-host%d", job.name, node), &job, node});
      }
    }
    return hosts;
  }
  // False: too many nodes of the job may be lost already.
  bool MayLose(const JobPlan* job, uint32_t node) {
    if (!cluster_.oracle()->CanLose(*job, node)) return false;
    cluster_.oracle()->MayLose(*job, node);
    return true;
  }

  void Happen(const Fault& fault) {
    auto& servers = cluster_.servers();
    const JobPlan* const job = JobOf(fault.a);
    const auto node = static_cast<uint32_t>(fault.b % job->nodes);
    AgentHost* const agent = cluster_.agent(job, node).get();
    switch (fault.kind) {
      case Fault::Kind::kKillServer:
        if (servers.empty()) return;
        Note(fault, servers[fault.a % servers.size()]->process()->name());
        return cluster_.KillServer(fault.a % servers.size(), fault.silent);
      case Fault::Kind::kAddServer:
        if (servers.size() > 4) return;
        Note(fault, "");
        return cluster_.StartServer();
      case Fault::Kind::kDrainServer:
        if (servers.empty()) return;
        Note(fault, servers[fault.a % servers.size()]->process()->name());
        return servers[fault.a % servers.size()]->Drain();
      case Fault::Kind::kStopServer:
        if (servers.empty()) return;
        return StopProcess(fault, servers[fault.a % servers.size()]->process());
      case Fault::Kind::kStoreFails:
        Note(fault, "");
        cluster_.store()->next = SimStore::Next::kFail;
        return;
      case Fault::Kind::kDieInWrite:
        Note(fault, fault.silent ? "before" : "behind");
        cluster_.store()->next = fault.silent ? SimStore::Next::kBefore : SimStore::Next::kAfter;
        return;
      case Fault::Kind::kPowerLoss:
      case Fault::Kind::kForgetAll:
      case Fault::Kind::kKillScheduler:
        if (cluster_.place()->scheduler == nullptr) return;
        Note(fault, "");
        if (fault.silent) ExcuseLateScheduler();
        cluster_.KillScheduler(fault.silent);
        if (fault.kind == Fault::Kind::kPowerLoss) {
          cluster_.oracle()->ExcuseAll("the store has lost writes");
          cluster_.store()->LosePower(1 + fault.a % 2);
        }
        if (fault.kind == Fault::Kind::kForgetAll) cluster_.store()->LoseAll();
        return StartSchedulerAfter(fault.lasts);
      case Fault::Kind::kStopScheduler:
        if (cluster_.place()->scheduler == nullptr) return;
        // The time is no member's fault, except for a tick or two.
        if (lease() < kForgiven) cluster_.oracle()->ExcuseAll("the scheduler was stopped");
        return StopProcess(fault, cluster_.place()->scheduler->process());
      case Fault::Kind::kChangeLeader:
        if (cluster_.place()->scheduler == nullptr) return;
        Note(fault, "");
        ExcuseLateScheduler();
        return cluster_.ChangeLeader(fault.lasts);
      case Fault::Kind::kCutFromScheduler: {
        const std::vector<DataHost> hosts = DataHosts();
        const DataHost& host = hosts[fault.a % hosts.size()];
        if (host.job != nullptr && !MayLose(host.job, host.node)) return;
        return CutPath(fault, host.name, cluster_.place()->host);
      }
      case Fault::Kind::kKillAgent:
        if (agent == nullptr || !MayLose(job, node)) return;
        Note(fault, agent->process()->name());
        cluster_.KillAgent(job, node, fault.silent);
        return world_.After(fault.lasts, [this, job, node] {
          if (cluster_.agent(job, node) == nullptr) cluster_.StartAgent(job, node);
        });
      case Fault::Kind::kStopAgent:
        if (agent == nullptr) return;
        if (fault.lasts > lease() / 2 && !MayLose(job, node)) return;
        return StopProcess(fault, agent->process());
      case Fault::Kind::kKillRank: {
        const size_t index = fault.a % cluster_.ranks().size();
        const Rank& rank = *cluster_.ranks()[index];
        const JobPlan& its = *rank.job();
        if (its.nodes == 1 || fault.b % 2 == 0) return KillRank(index);
        const uint64_t distance = 1 + fault.b / 2 % (its.nodes - 1);
        const uint64_t other = (rank.rank() / its.local_size + distance) % its.nodes;
        return KillAtResult(index, absl::StrFormat("%s-host%d", its.name, other));
      }
      case Fault::Kind::kStopRank:
        return StopProcess(fault, cluster_.ranks()[fault.a % cluster_.ranks().size()]->process());
      case Fault::Kind::kResetPath:
      case Fault::Kind::kCutPath: {
        const std::vector<DataHost> hosts = DataHosts();
        const std::string a = hosts[fault.a % hosts.size()].name;
        const std::string b = hosts[fault.b % hosts.size()].name;
        if (a == b) return;
        if (fault.kind == Fault::Kind::kCutPath) return CutPath(fault, a, b);
        if (!MayReset(a, b)) return;
        Note(fault, a + " and " + b);
        return ResetPath(a, b);
      }
      case Fault::Kind::kSlowDown: {
        std::shared_ptr<Process> process;
        if (fault.b % 3 == 0 && !servers.empty()) {
          process = servers[fault.a % servers.size()]->process();
        } else if (fault.b % 3 == 1) {
          process = cluster_.ranks()[fault.a % cluster_.ranks().size()]->process();
        } else if (agent != nullptr) {
          process = agent->process();
        }
        if (process == nullptr) return;
        Note(fault, process->name());
        return SlowDown(process, world_.Now() + fault.lasts);
      }
      case Fault::Kind::kForgeResult:
        return fault.b % 8 == 0 ? SendWrong(fault, job, agent, node)
                                : ForgeResults(fault, job, agent);
      case Fault::Kind::kEndAtResult: {
        if (agent == nullptr || servers.empty()) return;
        const auto server = servers[fault.a % servers.size()]->process();
        Note(fault, server->name() + " to " + agent->process()->name());
        const bool drains = fault.b / job->nodes % 2 == 0;
        return EndAtResult(server, agent->process()->host(), drains);
      }
      case Fault::Kind::kLateResult:
        if (agent == nullptr || servers.empty()) return;
        Note(fault, agent->process()->name());
        return DelayResult(agent->process()->host(), fault.lasts);
      case Fault::Kind::kLeave: {
        Rank* const rank = cluster_.ranks()[fault.a % cluster_.ranks().size()].get();
        if (!MayLose(rank->job(), rank->rank() / rank->job()->local_size)) return;
        Note(fault, rank->process()->name());
        cluster_.oracle()->ExcuseJob(*rank->job());
        return rank->process()->Do([rank] { rank->LeaveEarly(); });
      }
      case Fault::Kind::kCount:
        return;
    }
  }

  // Servers send wrong results of the rounds that the node waits for, of all partitions that were
  // never theirs as far as the node knows.
  void ForgeResults(const Fault& fault, const JobPlan* job, AgentHost* node) {
    // In a job of racks the relay in the node's process has links of its own, to owners that the
    // node does not know.
    if (node == nullptr || job->rack_nodes != 0) return;
    const std::vector<FrameHeader> last = cluster_.network()->LastResults(*node->process());
    bool forged = false;
    const auto forge = [&](const std::set<uint32_t>& ids, const Process& server) {
      std::vector<FrameHeader> foreign;
      std::copy_if(last.begin(), last.end(), std::back_inserter(foreign),
                   [&](const auto& header) { return !node->IsNamed(ids, header.partition); });
      if (ids.empty() || foreign.empty()) return;
      forged |= cluster_.network()->Forge(server, *node->process(), foreign);
    };
    for (const auto& server : cluster_.servers()) forge(server->ids(), *server->process());
    for (uint32_t other = 0; other < job->nodes; ++other) {
      const auto& agent = cluster_.agent(job, other);
      if (agent != nullptr) forge(agent->server_ids(), *agent->process());
    }
    if (forged) Note(fault, node->process()->name());
  }

  // A node sends a CPU server a frame that is wrong.
  void SendWrong(const Fault& fault, const JobPlan* job, AgentHost* agent, uint32_t node) {
    if (agent == nullptr || cluster_.servers().empty() || !MayLose(job, node)) return;
    const auto& server = cluster_.servers()[fault.a % cluster_.servers().size()]->process();
    if (!cluster_.network()->SendWrong(*agent->process(), *server, fault.b / 8)) return;
    cluster_.oracle()->ExcuseAttacked(*job);
    Note(fault, agent->process()->name());
  }

  // Calls `then` at that moment of the next frame of the server for the host, if faults still
  // happen.
  using Moment = Network::Moment;
  void AtNext(FrameType type, const std::shared_ptr<Process>& server, const std::string& host,
              std::function<void()> then) {
    cluster_.network()->Await(
        Moment::kLeaves, type, host,
        {.takes = [server](const Process& from,
                           const FrameHeader&) { return &from == server.get(); },
         .then =
             [this, then = std::move(then)](const Process&, const FrameHeader&) {
               if (world_.Now() < last_) then();
             }});
  }

  // The next result that the server sends to the host is lost, and the server dies or hands over,
  // while other hosts have the result.
  void EndAtResult(const std::shared_ptr<Process>& server, const std::string& host, bool drains) {
    Random& random = world_.random();
    const absl::Duration arrives = latency() + schedule_.plan.path.jitter;
    const absl::Duration lost = random.Between(absl::ZeroDuration(), arrives);
    const absl::Duration ends = random.Between(absl::ZeroDuration(), 4 * arrives);
    AtNext(FrameType::kResult, server, host, [this, server, host, drains, lost, ends] {
      if (drains) {
        world_.After(lost,
                     [this, server, host] { cluster_.network()->Reset(host, server->host()); });
        return world_.After(ends, [this, server] { DrainNow(*server); });
      }
      cluster_.network()->Cut(host, server->host());
      world_.After(ends, [this, server, host] {
        KillNow(*server);
        cluster_.network()->Heal(host, server->host());
      });
    });
  }

  void KillRank(size_t index) {
    const Rank& rank = *cluster_.ranks()[index];
    if (!MayLose(rank.job(), rank.rank() / rank.job()->local_size)) return;
    Note(absl::StrFormat("%s: %s", NameOf(Fault::Kind::kKillRank), rank.process()->name()));
    cluster_.KillRank(index);
  }
  // The next result for the host is cut off, until a rank of another node has died: the job fails
  // on all nodes behind a round of which this node waits for the result.
  void KillAtResult(size_t index, const std::string& host) {
    cluster_.network()->Await(
        Moment::kLeaves, FrameType::kResult, host,
        {.takes = [host](const Process& from, const FrameHeader&) { return from.host() != host; },
         .then =
             [=, this](const Process& server, const FrameHeader&) {
               if (world_.Now() >= last_) return;
               Random& random = world_.random();
               const std::string other = server.host();
               const absl::Duration dies = random.Between(absl::ZeroDuration(), 4 * latency());
               cluster_.network()->Cut(host, other);
               world_.After(dies, [=, this] { KillRank(index); });
               world_.After(dies + random.Between(lease() / 8, lease() / 2),
                            [=, this] { cluster_.network()->Heal(host, other); });
             }});
  }

  // The next CPU server that sends the host a result is taken for lost, while one of its results is
  // on the way into the host's memory. The rest arrives when others own the partition.
  void DelayResult(const std::string& host, absl::Duration lasts) {
    cluster_.network()->Await(
        Moment::kLeaves, FrameType::kResult, host,
        {.takes = [this](const Process& from,
                         const FrameHeader&) { return IndexOf(from).has_value(); },
         .then =
             [this, host, lasts](const Process& server, const FrameHeader&) {
               const std::string other = server.host(), scheduler = cluster_.place()->host;
               NoteInChange(absl::StrFormat("late: %s to %s", other, host));
               cluster_.network()->Cut(other, scheduler);
               world_.After(lasts, [=, this] { cluster_.network()->Heal(other, scheduler); });
               const absl::Duration begins = world_.random().Between(lease() / 2, lease());
               world_.After(begins, [=, this] { StallResult(other, host); });
             }});
  }
  void StallResult(const std::string& other, const std::string& host) {
    const absl::Duration longest = std::min(2 * lease(), Network::kKeepalive / 2);
    cluster_.network()->Await(
        Moment::kArrives, FrameType::kResult, host,
        {.takes = [other](const Process& from, const FrameHeader&) { return from.host() == other; },
         .then =
             [=, this](const Process&, const FrameHeader& late) {
               cluster_.network()->Cut(host, other);
               const auto heal = [=, this] { cluster_.network()->Heal(host, other); };
               world_.After(longest, heal);
               cluster_.network()->Await(
                   Moment::kArrives, FrameType::kResult, host,
                   {.takes =
                        [late](const Process&, const FrameHeader& header) {
                          return header.partition == late.partition &&
                                 header.round.value() == late.round.value() + 2;
                        },
                    .then = [heal](const Process&, const FrameHeader&) { heal(); }});
             }});
  }

  // While a node follows other owners, something happens to an owner or to the path to it.
  void FaultInChange(const OwnersChange& change) {
    Random& random = world_.random();
    if (random.OneIn(2) && LoseNextOwner(change)) return;
    const uint32_t server = change.servers[random.Below(change.servers.size())];
    const absl::Duration lasts = random.Scale(latency(), 64 * latency());
    const uint64_t what = random.Below(16);
    const absl::Duration delay = random.Between(absl::ZeroDuration(), 8 * latency());
    world_.After(delay, [this, host = change.host, server, what, lasts] {
      const std::shared_ptr<Process> process = cluster_.ProcessOf(server);
      if (process == nullptr || process->host() == host) return;
      if (what < 2) {
        NoteInChange("kill " + process->name());
        return KillNow(*process);
      }
      if (what < 6) return CutInChange(host, process->host(), lasts);
      if (what < 12) return ResetInChange(host, process->host());
      // With a result that the node does not have.
      const absl::Duration after = world_.random().Between(absl::ZeroDuration(), latency());
      AtNext(FrameType::kResult, process, host, [this, host, other = process->host(), after] {
        world_.After(after, [this, host, other] { ResetInChange(host, other); });
      });
    });
  }
  // The next owner dies after the hand-over, of which the node hears when others own the partition.
  // False: no CPU server is to be the next owner of a partition.
  bool LoseNextOwner(const OwnersChange& change) {
    std::vector<std::pair<std::shared_ptr<Process>, std::shared_ptr<Process>>> moves;
    for (const auto& [owner, next] : change.moves) {
      const auto from = cluster_.ProcessOf(owner), to = cluster_.ProcessOf(next);
      if (from == nullptr || to == nullptr || from->host() == change.host) continue;
      if (IndexOf(*to).has_value()) moves.emplace_back(from, to);
    }
    if (moves.empty()) return false;
    Random& random = world_.random();
    const auto [from, to] = moves[random.Below(moves.size())];
    const absl::Duration dies = random.Between(absl::ZeroDuration(), 4 * latency());
    const absl::Duration cut =
        std::min(random.Between(lease() / 8, 2 * lease()), Network::kKeepalive / 2);
    AtNext(FrameType::kMoved, from, change.host,
           [this, host = change.host, from = from, to = to, dies, cut] {
             CutInChange(host, from->host(), cut);
             world_.After(dies, [this, to] { KillNow(*to); });
           });
    return true;
  }
  void ResetInChange(const std::string& a, const std::string& b) {
    if (!MayReset(a, b)) return;
    NoteInChange(absl::StrFormat("reset: %s and %s", a, b));
    ResetPath(a, b);
  }
  void CutInChange(const std::string& a, const std::string& b, absl::Duration lasts) {
    if (!MayCut(a, b)) return;
    NoteInChange(absl::StrFormat("cut: %s and %s for %s", a, b, absl::FormatDuration(lasts)));
    CutFor(lasts, a, b);
  }
  std::optional<size_t> IndexOf(const Process& server) {
    for (size_t i = 0; i < cluster_.servers().size(); ++i) {
      if (cluster_.servers()[i]->process().get() == &server) return i;
    }
    return std::nullopt;  // dead
  }
  void KillNow(const Process& server) {
    if (const auto index = IndexOf(server)) cluster_.KillServer(*index, /*silent=*/false);
  }
  void DrainNow(const Process& server) {
    if (const auto index = IndexOf(server)) cluster_.servers()[*index]->Drain();
  }
  void NoteInChange(const std::string& what) { Note("in a change, " + what); }

  void StartSchedulerAfter(absl::Duration pause) {
    world_.After(pause, [this] {
      if (cluster_.place()->scheduler == nullptr) cluster_.StartScheduler();
    });
  }

  // Starts again the processes that have ended, as Kubernetes does.
  void Repair() {
    const auto& scheduler = cluster_.place()->scheduler;
    if (scheduler != nullptr && !scheduler->process()->alive()) {
      cluster_.KillScheduler(false);
      cluster_.StartScheduler();
    }
    for (const JobPlan& job : cluster_.plan().jobs) {
      for (uint32_t node = 0; node < job.nodes; ++node) {
        auto& agent = cluster_.agent(&job, node);
        if (agent == nullptr || !agent->failed()) continue;
        cluster_.oracle()->MayLose(job, node);
        cluster_.KillAgent(&job, node, false);
        world_.After(kRestart, [this, &job, node] {
          if (cluster_.agent(&job, node) == nullptr) cluster_.StartAgent(&job, node);
        });
      }
    }
    for (size_t i = cluster_.servers().size(); i-- > 0;) {
      if (cluster_.servers()[i]->ended()) cluster_.KillServer(i, false);
    }
    // Killed and drained servers are replaced after a while.
    if (cluster_.servers().size() < schedule_.plan.cpu_servers && world_.random().OneIn(4)) {
      cluster_.StartServer();
    }
    world_.After(absl::Milliseconds(500), [this] { Repair(); });
  }

  // The faults are over. Their consequences may take a while: only the keepalive notices a silent
  // death. Then all ranks have to train, and are told to stop.
  void Calm() {
    world_.Trace("swarm", "calm");
    world_.After(Network::kKeepalive + 10 * lease(), [this] { StopWhenAllTrain(); });
  }
  void StopWhenAllTrain() {
    std::map<const JobPlan*, GenerationId> generations;
    for (const auto& rank : cluster_.ranks()) {
      const GenerationId generation =
          generations.emplace(rank->job(), rank->generation()).first->second;
      if (rank->trains() && rank->generation() == generation) continue;
      return world_.After(absl::Milliseconds(500), [this] { StopWhenAllTrain(); });
    }
    world_.Trace("swarm", "all ranks train");
    calm_ = true;
    cluster_.stop = true;
  }

 public:
  void Begin() { Repair(); }

 private:
  const Schedule& schedule_;
  World world_;
  Cluster cluster_;
  absl::Time last_;  // the end of the last fault
  uint64_t happened_ = 0;
  bool calm_ = false;
  std::map<std::pair<std::string, std::string>, absl::Time> resets_;  // of paths; the last
  std::set<Wait> nameless_;                                           // at the last check
};

}  // namespace

Outcome Play(const Schedule& schedule, bool trace) {
  Story story(schedule, trace);
  story.Begin();
  return story.Go();
}

Schedule Minimise(const Schedule& schedule) {
  Schedule best = schedule;
  best.faults_in_changes = false;
  if (Play(best, /*trace=*/false).violation.empty()) best = schedule;
  for (size_t some = std::max<size_t>(best.faults.size() / 2, 1); some > 0; some /= 2) {
    for (size_t begin = 0; begin < best.faults.size();) {
      Schedule fewer = best;
      const size_t end = std::min(begin + some, fewer.faults.size());
      fewer.faults.erase(fewer.faults.begin() + static_cast<ptrdiff_t>(begin),
                         fewer.faults.begin() + static_cast<ptrdiff_t>(end));
      if (Play(fewer, /*trace=*/false).violation.empty()) {
        begin = end;
      } else {
        best = std::move(fewer);
      }
    }
  }
  return best;
}

}  // namespace addend::simulation
