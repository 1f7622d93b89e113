// Measures every step of the trace by cause (late calls, time inside of nodes, links, sums) and
// names for each cause the place with the largest excess over the median of the others.
#include "tools/addendctl/bottleneck.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// A cause of less than this part of a step explains nothing.
constexpr double kNoticeable = 0.1;
// The least ratio, against the other links, of the time per byte of a slow link.
constexpr double kSlower = 1.5;

using Interval = std::pair<int64_t, int64_t>;
using TensorRound = std::pair<uint32_t, uint64_t>;        // tensor, round
using PartitionRound = std::pair<uint32_t, TensorRound>;  // partition, ...

int64_t Signed(uint64_t time) { return static_cast<int64_t>(time); }
double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Returns the length of the time in which at least one interval lasted.
int64_t Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  int64_t covered = 0, until = INT64_MIN;
  for (const auto& [begin, end] : intervals) {
    if (end <= until) continue;
    covered += end - std::max(begin, until);
    until = end;
  }
  return covered;
}

// A round of a tensor, on all nodes.
struct Round {
  TensorRound key;
  Interval span = {INT64_MAX, INT64_MIN};
  std::map<uint32_t, std::vector<const v1::PartitionLife*>> lives;  // by node rank
};

// Rounds that overlap.
struct Step {
  Interval span = {INT64_MAX, INT64_MIN};
  std::vector<const Round*> rounds;
};

// The time at which the whole contribution had arrived: (partition, round) -> node -> time.
using Arrivals = std::map<std::pair<PartitionRound, uint32_t>, int64_t>;

PartitionRound KeyOf(const v1::PartitionLife& life) {
  return {life.partition(), {life.tensor_id(), life.round()}};
}
PartitionRound KeyOf(const v1::SumEvent& event) {
  return {event.partition(), {event.tensor_id(), event.round()}};
}

// Returns the rounds of which all nodes have every partition.
std::vector<Round> CompleteRounds(const JobTrace& trace) {
  std::map<TensorRound, Round> rounds;
  std::map<TensorRound, size_t> most;  // the largest number of partitions on any node
  for (const NodeTrace& node : trace.nodes) {
    for (const v1::PartitionLife& life : node.lives) {
      const TensorRound key = {life.tensor_id(), life.round()};
      Round& round = rounds[key];
      round.key = key;
      auto& lives = round.lives[node.rank];
      lives.push_back(&life);
      most[key] = std::max(most[key], lives.size());
      round.span.first = std::min(round.span.first, Signed(life.first_call()));
      round.span.second = std::max(round.span.second, Signed(life.delivered()));
    }
  }
  std::vector<Round> complete;
  for (auto& [key, round] : rounds) {
    const size_t partitions = most[key];
    const bool whole =
        round.lives.size() == trace.nodes.size() &&
        std::all_of(round.lives.begin(), round.lives.end(),
                    [partitions](const auto& lives) { return lives.second.size() == partitions; });
    if (whole) complete.push_back(std::move(round));
  }
  std::sort(complete.begin(), complete.end(),
            [](const Round& a, const Round& b) { return a.span < b.span; });
  return complete;
}

std::vector<Step> StepsOf(const std::vector<Round>& rounds) {
  std::vector<Step> steps;
  for (const Round& round : rounds) {
    if (steps.empty() || round.span.first >= steps.back().span.second) steps.emplace_back();
    Step& step = steps.back();
    step.span.first = std::min(step.span.first, round.span.first);
    step.span.second = std::max(step.span.second, round.span.second);
    step.rounds.push_back(&round);
  }
  return steps;
}

// A rank that copies its result slowly calls late in the next step: a node whose copies take about
// as long as its rank is late has a single cause.
void PreferCopies(uint32_t local_size, std::vector<Suspect>* suspects) {
  Suspect& first = suspects->front();
  const auto copies = std::find_if(suspects->begin(), suspects->end(), [](const Suspect& one) {
    return one.cause == Cause::kIntraNode;
  });
  if (first.cause == Cause::kCompute && copies->number == first.number / local_size &&
      copies->excess_s() > 0.8 * first.excess_s()) {
    std::swap(first, *copies);
  }
}

// Seconds at each place, summed over all steps.
using SecondsAt = std::map<uint32_t, double>;

struct Measures {
  SecondsAt compute;     // by rank
  SecondsAt intra_node;  // by node
  SecondsAt server_sum;  // by server
};

