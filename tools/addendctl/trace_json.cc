#include "tools/addendctl/trace_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

// Process numbers: nodes from 1, servers from kServersFrom.
constexpr int kServersFrom = 100000;

struct Span {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  Json arguments;
  std::string flow_out = {};  // the arrow that begins at its end
  std::string flow_in = {};   // the arrow that ends at its begin
};

// Spans of the same kind, in as many rows as overlapping spans need.
class Track {
 public:
  Track() = default;
  void Add(Span span) { spans_.push_back(std::move(span)); }

  // Writes the rows as threads of the process, from *next_row on.
  void Write(const std::string& name, int process, int64_t origin, int* next_row, Json* events) {
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::vector<int64_t> ends;  // the end of each row's last span
    for (const Span& span : spans_) {
      size_t row = 0;
      while (row < ends.size() && ends[row] > span.begin) ++row;
      if (row == ends.size()) {
        ends.push_back(0);
        const std::string label = row == 0 ? name : absl::StrFormat("%s (%d)", name, row + 1);
        WriteName("thread_name", process, *next_row + static_cast<int>(row), label, events);
      }
      ends[row] = span.end;
      WriteSpan(span, process, *next_row + static_cast<int>(row), origin, events);
    }
    *next_row += static_cast<int>(ends.size());
  }

  static void WriteName(const char* what, int process, int thread, const std::string& name,
                        Json* events) {
    events->push_back({{"ph", "M"},
                       {"name", what},
                       {"pid", process},
                       {"tid", thread},
                       {"args", {{"name", name}}}});
    events->push_back(
        {{"ph", "M"},
         {"name", std::string(what) == "process_name" ? "process_sort_index" : "thread_sort_index"},
         {"pid", process},
         {"tid", thread},
         {"args", {{"sort_index", thread == 0 ? process : thread}}}});
  }

 private:
  static double Microseconds(int64_t ns, int64_t origin) {
    return static_cast<double>(ns - origin) * 1e-3;
  }
  static void WriteSpan(const Span& span, int process, int row, int64_t origin, Json* events) {
    const double begin = Microseconds(span.begin, origin);
    const double end = Microseconds(std::max(span.begin, span.end), origin);
    events->push_back({{"ph", "X"},
                       {"name", span.name},
                       {"cat", "addend"},
                       {"pid", process},
                       {"tid", row},
                       {"ts", begin},
                       {"dur", end - begin},
                       {"args", span.arguments}});
    WriteFlow("s", span.flow_out, process, row, begin, events);
    WriteFlow("f", span.flow_in, process, row, begin, events);
  }
  // The viewer binds an arrow to the span that encloses the arrow's time.
  static void WriteFlow(const char* phase, const std::string& id, int process, int row, double time,
                        Json* events) {
    if (id.empty()) return;
    Json event = {{"ph", phase},    {"name", "partition"}, {"cat", "addend"}, {"id", id},
                  {"pid", process}, {"tid", row},          {"ts", time}};
    if (std::string(phase) == "f") event["bp"] = "e";
    events->push_back(std::move(event));
  }

  std::vector<Span> spans_;
};

// Tracks of a process, in display order.
using Tracks = std::map<std::pair<int, std::string>, Track>;

int64_t Signed(uint64_t time) { return static_cast<int64_t>(time); }

std::string FlowOf(const char* way, uint32_t tensor, uint32_t partition, uint64_t round,
                   uint32_t node) {
  return absl::StrFormat("%s-%d-%d-%d-%d", way, tensor, partition, round, node);
}

std::string ServerName(const JobTrace& trace, uint32_t id) {
  for (const ServerTrace& server : trace.servers) {
    if (server.id != id) continue;
    return server.colocated ? absl::StrFormat("node %d's server", server.node)
                            : absl::StrFormat("server %d", id);
  }
  return absl::StrFormat("server %d", id);
}

void AddLife(const JobTrace& trace, uint32_t node, const v1::PartitionLife& life, Tracks* tracks) {
  const std::string name = absl::StrFormat("%s [%d] r%d", trace.TensorNamed(life.tensor_id()),
                                           life.partition(), life.round());
  const Json arguments = {{"tensor", trace.TensorNamed(life.tensor_id())},
                          {"partition", life.partition()},
                          {"round", life.round()},
                          {"bytes", life.bytes()},
                          {"server", life.server_id()},
                          {"shard", life.shard()}};
  const std::string server = ServerName(trace, life.server_id());
  const auto add = [&](int order, const std::string& track, uint64_t begin, uint64_t end,
                       std::string flow_out = "", std::string flow_in = "") {
    (*tracks)[{order, track}].Add(
        {name, Signed(begin), Signed(end), arguments, std::move(flow_out), std::move(flow_in)});
  };
  const auto flow = [&](const char* way) {
    return FlowOf(way, life.tensor_id(), life.partition(), life.round(), node);
  };
  if (life.partition() == 0) {  // the following spans belong to the tensor
    const uint32_t rank = node * trace.local_size + life.last_rank();
    add(0, absl::StrFormat("calls, until the last (rank %d)", rank), life.first_call(),
        life.last_call());
    add(1, "copies to shared memory", life.last_call(), life.last_push());
    add(6, "delivery", life.last_in(), life.delivered());
  }
  add(2, "sum of the local ranks", life.last_push(), life.ready());
  add(3, "queue to " + server, life.ready(), life.first_out());
  add(4, "push to " + server, life.first_out(), life.last_out(), flow("push"));
  add(5, "pull from " + server, life.first_in(), life.last_in(), "", flow("pull"));
}

