// Pairs every member with its record in the earlier sample; rates are computed only between two
// records of the same incarnation, since a restart resets the counters.
#include "tools/addendctl/top_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/units.h"
#include "lib/status/status_json.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

constexpr int kEvents = 5;
constexpr uint64_t kRecentRounds = 20;  // the number of rounds in RoundTimes.recent_s

// Two answers of the same process of a member; `before` is null if only `now` has it.
template <typename Member>
struct Pair {
  const Member* before;
  const Member* now;
};

std::optional<double> Rate(uint64_t before, uint64_t now, double seconds) {
  if (now < before || seconds <= 0) return std::nullopt;
  return static_cast<double>(now - before) * 8 / seconds;
}

template <typename Member>
std::optional<double> Sent(const Pair<Member>& pair, double seconds) {
  if (pair.before == nullptr) return std::nullopt;
  return Rate(pair.before->traffic().network_bytes_sent(), pair.now->traffic().network_bytes_sent(),
              seconds);
}

template <typename Member>
std::optional<double> Received(const Pair<Member>& pair, double seconds) {
  if (pair.before == nullptr) return std::nullopt;
  return Rate(pair.before->traffic().network_bytes_received(),
              pair.now->traffic().network_bytes_received(), seconds);
}

template <typename Member>
bool SameProcess(const Member& a, const Member& b) {
  return a.incarnation() == b.incarnation();
}

Pair<v1::ServerStatus> PairOf(const Sample* before, const v1::ServerStatus& now) {
  if (before == nullptr) return {nullptr, &now};
  for (const auto& server : before->status.servers()) {
    if (server.server_id() == now.server_id() && SameProcess(server, now)) return {&server, &now};
  }
  return {nullptr, &now};
}

Pair<v1::NodeStatus> PairOf(const Sample* before, const v1::JobStatus& job,
                            const v1::NodeStatus& now) {
  if (before == nullptr) return {nullptr, &now};
  for (const auto& other : before->status.jobs()) {
    if (other.job_id() != job.job_id()) continue;
    for (const auto& node : other.nodes()) {
      if (node.node_rank() == now.node_rank() && SameProcess(node, now)) return {&node, &now};
    }
  }
  return {nullptr, &now};
}

// Sums of the last rounds of some nodes.
struct Rounds {
  double seconds = 0;
  double optimal_s = 0;
  uint64_t rounds = 0;

  void Add(const v1::RoundTimes& times) {
    seconds += times.recent_s();
    optimal_s += times.recent_optimal_s();
    rounds += std::min(times.rounds(), kRecentRounds);
  }
  std::optional<double> MeanSeconds() const { return Mean(seconds); }
  std::optional<double> MeanOptimal() const {
    return optimal_s > 0 ? Mean(optimal_s) : std::nullopt;
  }
  std::optional<double> Efficiency() const {
    if (seconds <= 0 || optimal_s <= 0) return std::nullopt;
    return std::min(1.0, optimal_s / seconds);
  }

 private:
  std::optional<double> Mean(double sum) const {
    if (rounds == 0) return std::nullopt;
    return sum / static_cast<double>(rounds);
  }
};

const v1::ServerStatus* ServerOf(const v1::GetStatusResponse& status, uint32_t id) {
  for (const auto& server : status.servers()) {
    if (server.server_id() == id) return &server;
  }
  return nullptr;
}