// Adds the delay of the last rank's call after the calls of all other nodes.
void AddCompute(const Step& step, uint32_t local_size, SecondsAt* compute) {
  std::map<uint32_t, double> late;  // by rank: the largest delay of any tensor in this step
  for (const Round* round : step.rounds) {
    std::vector<std::pair<int64_t, uint32_t>> calls;  // the last call of each node, and its rank
    for (const auto& [node, lives] : round->lives) {
      const v1::PartitionLife& any = *lives.front();
      calls.push_back({Signed(any.last_call()), node * local_size + any.last_rank()});
      // A single node: its last rank is compared with its first, which waited.
      if (round->lives.size() == 1) {
        calls.push_back({Signed(any.first_call()), calls.back().second});
      }
    }
    if (calls.size() < 2) continue;
    std::sort(calls.begin(), calls.end());
    const auto& [last, rank] = calls.back();
    double& most = late[rank];
    most = std::max(most, Seconds(last - calls[calls.size() - 2].first));
  }
  for (const auto& [rank, seconds] : late) (*compute)[rank] += seconds;
}

void AddIntraNode(const Step& step, SecondsAt* intra_node) {
  for (const Round* round : step.rounds) {
    for (const auto& [node, lives] : round->lives) {
      int64_t ready = 0;
      for (const v1::PartitionLife* life : lives) ready = std::max(ready, Signed(life->ready()));
      (*intra_node)[node] +=
          Seconds(std::max<int64_t>(0, ready - Signed(lives.front()->last_call())));
    }
  }
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// A machine with a link: a node with its colocated server, or a CPU server.
struct Machine {
  bool is_server = false;
  uint32_t number = 0;  // node rank or server id
  auto operator<=>(const Machine&) const = default;
};

// The traffic between two machines.
struct Flow {
  double bytes = 0;
  double seconds = 0;  // summed over all transfers, each from its first byte to its last
};

// The traffic of all steps: through every machine's link, by peer.
class Links {
 public:
  void Add(const Machine& a, const Machine& b, const Interval& interval, uint32_t bytes) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      Flow& flow = flows_[from][to];
      flow.bytes += bytes;
      flow.seconds += Seconds(std::max<int64_t>(0, interval.second - interval.first));
      transfers_[from].push_back(interval);
    }
  }
  // Adds the time since the last call in which transfers were under way through each link.
  void EndStep() {
    for (auto& [machine, transfers] : transfers_) {
      busy_[machine] += Seconds(Union(std::move(transfers)));
      transfers.clear();
    }
  }
  std::vector<Machine> machines() const {
    std::vector<Machine> all;
    for (const auto& [machine, flows] : flows_) all.push_back(machine);
    return all;
  }
  double BusySeconds(const Machine& machine) const {
    const auto found = busy_.find(machine);
    return found == busy_.end() ? 0 : found->second;
  }
  // Returns the time per byte between this machine and the median of the others. If transfers are
  // slow with a single peer only, that peer is the cause.
  double SecondsPerByte(const Machine& machine) const {
    std::vector<double> with_each;
    for (const auto& [other, flow] : flows_.at(machine)) {
      if (flow.bytes > 0) with_each.push_back(flow.seconds / flow.bytes);
    }
    return Median(std::move(with_each));
  }

 private:
  std::map<Machine, std::map<Machine, Flow>> flows_;
  std::map<Machine, std::vector<Interval>> transfers_;  // of the present step
  std::map<Machine, double> busy_;
};

// A contribution is in transit from its first byte out until it has arrived; a result while it is
// received.
void AddLinks(const Step& step, const Arrivals& arrivals,
              const std::map<uint32_t, uint32_t>& colocated, Links* links) {
  for (const Round* round : step.rounds) {
    for (const auto& [node, lives] : round->lives) {
      for (const v1::PartitionLife* life : lives) {
        const Machine from{.is_server = false, .number = node};
        const auto home = colocated.find(life->server_id());
        const Machine to = home == colocated.end()
                               ? Machine{.is_server = true, .number = life->server_id()}
                               : Machine{.is_server = false, .number = home->second};
        if (from == to) continue;  // passed as a pointer, not over a link
        const auto arrived = arrivals.find({KeyOf(*life), node});
        const int64_t there =
            arrived == arrivals.end() ? Signed(life->last_out()) : arrived->second;
        links->Add(from, to, {Signed(life->first_out()), there}, life->bytes());
        links->Add(from, to, {Signed(life->first_in()), Signed(life->last_in())}, life->bytes());
      }
    }
  }
  links->EndStep();
}