void AddEvent(const JobTrace& trace, const v1::SumEvent& event, Tracks* tracks) {
  const std::string name = absl::StrFormat("%s [%d] r%d", trace.TensorNamed(event.tensor_id()),
                                           event.partition(), event.round());
  Json arguments = {{"tensor", trace.TensorNamed(event.tensor_id())},
                    {"partition", event.partition()},
                    {"round", event.round()}};
  Span span{.name = name,
            .begin = Signed(event.begin()),
            .end = Signed(event.end()),
            .arguments = std::move(arguments)};
  const auto flow = [&](const char* way) {
    return FlowOf(way, event.tensor_id(), event.partition(), event.round(), event.node());
  };
  switch (event.kind()) {
    case v1::SumEvent::RECEIVED:
      span.arguments["bytes"] = event.bytes();
      span.flow_in = flow("push");
      (*tracks)[{10, absl::StrFormat("from node %d", event.node())}].Add(std::move(span));
      return;
    case v1::SumEvent::SUMMED:
      span.arguments["adding_us"] = event.busy_ns() * 1e-3;
      (*tracks)[{11, "sums"}].Add(std::move(span));
      return;
    default:
      span.arguments["bytes"] = event.bytes();
      span.flow_out = flow("pull");
      (*tracks)[{12, absl::StrFormat("to node %d", event.node())}].Add(std::move(span));
      return;
  }
}

int64_t FirstTime(const JobTrace& trace) {
  int64_t first = INT64_MAX;
  for (const NodeTrace& node : trace.nodes) {
    for (const auto& life : node.lives) first = std::min(first, Signed(life.first_call()));
  }
  for (const ServerTrace& server : trace.servers) {
    for (const auto& event : server.events) first = std::min(first, Signed(event.begin()));
  }
  return first;
}

void WriteProcess(const std::string& name, int process, int64_t origin, Tracks* tracks,
                  Json* events) {
  Track::WriteName("process_name", process, 0, name, events);
  int row = 1;
  for (auto& [key, track] : *tracks) track.Write(key.second, process, origin, &row, events);
}

// Removes arrows with only one recorded end, which would point nowhere.
void DropLooseFlows(Json* events) {
  std::map<std::string, int> ends;
  for (const Json& event : *events) {
    if (event["ph"] == "s") ends[event["id"]] |= 1;
    if (event["ph"] == "f") ends[event["id"]] |= 2;
  }
  std::erase_if(events->get_ref<Json::array_t&>(), [&](const Json& event) {
    return (event["ph"] == "s" || event["ph"] == "f") && ends[event["id"]] != 3;
  });
}

}  // namespace

std::string TraceEvents(const JobTrace& trace) {
  const int64_t origin = FirstTime(trace);
  Json events = Json::array();
  for (const NodeTrace& node : trace.nodes) {
    Tracks tracks;
    for (const auto& life : node.lives) AddLife(trace, node.rank, life, &tracks);
    WriteProcess(absl::StrFormat("node %d (%s)", node.rank, node.host),
                 1 + static_cast<int>(node.rank), origin, &tracks, &events);
  }
  for (const ServerTrace& server : trace.servers) {
    Tracks tracks;
    for (const auto& event : server.events) AddEvent(trace, event, &tracks);
    const std::string name =
        server.colocated
            ? absl::StrFormat("summation server of node %d (%s)", server.node, server.host)
            : absl::StrFormat("summation server %d (%s)", server.id, server.host);
    WriteProcess(name, kServersFrom + static_cast<int>(server.id), origin, &tracks, &events);
  }
  DropLooseFlows(&events);
  Json file;
  file["displayTimeUnit"] = "ms";
  file["otherData"] = {{"job", trace.job},
                       {"clock_error_us", static_cast<double>(trace.ClockErrorNs()) * 1e-3},
                       {"did_not_answer", trace.silent}};
  file["traceEvents"] = std::move(events);
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace addend
