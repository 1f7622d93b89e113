// addendctl: asks a running cluster what it does, and the planner what it would do.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/options.h"
#include "tools/addendctl/ask.h"
#include "tools/addendctl/drain_command.h"
#include "tools/addendctl/options.h"
#include "tools/addendctl/plan_command.h"
#include "tools/addendctl/status_json.h"
#include "tools/addendctl/status_table.h"
#include "tools/addendctl/why_command.h"

namespace addend {
namespace {

constexpr char kCommands[] = "plan, status, jobs, nodes, why, drain or help";

constexpr char kHelp[] =
    R"(Asks a running Addend cluster what it does, and the planner what it would do.

  addendctl plan --gpu-nodes=8 --cpu-nodes=4 --bytes=1GB --bandwidth=25Gbps
      What CPU machines would bring, without a cluster. With --bandwidths, one per machine. With --model=bert-large
      instead of --bytes: how long a round of that model's tensors takes, and whether more CPU machines would help.
  addendctl status [--scheduler=HOST:PORT] [--job=NAME]
      The scheduler, the summation servers with their traffic, the jobs with their plan.
  addendctl jobs | addendctl nodes
      One line for every job, or every node of every job.
  addendctl drain SERVER
      Moves what a CPU server (its number) sums to others, while the jobs run, and waits until it is done; the server's
      process then ends with status 0.
  addendctl why JOB
      Whom the job waits for, in one sentence: asks its agents and its summation servers.

--json prints one line of JSON instead. Names end with their unit (_s, _bytes, _bps); shares are fractions of all
tensors' bytes; null has no meaning or is not known.
  plan    {n, k, share_cpu, share_gpu, t_opt_s, t_allreduce_s, t_ps_s, speedup_vs_allreduce, speedup_vs_ps}; share_cpu
          is Eq. 1's also for k = 0; with --bandwidths, shares [GPU machines, CPU machines] instead of the two; and
          where bandwidths are known, simulation {model (null: one tensor of --bytes), tensors, bytes, partition_bytes, partitions, balanced {t_s, t_opt_s, fill_s, imbalance
          (of the busiest link)}, hash (the paper's assignment; as balanced), further [{cpu_nodes, t_s}]}
  status  {version, uptime_s, store, servers [{server_id, incarnation, hostname, control_address, endpoints, shards,
          bandwidth_bps, memory_limit_bytes, memory_used_bytes, colocated, job, node_rank, last_seen_s, activity,
          draining, speed (the part of its bandwidth that the plan counts on), shares [{job, share, assigned}], traffic_share, traffic}], jobs (as below)}
  jobs    [{name, job_id, generation, state (forming, ready or failed), reason, settings, plan_version, tensors,
          tensor_bytes, uptime_s, t_opt_s, shares [{server_id, share, assigned}], nodes (as below, without job)}]
  nodes   [{job, node_rank, connected, hostname, control_address, incarnation, bandwidth_bps, last_seen_s, activity,
          links (by transport, and why not RDMA), traffic}]
  why     {job, state, waits_for (the sentence), tensor, round, open_s, nodes [rank], ranks [rank]}; nodes of which nobody
          has pushed, and single ranks of the others
  drain   {server_id, drained}
  traffic {network_bytes_sent, network_bytes_received, local_bytes, copied_bytes, partitions_sealed,
          payload_bytes_summed}; traffic_share is a server's part of all payload_bytes_summed

Exit status: 0, 64 for a wrong command or flag, 76 if the scheduler does not answer.)";

absl::StatusOr<std::string> Plan() {
  return AnswerPlan({.gpu_nodes = absl::GetFlag(FLAGS_gpu_nodes),
                     .cpu_nodes = absl::GetFlag(FLAGS_cpu_nodes),
                     .bytes = absl::GetFlag(FLAGS_bytes).bytes,
                     .bandwidth_bps = absl::GetFlag(FLAGS_bandwidth).bits_per_second,
                     .bandwidths = absl::GetFlag(FLAGS_bandwidths),
                     .model = absl::GetFlag(FLAGS_model),
                     .partition_bytes = absl::GetFlag(FLAGS_partition_bytes).bytes,
                     .json = absl::GetFlag(FLAGS_json)});
}

absl::StatusOr<v1::GetStatusResponse> AskScheduler(const std::string& scheduler) {
  return AskStatus(scheduler, absl::GetFlag(FLAGS_job), absl::GetFlag(FLAGS_timeout));
}

absl::StatusOr<std::string> Why(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) {
    return absl::InvalidArgumentError("addendctl why needs the name of one job: addendctl why JOB");
  }
  ADDEND_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                          AskScheduler(absl::GetFlag(FLAGS_scheduler).ToString()));
  return AnswerWhy(status, arguments[1], absl::GetFlag(FLAGS_timeout), absl::GetFlag(FLAGS_json));
}

absl::StatusOr<std::string> Drain(const std::vector<std::string>& arguments) {
  uint32_t server = 0;
  if (arguments.size() != 2 || !absl::SimpleAtoi(arguments[1], &server)) {
    return absl::InvalidArgumentError(
        "addendctl drain needs the number of one server, as addendctl status lists it: addendctl "
        "drain SERVER");
  }
  return DrainServer(absl::GetFlag(FLAGS_scheduler).ToString(), server,
                     absl::GetFlag(FLAGS_timeout), absl::GetFlag(FLAGS_json));
}

absl::StatusOr<std::string> Answer(const std::vector<std::string>& arguments) {
  const std::string& command = arguments.front();
  if (command == "why") return Why(arguments);
  if (command == "drain") return Drain(arguments);
  const bool asks = command == "status" || command == "jobs" || command == "nodes";
  if (!asks && command != "plan" && command != "help") {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not a command of addendctl: use %s", command, kCommands));
  }
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' on the command line is not expected: addendctl %s takes no argument",
                        arguments[1], command));
  }
  if (command == "plan") return Plan();
  if (command == "help") return absl::StrFormat("%s\n", kHelp);
  const std::string scheduler = absl::GetFlag(FLAGS_scheduler).ToString();
  const bool json = absl::GetFlag(FLAGS_json);
  ADDEND_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, AskScheduler(scheduler));
  if (command == "jobs") return json ? JobsJson(status) : JobsText(status);
  if (command == "nodes") return json ? NodesJson(status) : NodesText(status);
  return json ? StatusJson(status) : StatusText(status, scheduler);
}

absl::Status Run(const std::vector<std::string>& arguments) {
  ADDEND_RETURN_IF_ERROR(InitLogging("addendctl", "warn"));
  if (arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("addendctl needs a command: %s", kCommands));
  }
  ADDEND_ASSIGN_OR_RETURN(const std::string text, Answer(arguments));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  std::vector<std::string> arguments;
  return addend::RunProgram(
      {"addendctl", addend::kHelp}, argc, argv, [&arguments] { return addend::Run(arguments); },
      &arguments);
}