// Finds the place with the largest measure and compares it with the median of the others; `places`
// without a measurement count.
Suspect Outstanding(Cause cause, const SecondsAt& measure, const std::set<uint32_t>& places,
                    double steps, const std::function<std::string(uint32_t)>& name) {
  Suspect suspect{.cause = cause, .number = 0, .place = "", .own_s = -1, .others_s = 0};
  const auto of = [&measure, steps](uint32_t place) {
    const auto found = measure.find(place);
    return found == measure.end() ? 0 : found->second / steps;
  };
  for (const uint32_t place : places) {
    if (of(place) > suspect.own_s) suspect.number = place, suspect.own_s = of(place);
  }
  std::vector<double> others;
  for (const uint32_t place : places) {
    if (place != suspect.number) others.push_back(of(place));
  }
  suspect.own_s = std::max(0.0, suspect.own_s);
  // A late rank is already measured against the others; a place without others cannot stand out.
  suspect.others_s = cause == Cause::kCompute ? 0 : others.empty() ? suspect.own_s : Median(others);
  suspect.place = name(suspect.number);
  return suspect;
}

// Finds the machine with the longest time per byte. `others_s`: the time for which its link would
// be busy at the median machine's time per byte.
Suspect OutstandingLink(const Links& links, double steps,
                        const std::function<std::string(const Machine&)>& name) {
  Suspect suspect{.cause = Cause::kNodeLink, .number = 0, .place = "", .own_s = 0, .others_s = 0};
  double slowest = 0;
  Machine machine;
  for (const Machine& candidate : links.machines()) {
    const double per_byte = links.SecondsPerByte(candidate);
    if (per_byte > slowest) machine = candidate, slowest = per_byte;
  }
  if (slowest == 0) return suspect;
  std::vector<double> others;
  for (const Machine& other : links.machines()) {
    if (other != machine) others.push_back(links.SecondsPerByte(other));
  }
  suspect.cause = machine.is_server ? Cause::kServerLink : Cause::kNodeLink;
  suspect.number = machine.number;
  suspect.place = "the link of " + name(machine);
  suspect.own_s = links.BusySeconds(machine) / steps;
  const double times_slower = slowest / Median(std::move(others));
  // Windows and the order of sending have smaller effects on transfers.
  suspect.others_s = times_slower < kSlower ? suspect.own_s : suspect.own_s / times_slower;
  return suspect;
}

PartTimes MeanParts(const std::vector<Step>& steps) {
  PartTimes sum;
  double count = 0;
  for (const Step& step : steps) {
    for (const Round* round : step.rounds) {
      for (const auto& [node, lives] : round->lives) {
        for (const v1::PartitionLife* life : lives) {
          ++count;
          sum.intra_node_s += Seconds(Signed(life->ready()) - Signed(life->first_call()));
          sum.queue_s += Seconds(Signed(life->first_out()) - Signed(life->ready()));
          sum.push_s += Seconds(Signed(life->last_out()) - Signed(life->first_out()));
          sum.sum_s += Seconds(Signed(life->first_in()) - Signed(life->last_out()));
          sum.pull_s += Seconds(Signed(life->last_in()) - Signed(life->first_in()));
        }
      }
    }
  }
  if (count == 0) return sum;
  return {sum.intra_node_s / count, sum.queue_s / count, sum.push_s / count, sum.sum_s / count,
          sum.pull_s / count};
}

std::string Explain(const Bottleneck& b) {
  if (b.steps == 0) return "no round was recorded on all nodes";
  const std::string took = absl::StrFormat("steps take %.1f ms", b.step_s * 1e3);
  if (!b.found()) {
    return absl::StrFormat("%s, and no rank, node, server or link stands out", took);
  }
  const Suspect& s = b.suspects.front();
  const double own = s.own_s * 1e3, others = s.others_s * 1e3;
  switch (s.cause) {
    case Cause::kCompute:
      return absl::StrFormat(
          "%s, of which all wait %.1f ms for %s: it calls later than all others, so its own "
          "computation is what takes longer",
          took, own, s.place);
    case Cause::kIntraNode:
      return absl::StrFormat(
          "%s, because %s takes %.1f ms from its ranks' calls until it can send, others %.1f ms: "
          "copies to shared memory (PCIe) or the sum of its ranks",
          took, s.place, own, others);
    case Cause::kNodeLink:
    case Cause::kServerLink:
      return absl::StrFormat(
          "%s, because %s is busy for %.1f ms of each: its bytes take %.1f times as long as "
          "others'",
          took, s.place, own, others > 0 ? own / others : 0);
    case Cause::kServerSum:
      return absl::StrFormat("%s, because %s adds for %.1f ms of each, others for %.1f ms", took,
                             s.place, own, others);
  }
  return took;
}

}  // namespace