TopJob JobRow(const Sample* before, const Sample& now, const v1::JobStatus& job, double seconds) {
  TopJob row{.name = job.name(),
             .state = StateName(job.state()),
             .nodes = job.settings().num_nodes(),
             .tensors = job.tensors(),
             .tensor_bytes = job.tensor_bytes()};
  Rounds rounds;
  for (const auto& node : job.nodes()) {
    if (!node.connected()) continue;
    ++row.connected;
    rounds.Add(node.rounds());
    const auto pair = PairOf(before, job, node);
    if (pair.before == nullptr) continue;
    const v1::Traffic& then = pair.before->traffic();
    const v1::Traffic& here = node.traffic();
    const auto rate = Rate(then.network_bytes_sent() + then.local_bytes(),
                           here.network_bytes_sent() + here.local_bytes(), seconds);
    if (rate) row.pushed_bps = row.pushed_bps.value_or(0) + *rate;
  }
  row.round_s = rounds.MeanSeconds();
  row.optimal_s = rounds.MeanOptimal();
  if (row.optimal_s && job.t_opt_s() > 0 && job.t_opt_encoded_s() > 0) {
    row.optimal_encoded_s = *row.optimal_s * job.t_opt_encoded_s() / job.t_opt_s();
  }
  row.efficiency = rounds.Efficiency();
  for (const auto& share : job.shares()) {
    const v1::ServerStatus* server = ServerOf(now.status, share.server_id());
    if (server != nullptr && !server->colocated()) ++row.cpu_servers;
  }
  return row;
}

// Returns the server's share of the bytes of all jobs for which it sums.
double ShareOf(const v1::GetStatusResponse& status, uint32_t server_id) {
  double mine = 0;
  double all = 0;
  for (const auto& job : status.jobs()) {
    for (const auto& share : job.shares()) {
      if (share.server_id() != server_id) continue;
      mine += share.assigned() * static_cast<double>(job.tensor_bytes());
      all += static_cast<double>(job.tensor_bytes());
    }
  }
  return all > 0 ? mine / all : 0;
}

TopServer ServerRow(const Sample* before, const Sample& now, const v1::ServerStatus& server,
                    double seconds) {
  const auto pair = PairOf(before, server);
  return {.id = server.server_id(),
          .host = server.hostname(),
          .kind = server.colocated()
                      ? absl::StrFormat("node %d of %s", server.node_rank(), server.job())
                      : "cpu",
          .share = ShareOf(now.status, server.server_id()),
          .in_bps = Received(pair, seconds),
          .out_bps = Sent(pair, seconds),
          .memory_used_bytes = server.memory_used_bytes(),
          .memory_limit_bytes = server.memory_limit_bytes(),
          .last_seen_s = server.last_seen_s(),
          .speed = server.speed(),
          .draining = server.draining()};
}

TopNode NodeRow(const Sample* before, const v1::JobStatus& job, const v1::NodeStatus& node,
                double seconds) {
  const auto pair = PairOf(before, job, node);
  Rounds rounds;
  rounds.Add(node.rounds());
  return {.job = job.name(),
          .rank = node.node_rank(),
          .host = node.hostname(),
          .connected = node.connected(),
          .in_bps = Received(pair, seconds),
          .out_bps = Sent(pair, seconds),
          .round_s = rounds.MeanSeconds(),
          .efficiency = rounds.Efficiency(),
          .last_seen_s = node.last_seen_s(),
          .activity = node.activity()};
}

std::string SecondsCell(const std::optional<double>& seconds) {
  return seconds ? FormatSeconds(*seconds) : "-";
}
std::string RateCell(const std::optional<double>& bps) {
  if (!bps) return "-";
  constexpr const char* kUnits[] = {"bps", "Kbps", "Mbps", "Gbps", "Tbps"};
  double value = *bps;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", value, kUnits[unit]);
}
std::string PercentCell(const std::optional<double>& part) {
  return part ? FormatPercent(*part) : "-";
}
std::string HostCell(const std::string& host) { return host.empty() ? "-" : host; }

std::string JobsBlock(const TopView& view) {
  if (view.jobs.empty()) return "No jobs.\n";
  Table table({"JOB", "STATE", "NODES", "CPU SERVERS", "TENSORS", "SIZE", "ROUND", "OPTIMUM",
               "ENCODED", "EFFICIENCY", "PUSHED"});
  for (const TopJob& job : view.jobs) {
    table.Add({job.name, job.state, absl::StrFormat("%d of %d", job.connected, job.nodes),
               std::to_string(job.cpu_servers), std::to_string(job.tensors),
               FormatSize(static_cast<double>(job.tensor_bytes)), SecondsCell(job.round_s),
               SecondsCell(job.optimal_s), SecondsCell(job.optimal_encoded_s),
               PercentCell(job.efficiency), RateCell(job.pushed_bps)});
  }
  return table.ToString();
}

