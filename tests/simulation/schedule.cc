#include "tests/simulation/schedule.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace addend::simulation {
namespace {

// The steps of a rank in a run, at most about; in large jobs fewer, since each has more events.
constexpr uint64_t kSteps = 500;
constexpr uint64_t kStepsOfAll = 20'000;

constexpr const char* kNames[] = {"kill a server",      "add a server",
                                  "drain a server",     "stop a server",
                                  "kill the scheduler", "the store fails",
                                  "die in a write",     "power loss",
                                  "stop the scheduler", "change the leader",
                                  "cut from scheduler", "kill an agent",
                                  "stop an agent",      "kill a rank",
                                  "stop a rank",        "reset connections",
                                  "cut a path",         "slow down",
                                  "forge a result",     "end at a result",
                                  "late result",        "leave",
                                  "lose the store"};
static_assert(std::size(kNames) == static_cast<size_t>(Fault::Kind::kCount));

TensorSetting DrawTensor(Random* random, size_t number) {
  static constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,
                                     DType::kInt64};
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  TensorSetting tensor;
  tensor.name = absl::StrFormat("t%d", number);
  tensor.dtype = random->OneIn(2) ? DType::kFloat32 : kTypes[random->Below(std::size(kTypes))];
  tensor.op = random->OneIn(2) ? ReduceOp::kSum : kOps[random->Below(std::size(kOps))];
  tensor.elements = random->Between(1, uint64_t{1} << random->Below(12));
  return tensor;
}

// One to all of the job's ranks, the root of a broadcast among them.
void DrawParticipants(Random* random, const JobPlan& job, TensorSetting* tensor) {
  const uint64_t wanted = random->Between(1, job.ranks());
  while (tensor->participants.size() < wanted) {
    tensor->participants.insert(static_cast<uint32_t>(random->Below(job.ranks())));
  }
  if (tensor->TakesPart(tensor->root)) return;
  auto root = tensor->participants.begin();
  std::advance(root, static_cast<ptrdiff_t>(random->Below(wanted)));
  tensor->root = *root;
}

}  // namespace

const char* NameOf(Fault::Kind kind) { return kNames[static_cast<int>(kind)]; }

