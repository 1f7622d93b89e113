// addendctl: queries a running cluster, and the planner about a hypothetical cluster.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/log_options.h"
#include "lib/options/options.h"
#include "lib/options/stop_signal.h"
#include "lib/rpc/tls_options.h"
#include "lib/status/network_json.h"
#include "lib/status/status_json.h"
#include "tools/addendctl/ask.h"
#include "tools/addendctl/doctor_command.h"
#include "tools/addendctl/drain_command.h"
#include "tools/addendctl/inject_command.h"
#include "tools/addendctl/network_command.h"
#include "tools/addendctl/options.h"
#include "tools/addendctl/plan_command.h"
#include "tools/addendctl/status_table.h"
#include "tools/addendctl/top_command.h"
#include "tools/addendctl/topology_command.h"
#include "tools/addendctl/trace_command.h"
#include "tools/addendctl/trace_data.h"
#include "tools/addendctl/trace_json.h"
#include "tools/addendctl/webhook_command.h"
#include "tools/addendctl/why_command.h"

namespace addend {
namespace {

constexpr char kCommands[] =
    "plan, status, jobs, nodes, network, ranks, top, why, trace, doctor, drain,"
    " inject, webhook, topology or help";

constexpr int kExitProblemFound = 1;

constexpr char kHelp[] =
    R"(Asks a running Addend cluster what it does, and the planner what it would do.