std::string ServersBlock(const TopView& view) {
  if (view.servers.empty()) return "No summation servers.\n";
  Table table({"SERVER", "HOST", "KIND", "SHARE", "IN", "OUT", "MEMORY", "SEEN", "SPEED"});
  for (const TopServer& server : view.servers) {
    std::string memory = FormatSize(static_cast<double>(server.memory_used_bytes));
    if (server.memory_limit_bytes != 0) {
      memory += " of " + FormatSize(static_cast<double>(server.memory_limit_bytes));
    }
    table.Add({std::to_string(server.id), HostCell(server.host),
               server.kind + (server.draining ? ", draining" : ""), FormatPercent(server.share),
               RateCell(server.in_bps), RateCell(server.out_bps), memory,
               FormatSeconds(server.last_seen_s) + " ago", FormatPercent(server.speed)});
  }
  return table.ToString();
}

std::string NodesBlock(const TopView& view) {
  if (view.nodes.empty()) return "No nodes.\n";
  Table table({"NODE", "JOB", "HOST", "IN", "OUT", "ROUND", "EFFICIENCY", "SEEN", "ACTIVITY"});
  for (const TopNode& node : view.nodes) {
    table.Add({std::to_string(node.rank), node.job, HostCell(node.host), RateCell(node.in_bps),
               RateCell(node.out_bps), SecondsCell(node.round_s), PercentCell(node.efficiency),
               FormatSeconds(node.last_seen_s) + " ago",
               node.connected ? HostCell(node.activity) : "not connected"});
  }
  return table.ToString();
}

std::string EventsBlock(const TopView& view) {
  std::string text;
  for (const TopEvent& event : view.events) {
    text += absl::StrFormat("%s ago  %s\n", FormatSeconds(event.age_s), event.text);
  }
  return text;
}