Schedule Draw(uint64_t seed, const Asked& asked) {
  Random random(seed * 2 + 1);
  Schedule schedule;
  schedule.seed = seed;
  Cluster::Plan& plan = schedule.plan;
  plan.path.latency = random.Scale(absl::Microseconds(5), absl::Milliseconds(2));
  plan.path.jitter = random.Scale(absl::Microseconds(1), absl::Milliseconds(5));
  plan.path.bytes_per_s = 1e6 * static_cast<double>(uint64_t{1} << random.Below(11));
  plan.path.lends = random.OneIn(2);
  plan.lease = random.Scale(absl::Seconds(1), absl::Seconds(8));
  plan.cpu_servers = static_cast<uint32_t>(random.Below(5));
  plan.shards = static_cast<uint32_t>(random.Between(1, 2));
  if (random.OneIn(3)) plan.clock_drift = 1e-3;
  uint64_t jobs = random.OneIn(4) ? 2 : 1;
  if (asked.nodes > 0) jobs = 1;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < jobs; ++i) {
    JobPlan job;
    job.name = absl::StrFormat("job%d", i);
    job.nodes = static_cast<uint32_t>(random.Between(1, random.OneIn(6) ? 20 : 4));
    if (asked.nodes > 0) job.nodes = asked.nodes;
    job.local_size = static_cast<uint32_t>(random.OneIn(3) ? 2 : 1);
    job.partition_bytes = uint64_t{512} << random.Below(5);
    job.pipelined = static_cast<uint32_t>(random.Between(1, 3));
    if (random.OneIn(2)) job.think = random.Scale(absl::Microseconds(10), absl::Milliseconds(200));
    if (random.OneIn(4)) job.audit_one_in = 1;
    job.shrink = job.nodes > 1 && random.OneIn(3);
    if (random.OneIn(3)) job.redeclared_every = random.Between(1, 20);
    const uint64_t tensors = random.Between(1, 5);
    for (uint64_t t = 0; t < tensors; ++t) job.tensors.push_back(DrawTensor(&random, t));
    const bool accumulates = random.OneIn(2), broadcasts = random.OneIn(4);
    for (TensorSetting& tensor : job.tensors) {
      if (accumulates && random.OneIn(2)) {
        tensor.op = ReduceOp::kAccumulate;
      } else if (broadcasts && random.OneIn(2)) {
        tensor.op = ReduceOp::kBroadcast;
        tensor.root = static_cast<uint32_t>(random.Below(job.ranks()));
      }
    }
    for (const TensorSetting& tensor : job.tensors) bytes += tensor.bytes();
    plan.jobs.push_back(std::move(job));
  }
  if (random.OneIn(4))
    plan.memory_limit_bytes = random.Between(1000, std::max<uint64_t>(1000, 4 * bytes));
  plan.promises_too_much = random.OneIn(2);
  // Some kinds of faults only, some more often.
  // The store is lost with a scheduler, if at all.
  uint64_t weights[static_cast<size_t>(Fault::Kind::kForgetAll)];
  for (size_t kind = 0; kind < std::size(weights); ++kind) {
    weights[kind] = random.OneIn(2) ? 0 : uint64_t{1} << random.Below(4);
    // Writes are lost once: members have to come back before a scheduler knows what was lost.
    if (kind == static_cast<size_t>(Fault::Kind::kPowerLoss) && !random.OneIn(3)) {
      weights[kind] = 0;
    }
  }
  const auto weigh = [&weights](std::initializer_list<Fault::Kind> kinds, uint64_t weight) {
    for (const Fault::Kind kind : kinds) weights[static_cast<size_t>(kind)] = weight;
  };
  const uint64_t theme = random.Below(8);
  if (theme < 5) {  // owners change often
    weigh({Fault::Kind::kKillServer, Fault::Kind::kDrainServer, Fault::Kind::kAddServer,
           Fault::Kind::kResetPath, Fault::Kind::kEndAtResult, Fault::Kind::kLateResult},
          8);
    plan.cpu_servers = std::max<uint32_t>(plan.cpu_servers, 2);
  }
  if (theme < 4) {  // in a generation, since all nodes live
    weigh({Fault::Kind::kPowerLoss, Fault::Kind::kCutFromScheduler, Fault::Kind::kKillAgent,
           Fault::Kind::kStopAgent, Fault::Kind::kKillRank, Fault::Kind::kLeave},
          0);
    if (plan.lease < kForgiven) weigh({Fault::Kind::kStopScheduler}, 0);
  } else if (theme == 4) {  // as the store has it, or had it
    weigh({Fault::Kind::kPowerLoss}, 8);
  } else if (theme == 5) {  // nodes are lost with owners
    weigh({Fault::Kind::kKillServer, Fault::Kind::kAddServer, Fault::Kind::kKillAgent,
           Fault::Kind::kKillRank},
          8);
  }
  if (!asked.power_loss) weigh({Fault::Kind::kPowerLoss}, 0);
  const uint64_t sum = std::accumulate(std::begin(weights), std::end(weights), uint64_t{0});
  const uint64_t faults = sum == 0 ? 0 : random.Below(240);
  const absl::Duration between = random.Scale(absl::Milliseconds(1), absl::Seconds(2));
  absl::Duration at = random.Between(absl::ZeroDuration(), absl::Seconds(2));
  bool lost_power = false;
  for (uint64_t i = 0; i < faults; ++i) {
    // Often before all have dealt with the former fault.
    at +=
        random.Between(absl::ZeroDuration(), random.OneIn(3) ? 8 * plan.path.latency : 2 * between);
    Fault fault;
    fault.at = at;
    uint64_t ticket = random.Below(sum);
    for (size_t kind = 0; kind < std::size(weights); ++kind) {
      if (ticket < weights[kind]) {
        fault.kind = static_cast<Fault::Kind>(kind);
        break;
      }
      ticket -= weights[kind];
    }
    if (fault.kind == Fault::Kind::kPowerLoss && std::exchange(lost_power, true)) {
      fault.kind = Fault::Kind::kKillScheduler;
    }
    fault.a = random.Below(1 << 20);
    fault.b = random.Below(1 << 20);
    fault.lasts = random.Scale(absl::Milliseconds(1), absl::Seconds(20));
    // Other lengths than those about the lease hardly matter.
    if (fault.kind == Fault::Kind::kStopScheduler) {
      fault.lasts = random.Between(absl::ZeroDuration(), 4 * plan.lease);
    }
    if (fault.kind == Fault::Kind::kLateResult) {
      fault.lasts = random.Between(plan.lease, 3 * plan.lease);
    }
    fault.silent = random.OneIn(4);
    schedule.faults.push_back(fault);
  }
  // A run of many virtual minutes does not need more steps than a short run.
  uint64_t ranks = 1;
  for (const JobPlan& job : plan.jobs) ranks = std::max<uint64_t>(ranks, job.ranks());
  const uint64_t steps = std::min(kSteps, std::max<uint64_t>(40, kStepsOfAll / ranks));
  const absl::Duration pause = (at + absl::Seconds(60)) / static_cast<int64_t>(steps);
  for (JobPlan& job : plan.jobs) job.think = std::max(job.think, 2 * pause);
  // Paths on which rounds take as long as the pauses between them, so that most faults find a round
  // under way.
  if (random.OneIn(2)) {
    plan.path.latency = random.Scale(pause / 16, pause / 2);
    plan.path.jitter = random.Scale(pause / 16, pause);
  }
  // A lease is long compared with the calls that renew it.
  plan.path.latency = std::min(plan.path.latency, plan.lease / 32);
  plan.path.jitter = std::min(plan.path.jitter, plan.lease / 32);
  schedule.faults_in_changes = faults > 0 && random.OneIn(2);
  // A few frames on their way, or many.
  if (random.OneIn(3)) {
    plan.bandwidth_bps = 1e6 * static_cast<double>(uint64_t{1} << random.Below(8));
  }
  for (JobPlan& job : plan.jobs) job.encrypts = random.OneIn(4);
  for (JobPlan& job : plan.jobs) {
    if (job.ranks() == 1 || !random.OneIn(3)) continue;
    for (TensorSetting& tensor : job.tensors) {
      if (random.OneIn(2)) DrawParticipants(&random, job, &tensor);
    }
  }
  if (random.OneIn(4)) {
    for (Fault& fault : schedule.faults) {
      const bool ends = fault.kind == Fault::Kind::kKillScheduler;
      if (ends && random.OneIn(2)) fault.kind = Fault::Kind::kForgetAll;
    }
  }
  plan.encodings = static_cast<Cluster::Plan::Encodings>(random.Below(3));
  for (JobPlan& job : plan.jobs) job.zero_blocks = random.OneIn(2);
  const bool lossy = random.OneIn(2);
  for (JobPlan& job : plan.jobs) {
    for (TensorSetting& tensor : job.tensors) {
      if (!lossy || !MayBeLossy(tensor.dtype, tensor.op)) continue;
      tensor.wire.dtype = static_cast<WireDType>(random.Below(kWireDTypes));
      tensor.wire.stochastic = tensor.wire.lossy() && random.OneIn(2);
    }
  }
  for (JobPlan& job : plan.jobs) {
    if (job.ranks() > 1 && random.OneIn(4)) job.odd_rank = random.Below(job.ranks());
  }
  for (JobPlan& job : plan.jobs) {
    if (job.nodes < 3 || !random.OneIn(3)) continue;
    job.rack_nodes = static_cast<uint32_t>(random.Between(1, job.nodes - 1));
  }
  for (JobPlan& job : plan.jobs) {
    if (asked.rack_nodes > 0) job.rack_nodes = asked.rack_nodes;
  }
  return schedule;
}

