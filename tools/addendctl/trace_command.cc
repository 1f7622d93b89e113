#include "tools/addendctl/trace_command.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Suspect& suspect) {
  return {{"cause", NameOf(suspect.cause)}, {"number", suspect.number},
          {"place", suspect.place},         {"own_s", suspect.own_s},
          {"others_s", suspect.others_s},   {"excess_s", suspect.excess_s()}};
}

const char* Explained(Cause cause) {
  switch (cause) {
    case Cause::kCompute:
      return "calls later than the others";
    case Cause::kIntraNode:
      return "call to ready to send";
    case Cause::kNodeLink:
    case Cause::kServerLink:
      return "bytes on their way";
    case Cause::kServerSum:
      return "adding";
  }
  return "";
}

}  // namespace

std::string SummaryText(const JobTrace& trace, const Bottleneck& b) {
  std::string text = absl::StrFormat("job '%s': %s.\n", trace.job, b.sentence);
  if (b.steps > 0) {
    text += absl::StrFormat("\n%d steps of %.3f MB each, mean %.1f ms", b.steps, b.bytes / 1e6,
                            b.step_s * 1e3);
    if (trace.t_opt_s > 0) {
      text += absl::StrFormat(" (all tensors at the optimum: %.1f ms)", trace.t_opt_s * 1e3);
    }
    text += absl::StrFormat(
        "\nA partition's way, mean: in the node %.2f ms, queue %.2f ms, push %.2f ms, sum %.2f ms "
        "(the other nodes included), pull %.2f ms\n\n",
        b.parts.intra_node_s * 1e3, b.parts.queue_s * 1e3, b.parts.push_s * 1e3,
        b.parts.sum_s * 1e3, b.parts.pull_s * 1e3);
    text += absl::StrFormat("%-52s %-28s %12s %14s\n", "place that stands out most", "measured",
                            "ms in a step", "if as others");
    for (const Suspect& suspect : b.suspects) {
      text +=
          absl::StrFormat("%-52s %-28s %12.1f %14.1f\n", suspect.place, Explained(suspect.cause),
                          suspect.own_s * 1e3, suspect.others_s * 1e3);
    }
    text += absl::StrFormat("Clocks are known to %.0f us.\n",
                            static_cast<double>(trace.ClockErrorNs()) * 1e-3);
  }
  for (const std::string& silent : trace.silent) {
    text += absl::StrFormat("Did not answer: %s.\n", silent);
  }
  return text;
}

std::string SummaryJson(const JobTrace& trace, const Bottleneck& b) {
  Json json = {{"job", trace.job}, {"steps", b.steps}, {"step_s", b.step_s}, {"bytes", b.bytes}};
  json["t_opt_s"] = trace.t_opt_s > 0 ? Json(trace.t_opt_s) : Json(nullptr);
  json["parts"] = {{"intra_node_s", b.parts.intra_node_s},
                   {"queue_s", b.parts.queue_s},
                   {"push_s", b.parts.push_s},
                   {"sum_s", b.parts.sum_s},
                   {"pull_s", b.parts.pull_s}};
  json["bottleneck"] = b.found() ? ToJson(b.suspects.front()) : Json(nullptr);
  json["sentence"] = b.sentence;
  json["suspects"] = Json::array();
  for (const Suspect& suspect : b.suspects) json["suspects"].push_back(ToJson(suspect));
  json["clock_error_s"] = static_cast<double>(trace.ClockErrorNs()) * 1e-9;
  json["did_not_answer"] = trace.silent;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace addend