  addendctl plan --gpu-nodes=8 --cpu-nodes=4 --bytes=1GB --bandwidth=25Gbps
      What CPU machines would bring, without a cluster. With --bandwidths, one per machine. With --model=bert-large
      instead of --bytes: how long a round of that model's tensors takes, and whether more CPU machines would help.
      With --contribution-ratio and --result-ratio, payloads take fewer bytes on the wire: the shares are theirs, and
      a further line has their shortest time. All other times stay those of raw bytes.
      With --groups=N [--uplink=BANDWIDTH], such as racks: also what a plan of two levels would take, and the flat plan
      between groups with such links.
  addendctl status [--scheduler=HOST:PORT] [--job=NAME]
      The scheduler, the summation servers with their traffic, the jobs with their plan.
  addendctl jobs | addendctl nodes
      One line for every job, or every node of every job.
  addendctl network
      The hosts by the groups that are near each other, as they were told or as members have measured; the round trips
      and bandwidths within and between groups; and the links that are slower than their like.
  addendctl ranks JOB [--format=hostfile|torchrun|rankfile|json]
      The hosts of a job in an order that puts neighbours together, for mpirun, torchrun or another launcher.
  addendctl drain SERVER [--server-secret-file=FILE]
      Moves what a CPU server (its number) sums to others, while the jobs run, and waits until it is done; the server's
      process then ends with status 0. The file is the scheduler's, where it has one.
  addendctl why JOB
      Whom the job waits for, in one sentence: asks its agents and its summation servers.
  addendctl trace --job=NAME [--rounds=10] > trace.json
      Every partition's way through the last rounds, on all nodes and servers on one clock, for ui.perfetto.dev; and on
      standard error what the rounds waited for: which rank, node, server or link. With --summary only that.
  addendctl top [--interval=1s] [--once]
      The cluster live: jobs with the time of a round and how near it is to the shortest possible, servers and nodes with
      their traffic, and what has just happened. Ctrl-C ends it; --once shows one interval.
  addendctl doctor [--socket=PATH] [--memory=SIZE] [--transport=auto|tcp|rdma] [--bandwidth-probe=SIZE]
                   [--model-bytes=SIZE --local-size=N]
      What is wrong with this machine and with the cluster as seen from it, and what to do about it.
  addendctl inject -f FILE [--scheduler=HOST:PORT] [--job=NAME] [--image=IMAGE] [--model-bytes=SIZE] [--local-size=N]
                   [--agent-cpu=2] [--agent-cpu-limit=2] [--agent-memory=6Gi] [--image-pull-secret=NAME]
                   [--agent-data-interface=net1]
                   [--agent-tls-secret=NAME [--agent-tls-server-name=NAME]] [--job-secret=NAME] [--replicated-job=NAME]
      Prints the Kubernetes YAML of a training job with the agent as a sidecar of its pods: Job, JobSet (its first
      replicated job, or --replicated-job), PyTorchJob, MPIJob (its workers), LeaderWorkerSet (each group is a job), or a
      Pod with the label addend.io/inject: "true". All other objects of the file stay as they are. The job's name is that
      of the object within its namespace. A ResourceList is answered with a ResourceList: in kustomize it is a KRM function.
  addendctl webhook --settings=FILE --tls-cert=FILE --tls-key=FILE [--listen=:9443] [--linger=5s]
      Adds the agent to labelled pods as a mutating admission webhook over HTTPS: the chart runs it where the cluster has
      no MutatingAdmissionPolicy. Renewed certificates are read without a restart.
  addendctl topology [--topology=FILE.xml] [--intranode=STRATEGY] [--explain] [--bytes=SIZE] [--export=FILE.xml]
      Which links to the CPU the GPUs and NICs of this machine share (or of the one that the file records), the strategy
      by which its ranks, one on each GPU, aggregate, and why. With --explain also what each strategy costs. --export
      records this machine.

--json prints one line of JSON instead. Names end with their unit (_s, _bytes, _bps); shares are fractions of all
tensors' bytes; null has no meaning or is not known.
  plan    {n, k, share_cpu, share_gpu, t_opt_s, t_allreduce_s, t_ps_s, speedup_vs_allreduce, speedup_vs_ps,
          contribution_ratio, result_ratio, t_opt_encoded_s (of payloads with these ratios)}; share_cpu
          is Eq. 1's also for k = 0; with --bandwidths, shares [GPU machines, CPU machines] instead of the two; and
          where bandwidths are known, simulation {model (null: one tensor of --bytes), tensors, bytes, partition_bytes, partitions, balanced {t_s, t_opt_s, fill_s, imbalance
          (of the busiest link), t_opt_encoded_s}, hash (the paper's assignment; as balanced), further [{cpu_nodes, t_s}]}; with
          --groups, two_levels {groups, partition_bytes, partitions, t_opt_s, t_s, fill_s, imbalance, links (the most of an
          agent), flat {t_opt_s, t_s, links} (with the same limits between groups)}
  status  {version, uptime_s, store, servers [{server_id, incarnation, hostname, control_address, endpoints, shards,
          bandwidth_bps, memory_limit_bytes, memory_used_bytes, colocated, job, node_rank, last_seen_s, activity,
          draining, speed (the part of its bandwidth that the plan counts on), shares [{job, share, assigned}], traffic_share, traffic}], jobs (as below),
          now_unix_s (the scheduler's clock), recommended_servers (CPU servers with which the jobs of now would be as
          fast as they can get), events [{number, unix_s, kind, job, text}] (the last 200, oldest first)}
  jobs    [{name, job_id, generation, state (forming, ready or failed), reason, settings, plan_version, tensors,
          tensor_bytes, uptime_s, t_opt_s, efficiency (the shortest time possible for the last 20 rounds / the time they
          took), contribution_ratio, result_ratio (bytes on the wire for each raw byte with which the job is planned),
          t_opt_encoded_s, efficiency_encoded (as t_opt_s and efficiency, for these ratios; null until they are measured),
          round_s (their mean), first_nonfinite (the first NaN or infinity, in a sentence), shares [{server_id, share, assigned}], nodes (as below, without job)}]
  nodes   [{job, node_rank, connected, hostname, control_address, incarnation, bandwidth_bps, last_seen_s, activity,
          links (by transport, and why not RDMA), rounds {rounds, seconds, optimal_s, recent_s, recent_optimal_s (of
          the last 20)}, traffic}]
  network {source (told, measured or unknown), levels, hosts [{address, hostname, groups [number] (outermost first), place,
          members}], kinds [{pairs, latency_s, bandwidth_bps}] (medians between hosts that share 0, 1, ... groups),
          slow [{from, to (null: most of its links), latency_s, bandwidth_bps, typical_latency_s, typical_bandwidth_bps}],
          pairs}
  ranks   with --format=json [{node_rank, hostname, address, slots, present_node_rank}]
  why     {job, state, waits_for (the sentence), tensor, round, open_s, nodes [rank], ranks [rank]}; nodes of which nobody
          has pushed, and single ranks of the others
  drain   {server_id, drained}
  trace   with --summary {job, steps, step_s (mean), bytes (of a step), t_opt_s (of all tensors), parts {intra_node_s,
          queue_s, push_s, sum_s, pull_s} (mean of a partition), bottleneck (null: nothing stands out), sentence,
          suspects [{cause (compute, intra_node, node_link, server_link, server_sum), number (rank, node or server), place, own_s,
          others_s (median), excess_s}], clock_error_s, did_not_answer}
  top     one line per interval: {unix_s, scheduler, away_s (null: it answers), version, uptime_s, recommended_servers,
          jobs [{name, state, connected, num_nodes, cpu_servers, tensors, tensor_bytes, round_s, optimal_s, efficiency,
          pushed_bps}], servers [{server_id, hostname, kind, share, in_bps, out_bps, memory_used_bytes,
          memory_limit_bytes (0: none), last_seen_s, speed, draining}], nodes [{job, node_rank, hostname, connected, in_bps,
          out_bps, round_s, efficiency, last_seen_s, activity}], events [{number, unix_s, kind, text}]}
  doctor  {checks [{name, verdict (ok, warning, problem or not_applicable), found, advice}], problems, warnings}
  inject  {yaml, notes}
  topology {switches [{bus_id, on_host_bridge (a device without a switch), numa_node, link_bps, gpus [number], nics
          [number]}], gpus [{bus_id, name, link_bps, switch}], nics [{bus_id, names, link_bps, switch}], nvlinks [[gpu,
          gpu]], nvlink_joins_all, switches_hidden, notes, strategy (null without GPU, and then nothing further), s_n,
          s_g, groups [[rank]], scatter, roots [rank], why}; with --explain costs {bytes, pcie {switches,
          gpus_per_switch, gpu_switch_bps, switch_cpu_bps, best_x, best_s, cpu_assisted_s, copy_s, ring_s} (null: NVLink,
          one GPU or hidden switches), loads {STRATEGY: [{gpus, nics (both in multiples of bytes), nic_share}] of every
          switch; none if they are hidden}}
  traffic {network_bytes_sent, network_bytes_received, local_bytes, copied_bytes, partitions_sealed,
          payload_bytes_summed}; traffic_share is a server's part of all payload_bytes_summed

Exit status: 0, 1 if doctor finds a problem, 64 for a wrong command, flag or file, 76 if the scheduler does not
answer.)";

absl::StatusOr<std::string> Plan() {
  return AnswerPlan(
      {.gpu_nodes = absl::GetFlag(FLAGS_gpu_nodes),
       .cpu_nodes = absl::GetFlag(FLAGS_cpu_nodes),
       .bytes = absl::GetFlag(FLAGS_bytes).bytes,
       .bandwidth_bps = absl::GetFlag(FLAGS_bandwidth).bits_per_second,
       .bandwidths = absl::GetFlag(FLAGS_bandwidths),
       .model = absl::GetFlag(FLAGS_model),
       .partition_bytes = absl::GetFlag(FLAGS_partition_bytes).bytes,
       .ratios = {absl::GetFlag(FLAGS_contribution_ratio), absl::GetFlag(FLAGS_result_ratio)},
       .groups = absl::GetFlag(FLAGS_groups),
       .uplink_bps = absl::GetFlag(FLAGS_uplink).bits_per_second,
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

absl::StatusOr<std::string> Network() {
  ADDEND_ASSIGN_OR_RETURN(
      const v1::GetNetworkResponse network,
      AskNetwork(absl::GetFlag(FLAGS_scheduler).ToString(), absl::GetFlag(FLAGS_timeout)));
  return absl::GetFlag(FLAGS_json) ? NetworkJson(network) : NetworkText(network);
}

absl::StatusOr<std::string> Ranks(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2) {
    return absl::InvalidArgumentError(
        "addendctl ranks needs the name of one job: addendctl ranks JOB");
  }
  const std::string scheduler = absl::GetFlag(FLAGS_scheduler).ToString();
  ADDEND_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, AskScheduler(scheduler));
  ADDEND_ASSIGN_OR_RETURN(const v1::GetNetworkResponse network,
                          AskNetwork(scheduler, absl::GetFlag(FLAGS_timeout)));
  return RanksText(status, network, arguments[1],
                   absl::GetFlag(FLAGS_json) ? "json" : absl::GetFlag(FLAGS_format));
}

absl::StatusOr<std::string> Drain(const std::vector<std::string>& arguments) {
  uint32_t server = 0;
  if (arguments.size() != 2 || !absl::SimpleAtoi(arguments[1], &server)) {
    return absl::InvalidArgumentError(
        "addendctl drain needs the number of one server, as addendctl status lists it: addendctl "
        "drain SERVER");
  }
  return DrainServer(absl::GetFlag(FLAGS_scheduler).ToString(), server,
                     absl::GetFlag(FLAGS_server_secret_file), absl::GetFlag(FLAGS_timeout),
                     absl::GetFlag(FLAGS_json));
}

absl::StatusOr<std::string> Trace() {
  ADDEND_ASSIGN_OR_RETURN(
      const v1::GetStatusResponse status,
      AskStatus(absl::GetFlag(FLAGS_scheduler).ToString(), "", absl::GetFlag(FLAGS_timeout)));
  ADDEND_ASSIGN_OR_RETURN(const JobTrace trace,
                          CollectTrace(status, absl::GetFlag(FLAGS_job),
                                       absl::GetFlag(FLAGS_rounds), absl::GetFlag(FLAGS_timeout)));
  const Bottleneck bottleneck = FindBottleneck(trace);
  if (absl::GetFlag(FLAGS_summary)) {
    return absl::GetFlag(FLAGS_json) ? SummaryJson(trace, bottleneck)
                                     : SummaryText(trace, bottleneck);
  }
  std::fputs(SummaryText(trace, bottleneck).c_str(), stderr);
  return TraceEvents(trace);
}

absl::Status Top(StopSignal* stop) {
  return RunTop({.scheduler = absl::GetFlag(FLAGS_scheduler).ToString(),
                 .job = absl::GetFlag(FLAGS_job),
                 .interval = absl::GetFlag(FLAGS_interval),
                 .timeout = absl::GetFlag(FLAGS_timeout),
                 .once = absl::GetFlag(FLAGS_once),
                 .json = absl::GetFlag(FLAGS_json)},
                stop);
}

absl::StatusOr<std::string> Inject() {
  return AnswerInject({.file = absl::GetFlag(FLAGS_file),
                       .scheduler = absl::GetFlag(FLAGS_scheduler).ToString(),
                       .job = absl::GetFlag(FLAGS_job),
                       .image = absl::GetFlag(FLAGS_image),
                       .cpu = absl::GetFlag(FLAGS_agent_cpu),
                       .cpu_limit = absl::GetFlag(FLAGS_agent_cpu_limit),
                       .memory = absl::GetFlag(FLAGS_agent_memory),
                       .data_interface = absl::GetFlag(FLAGS_agent_data_interface),
                       .pull_secret = absl::GetFlag(FLAGS_image_pull_secret),
                       .tls_secret = absl::GetFlag(FLAGS_agent_tls_secret),
                       .tls_server_name = absl::GetFlag(FLAGS_agent_tls_server_name),
                       .job_secret = absl::GetFlag(FLAGS_job_secret),
                       .model_bytes = absl::GetFlag(FLAGS_model_bytes).bytes,
                       .local_size = absl::GetFlag(FLAGS_local_size),
                       .replicated_job = absl::GetFlag(FLAGS_replicated_job)},
                      absl::GetFlag(FLAGS_json));
}

absl::Status Webhook(StopSignal* stop) {
  ADDEND_RETURN_IF_ERROR(StartLogging({.process = "webhook"}));
  return RunWebhook({.listen = absl::GetFlag(FLAGS_listen),
                     .cert = absl::GetFlag(FLAGS_tls_cert),
                     .key = absl::GetFlag(FLAGS_tls_key),
                     .settings = absl::GetFlag(FLAGS_settings),
                     .linger = absl::GetFlag(FLAGS_linger)},
                    stop);
}

absl::StatusOr<std::string> ShowTopology() {
  return AnswerTopology({.file = absl::GetFlag(FLAGS_topology),
                         .export_file = absl::GetFlag(FLAGS_export),
                         .strategy = absl::GetFlag(FLAGS_intranode),
                         .bytes = absl::GetFlag(FLAGS_bytes).bytes,
                         .explain = absl::GetFlag(FLAGS_explain),
                         .json = absl::GetFlag(FLAGS_json)});
}

// `exit_status`: 1 for a cluster with problems.
absl::Status Doctor(int* exit_status) {
  ADDEND_ASSIGN_OR_RETURN(const Diagnosis diagnosis,
                          RunDoctor({.scheduler = absl::GetFlag(FLAGS_scheduler),
                                     .timeout = absl::GetFlag(FLAGS_timeout),
                                     .socket = absl::GetFlag(FLAGS_socket),
                                     .memory_bytes = absl::GetFlag(FLAGS_memory).bytes,
                                     .model_bytes = absl::GetFlag(FLAGS_model_bytes).bytes,
                                     .local_size = absl::GetFlag(FLAGS_local_size),
                                     .transport = absl::GetFlag(FLAGS_transport),
                                     .probe_bytes = absl::GetFlag(FLAGS_bandwidth_probe).bytes}));
  const std::string text =
      absl::GetFlag(FLAGS_json) ? DoctorJson(diagnosis.checks) : DoctorText(diagnosis.checks);
  std::fputs(text.c_str(), stdout);
  if (HasProblem(diagnosis.checks)) *exit_status = kExitProblemFound;
  return diagnosis.scheduler;
}

absl::StatusOr<std::string> Answer(const std::vector<std::string>& arguments) {
  const std::string& command = arguments.front();
  if (command == "why") return Why(arguments);
  if (command == "network") return Network();
  if (command == "ranks") return Ranks(arguments);
  if (command == "drain") return Drain(arguments);
  if (command == "inject") return Inject();
  if (command == "plan") return Plan();
  if (command == "topology") return ShowTopology();
  if (command == "trace") return Trace();
  if (command == "help") return absl::StrFormat("%s\n", kHelp);
  const std::string scheduler = absl::GetFlag(FLAGS_scheduler).ToString();
  const bool json = absl::GetFlag(FLAGS_json);
  ADDEND_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, AskScheduler(scheduler));
  if (command == "jobs") return json ? JobsJson(status) : JobsText(status);
  if (command == "nodes") return json ? NodesJson(status) : NodesText(status);
  return json ? StatusJson(status) : StatusText(status, scheduler);
}

absl::Status CheckCommand(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("addendctl needs a command: %s", kCommands));
  }
  const std::string& command = arguments.front();
  if (command == "why" || command == "drain" || command == "ranks") return absl::OkStatus();
  const std::initializer_list<std::string_view> alone = {"plan",    "status", "jobs",    "nodes",
                                                         "network", "trace",  "top",     "topology",
                                                         "doctor",  "inject", "webhook", "help"};
  if (std::find(alone.begin(), alone.end(), command) == alone.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not a command of addendctl: use %s", command, kCommands));
  }
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' on the command line is not expected: addendctl %s takes no argument",
                        arguments[1], command));
  }
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& arguments, int* exit_status) {
  ADDEND_RETURN_IF_ERROR(InitLogging({.process = "addendctl", .level = "error"}));
  ADDEND_RETURN_IF_ERROR(CheckCommand(arguments));
  // Blocked before a second thread exists, signals reach the thread that waits for them.
  std::optional<StopSignal> stop;
  if (arguments.front() == "top" || arguments.front() == "webhook") stop.emplace();
  if (arguments.front() == "webhook") return Webhook(&*stop);
  ADDEND_ASSIGN_OR_RETURN(const auto tls, StartTls(PlainText::kAllowed));
  if (stop) return Top(&*stop);
  if (arguments.front() == "doctor") return Doctor(exit_status);
  ADDEND_ASSIGN_OR_RETURN(const std::string text, Answer(arguments));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  // -f as in kubectl; all other flags have long names.
  std::string file = "--file";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "-f") argv[i] = file.data();
  }
  std::vector<std::string> arguments;
  int exit_status = 0;
  const int error = addend::RunProgram(
      {"addendctl", addend::kHelp}, argc, argv,
      [&] { return addend::Run(arguments, &exit_status); }, &arguments);
  return error != 0 ? error : exit_status;
}