nlohmann::ordered_json NumberOrNull(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json RowsJson(const TopView& view) {
  using Rows = nlohmann::ordered_json;
  Rows json = {{"version", view.version},
               {"uptime_s", view.uptime_s},
               {"recommended_servers", view.recommended_servers},
               {"jobs", Rows::array()},
               {"servers", Rows::array()},
               {"nodes", Rows::array()},
               {"events", Rows::array()}};
  for (const TopJob& job : view.jobs) {
    json["jobs"].push_back({{"name", job.name},
                            {"state", job.state},
                            {"connected", job.connected},
                            {"num_nodes", job.nodes},
                            {"cpu_servers", job.cpu_servers},
                            {"tensors", job.tensors},
                            {"tensor_bytes", job.tensor_bytes},
                            {"round_s", NumberOrNull(job.round_s)},
                            {"optimal_s", NumberOrNull(job.optimal_s)},
                            {"optimal_encoded_s", NumberOrNull(job.optimal_encoded_s)},
                            {"efficiency", NumberOrNull(job.efficiency)},
                            {"pushed_bps", NumberOrNull(job.pushed_bps)}});
  }
  for (const TopServer& server : view.servers) {
    json["servers"].push_back({{"server_id", server.id},
                               {"hostname", server.host},
                               {"kind", server.kind},
                               {"share", server.share},
                               {"in_bps", NumberOrNull(server.in_bps)},
                               {"out_bps", NumberOrNull(server.out_bps)},
                               {"memory_used_bytes", server.memory_used_bytes},
                               {"memory_limit_bytes", server.memory_limit_bytes},
                               {"last_seen_s", server.last_seen_s},
                               {"speed", server.speed},
                               {"draining", server.draining}});
  }
  for (const TopNode& node : view.nodes) {
    json["nodes"].push_back({{"job", node.job},
                             {"node_rank", node.rank},
                             {"hostname", node.host},
                             {"connected", node.connected},
                             {"in_bps", NumberOrNull(node.in_bps)},
                             {"out_bps", NumberOrNull(node.out_bps)},
                             {"round_s", NumberOrNull(node.round_s)},
                             {"efficiency", NumberOrNull(node.efficiency)},
                             {"last_seen_s", node.last_seen_s},
                             {"activity", node.activity}});
  }
  for (const TopEvent& event : view.events) {
    json["events"].push_back({{"number", event.number},
                              {"unix_s", event.unix_s},
                              {"kind", event.kind},
                              {"text", event.text}});
  }
  return json;
}

// Counts characters, not bytes: names are UTF-8.
std::string Cut(const std::string& line, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if ((line[i] & 0xC0) == 0x80) continue;
    if (characters++ == columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

TopView MakeTopView(const Sample* before, const Sample& now) {
  const double seconds = before == nullptr ? 0 : now.at_s - before->at_s;
  const v1::GetStatusResponse& status = now.status;
  TopView view{.version = status.version(),
               .uptime_s = status.uptime_s(),
               .recommended_servers = status.recommended_servers()};
  for (const auto& job : status.jobs()) {
    view.jobs.push_back(JobRow(before, now, job, seconds));
    for (const auto& node : job.nodes()) {
      view.nodes.push_back(NodeRow(before, job, node, seconds));
    }
  }
  for (const auto& server : status.servers()) {
    view.servers.push_back(ServerRow(before, now, server, seconds));
  }
  for (int i = std::max(0, status.events_size() - kEvents); i < status.events_size(); ++i) {
    const v1::Event& event = status.events(i);
    view.events.push_back({.number = event.number(),
                           .unix_s = event.unix_s(),
                           .age_s = std::max(0.0, status.now_unix_s() - event.unix_s()),
                           .kind = event.kind(),
                           .text = event.text()});
  }
  return view;
}

std::string TopText(const TopHeader& header, const TopView* view) {
  std::string text = "Scheduler " + header.scheduler;
  if (view != nullptr) {
    const auto cpu = std::count_if(view->servers.begin(), view->servers.end(),
                                   [](const TopServer& server) { return server.kind == "cpu"; });
    text += absl::StrFormat(": version %s, up %s, %d job%s, %d CPU server%s", view->version,
                            FormatSeconds(view->uptime_s), view->jobs.size(),
                            view->jobs.size() == 1 ? "" : "s", cpu, cpu == 1 ? "" : "s");
    if (view->recommended_servers > 0) {
      text += absl::StrFormat(" (%d recommended)", view->recommended_servers);
    }
  }
  text += "\n";
  if (!header.away.empty()) {
    text += absl::StrFormat("AWAY since %s, asking again: %s\n", FormatSeconds(header.away_s),
                            header.away);
  }
  if (view == nullptr) return text;
  text += absl::StrFormat("\n%s\n%s\n%s", JobsBlock(*view), ServersBlock(*view), NodesBlock(*view));
  const std::string events = EventsBlock(*view);
  return events.empty() ? text : absl::StrFormat("%s\n%s", text, events);
}

std::string TopJson(const TopHeader& header, const TopView* view) {
  nlohmann::ordered_json json = {{"unix_s", header.unix_s}, {"scheduler", header.scheduler}};
  json["away_s"] =
      header.away.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(header.away_s);
  if (view != nullptr) json.update(RowsJson(*view));
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string FitScreen(const std::string& text, size_t columns, size_t rows) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  if (rows > 0 && lines.size() > rows) lines.resize(rows);
  std::string fitting;
  for (const std::string& line : lines) {
    fitting += (columns > 0 ? Cut(line, columns) : line) + "\n";
  }
  return fitting;
}

}  // namespace addend