std::string Describe(const Schedule& schedule) {
  const Cluster::Plan& plan = schedule.plan;
  std::string text =
      absl::StrFormat("seed %d: %d CPU servers of %d shards, lease %s, latency %s + %s, %.0f MB/s",
                      schedule.seed, plan.cpu_servers, plan.shards,
                      absl::FormatDuration(plan.lease), absl::FormatDuration(plan.path.latency),
                      absl::FormatDuration(plan.path.jitter), plan.path.bytes_per_s / 1e6);
  if (schedule.faults_in_changes) text += ", faults in changes";
  if (plan.memory_limit_bytes != 0) {
    text += absl::StrFormat(", at most %d bytes each%s", plan.memory_limit_bytes,
                            plan.promises_too_much ? " or less" : "");
  }
  constexpr const char* kEncodings[] = {"raw", "encoded", "raw or encoded"};
  text += absl::StrFormat(", payloads %s", kEncodings[static_cast<int>(plan.encodings)]);
  if (plan.bandwidth_bps > 0) {
    text += absl::StrFormat(", sends by %.0f Mbit/s", plan.bandwidth_bps / 1e6);
  }
  for (const JobPlan& job : plan.jobs) {
    text +=
        absl::StrFormat("\n  %s: %d nodes of %d ranks, partitions of %d bytes, %d steps open%s%s%s",
                        job.name, job.nodes, job.local_size, job.partition_bytes, job.pipelined,
                        job.shrink ? ", shrinks" : "", job.encrypts ? ", encrypts" : "",
                        job.zero_blocks ? ", zero blocks" : "");
    if (job.rack_nodes != 0) text += absl::StrFormat(", racks of %d nodes", job.rack_nodes);
    if (job.odd_rank) text += absl::StrFormat(", rank %d is at odds", *job.odd_rank);
    if (job.redeclared_every != 0) {
      text += absl::StrFormat(", a tensor declared anew every %d steps", job.redeclared_every);
    }
    for (const TensorSetting& tensor : job.tensors) {
      text += absl::StrFormat(", %s: %s %s of %d", tensor.name, std::string(Name(tensor.dtype)),
                              std::string(Name(tensor.op)), tensor.elements);
      if (tensor.wire.lossy()) text += " as " + ToString(tensor.wire);
      if (!tensor.participants.empty()) {
        text += " by ranks " + absl::StrJoin(tensor.participants, " ");
      }
    }
  }
  for (const Fault& fault : schedule.faults) {
    text += absl::StrFormat("\n  %12.6f  %s (%d, %d), %s%s", absl::ToDoubleSeconds(fault.at),
                            NameOf(fault.kind), fault.a, fault.b, absl::FormatDuration(fault.lasts),
                            fault.silent ? ", silent" : "");
  }
  return text;
}

}  // namespace addend::simulation
