#include "tools/addendctl/options.h"

#include "absl/flags/flag.h"

ABSL_FLAG(addend::PeerAddresses, scheduler, (addend::PeerAddresses{{{"127.0.0.1", 7070}}}),
          "The scheduler's address, HOST:PORT (status, jobs, nodes).");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(5),
          "How long to wait for the scheduler's answer (status, jobs, nodes).");
ABSL_FLAG(std::string, job, "", "Only this job; empty: all (status, jobs, nodes).");
ABSL_FLAG(bool, json, false, "Print JSON for programs instead of a table.");
ABSL_FLAG(uint32_t, gpu_nodes, 0, "Number of GPU machines of the job, at least 1 (plan).");
ABSL_FLAG(uint32_t, cpu_nodes, 0, "Number of CPU machines with a summation server (plan).");
ABSL_FLAG(addend::ByteSize, bytes, addend::ByteSize{},
          "Size of all gradients together, such as 1GB (plan).");
ABSL_FLAG(std::string, model, "",
          "Instead of --bytes the tensors of a model: resnet50, vgg16, bert-large or gpt2 (plan).");
ABSL_FLAG(addend::AutoByteSize, partition_bytes, {},
          "With --model: the agents' --partition-bytes (plan).");
ABSL_FLAG(addend::Bandwidth, bandwidth, addend::Bandwidth{},
          "Bandwidth of every machine, each direction, such as 100Gbps; 0: unknown (plan).");
ABSL_FLAG(std::string, bandwidths, "",
          "Bandwidth of each machine, GPU machines first: 10Gbps,25Gbps,...; 0: unknown (plan).");
