#include "tools/addendctl/options.h"

#include "absl/flags/flag.h"

ABSL_FLAG(addend::PeerAddresses, scheduler, (addend::PeerAddresses{{{"127.0.0.1", 7070}}}),
          "The scheduler's address, HOST:PORT (all but plan and topology).");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(5),
          "How long to wait for an answer (all that ask).");
ABSL_FLAG(
    std::string, job, "",
    "Only this job; empty: all (status, jobs, nodes, top). The name that the job gets; empty: "
    "that of its Kubernetes object (inject).");
ABSL_FLAG(bool, json, false, "Print JSON for programs instead of a table.");
ABSL_FLAG(std::string, server_secret_file, "",
          "The file with the scheduler's secret of the servers; needed if the scheduler has such a "
          "secret (drain).");
ABSL_FLAG(uint64_t, rounds, 10, "The last so many rounds of every tensor (trace).");
ABSL_FLAG(bool, summary, false, "Print only what the rounds waited for, not the trace (trace).");
ABSL_FLAG(uint32_t, gpu_nodes, 0, "Number of GPU machines of the job, at least 1 (plan).");
ABSL_FLAG(uint32_t, cpu_nodes, 0, "Number of CPU machines with a summation server (plan).");
ABSL_FLAG(
    addend::ByteSize, bytes, addend::ByteSize{},
    "Size of all gradients together, such as 1GB (plan); of all tensors of a GPU, default 1GB "
    "(topology --explain).");
ABSL_FLAG(std::string, model, "",
          "Instead of --bytes the tensors of a model: resnet50, vgg16, bert-large or gpt2 (plan).");
ABSL_FLAG(addend::AutoByteSize, partition_bytes, {},
          "With --model: the agents' --partition-bytes (plan).");
ABSL_FLAG(addend::Bandwidth, bandwidth, addend::Bandwidth{},
          "Bandwidth of every machine, each direction, such as 100Gbps; 0: unknown (plan).");
ABSL_FLAG(std::string, bandwidths, "",
          "Bandwidth of each machine, GPU machines first: 10Gbps,25Gbps,...; 0: unknown (plan).");
ABSL_FLAG(double, contribution_ratio, 1,
          "Bytes of contributions on the wire for each raw byte, above 0 and at most 1 (plan).");
ABSL_FLAG(double, result_ratio, 1,
          "Bytes of results on the wire for each raw byte, above 0 and at most 1 (plan).");
ABSL_FLAG(uint32_t, groups, 0,
          "Compare with a plan of two levels for so many equal groups of machines, such as racks "
          "(plan).");
ABSL_FLAG(addend::Bandwidth, uplink, addend::Bandwidth{},
          "With --groups: bandwidth of each group's links to the other groups together, each "
          "direction; 0: no limits (plan).");
ABSL_FLAG(std::string, topology, "",
          "Another machine's topology, as --export or lstopo of hwloc 2 wrote it, FILE.xml "
          "(topology).");
ABSL_FLAG(std::string, export, "", "Record this machine's topology as FILE.xml (topology).");
ABSL_FLAG(std::string, intranode, "",
          "Instead of what the rule chooses: copy, cpu-assisted, reduce-broadcast or "
          "reduce-scatter (topology).");
ABSL_FLAG(bool, explain, false, "Also print what the cost model says (topology).");
ABSL_FLAG(absl::Duration, interval, absl::Seconds(1), "Time between two views (top).");
ABSL_FLAG(bool, once, false, "One view, after one interval (top).");
ABSL_FLAG(std::string, file, "",
          "The Kubernetes YAML to read, or - for standard input; -f (inject).");
ABSL_FLAG(std::string, image, "", "Of the agent; default: the image of this version (inject).");
ABSL_FLAG(std::string, agent_cpu, "2", "CPU that the agent asks for (inject).");
ABSL_FLAG(
    std::string, agent_cpu_limit, "",
    "Limit of the agent's CPU, such as 2 (inject). Empty: none, which a quota may refuse and a "
    "LimitRange replace.");
ABSL_FLAG(std::string, agent_data_interface, "",
          "Interface of a second network of the pod for gradients, such as net1 (inject). Empty: "
          "none.");
ABSL_FLAG(std::string, agent_memory, "",
          "Memory of the agent, such as 6Gi (inject). Empty: what --model-bytes needs.");
ABSL_FLAG(std::string, image_pull_secret, "",
          "Secret with which the agent's image is pulled (inject). Empty: none.");
ABSL_FLAG(
    std::string, agent_tls_secret, "",
    "Secret with the agent's tls.crt, tls.key and ca.crt (inject). Empty: gRPC in plain text.");
ABSL_FLAG(std::string, agent_tls_server_name, "addend",
          "Name that the certificates of all members have, with --agent-tls-secret (inject).");
ABSL_FLAG(std::string, job_secret, "",
          "Secret with the job's secret as its key `secret` (inject). Empty: none.");
ABSL_FLAG(std::string, replicated_job, "",
          "Which part of a JobSet trains; default: its first (inject).");
ABSL_FLAG(std::string, format, "hostfile",
          "How to print the order of hosts: hostfile, torchrun, rankfile or json (ranks).");
ABSL_FLAG(addend::ByteSize, model_bytes, addend::ByteSize{},
          "Size of all tensors together, from which follows the memory an agent needs (inject, "
          "doctor).");
ABSL_FLAG(uint32_t, local_size, 0,
          "Ranks on every node; default: the GPUs of the pod (inject), 1 (doctor).");
ABSL_FLAG(addend::HostPort, listen, (addend::HostPort{"", 9443}),
          "Address for HTTPS, HOST:PORT or :PORT (webhook).");
ABSL_FLAG(std::string, settings, "", "The chart's file of the sidecar and the rules (webhook).");
ABSL_FLAG(absl::Duration, linger, absl::Seconds(5),
          "How long to go on answering after the signal to end, until the cluster asks other pods "
          "(webhook).");
ABSL_FLAG(std::string, socket, "", "The agent's socket on this machine, to try it (doctor).");
ABSL_FLAG(addend::ByteSize, memory, addend::ByteSize{},
          "Memory that this container may use; default: what its cgroup says (doctor).");
ABSL_FLAG(std::string, transport, "auto",
          "What the data path is to use: auto, tcp or rdma (doctor).");
ABSL_FLAG(addend::ByteSize, bandwidth_probe, addend::ByteSize{16'000'000},
          "Bytes to fetch from every member to see how fast they come, at most 64MiB; 0: none "
          "(doctor).");