std::string NameOf(Cause cause) {
  switch (cause) {
    case Cause::kCompute:
      return "compute";
    case Cause::kIntraNode:
      return "intra_node";
    case Cause::kNodeLink:
      return "node_link";
    case Cause::kServerLink:
      return "server_link";
    case Cause::kServerSum:
      return "server_sum";
  }
  return "";
}

bool Bottleneck::found() const {
  return !suspects.empty() && suspects.front().excess_s() > kNoticeable * step_s;
}

Bottleneck FindBottleneck(const JobTrace& trace) {
  Bottleneck result;
  const std::vector<Round> rounds = CompleteRounds(trace);
  const std::vector<Step> steps = StepsOf(rounds);
  result.steps = steps.size();
  if (steps.empty()) {
    result.sentence = Explain(result);
    return result;
  }
  const auto count = static_cast<double>(steps.size());
  std::set<TensorRound> known;
  for (const Round& round : rounds) {
    known.insert(round.key);
    for (const v1::PartitionLife* life : round.lives.begin()->second) {
      result.bytes += life->bytes() / count;
    }
  }
  Arrivals arrivals;
  Measures measures;
  Links links;
  std::set<uint32_t> ranks, nodes, servers;
  std::map<uint32_t, uint32_t> colocated;  // server -> node
  std::map<uint32_t, std::string> hosts_of_nodes, hosts_of_servers;
  for (const ServerTrace& server : trace.servers) {
    servers.insert(server.id);
    hosts_of_servers[server.id] = server.host;
    if (server.colocated) colocated[server.id] = server.node;
    for (const v1::SumEvent& event : server.events) {
      const PartitionRound key = KeyOf(event);
      if (!known.contains(key.second)) continue;
      if (event.kind() == v1::SumEvent::RECEIVED) {
        int64_t& there = arrivals[{key, event.node()}];
        there = std::max(there, Signed(event.end()));
      } else if (event.kind() == v1::SumEvent::SUMMED) {
        measures.server_sum[server.id] += event.busy_ns() * 1e-9;
      }
    }
  }
  for (const NodeTrace& node : trace.nodes) {
    nodes.insert(node.rank);
    hosts_of_nodes[node.rank] = node.host;
    for (uint32_t local = 0; local < trace.local_size; ++local) {
      ranks.insert(node.rank * trace.local_size + local);
    }
  }
  for (const Step& step : steps) {
    result.step_s += Seconds(step.span.second - step.span.first) / count;
    AddCompute(step, trace.local_size, &measures.compute);
    AddIntraNode(step, &measures.intra_node);
    AddLinks(step, arrivals, colocated, &links);
  }
  result.parts = MeanParts(steps);

  const auto node_named = [&](uint32_t node) {
    return absl::StrFormat("node %d (on %s)", node, hosts_of_nodes[node]);
  };
  const auto server_named = [&](uint32_t server) {
    const auto home = colocated.find(server);
    return home == colocated.end()
               ? absl::StrFormat("summation server %d (on %s)", server, hosts_of_servers[server])
               : absl::StrFormat("the summation server of node %d (on %s)", home->second,
                                 hosts_of_servers[server]);
  };
  const auto rank_named = [&](uint32_t rank) {
    return absl::StrFormat("rank %d (node %d, on %s)", rank, rank / trace.local_size,
                           hosts_of_nodes[rank / trace.local_size]);
  };
  const auto machine_named = [&](const Machine& machine) {
    return machine.is_server ? server_named(machine.number) : node_named(machine.number);
  };
  result.suspects = {
      Outstanding(Cause::kCompute, measures.compute, ranks, count, rank_named),
      Outstanding(Cause::kIntraNode, measures.intra_node, nodes, count, node_named),
      OutstandingLink(links, count, machine_named),
      Outstanding(Cause::kServerSum, measures.server_sum, servers, count, server_named)};
  std::stable_sort(result.suspects.begin(), result.suspects.end(),
                   [](const Suspect& a, const Suspect& b) { return a.excess_s() > b.excess_s(); });
  PreferCopies(trace.local_size, &result.suspects);
  result.sentence = Explain(result);
  return result;
}

}  // namespace addend
