// The options of addendctl; the help of an option names the commands that read it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/flags/declare.h"
#include "absl/time/time.h"
#include "lib/base/units.h"
#include "lib/options/host_port.h"

ABSL_DECLARE_FLAG(addend::PeerAddresses, scheduler);
ABSL_DECLARE_FLAG(absl::Duration, timeout);
ABSL_DECLARE_FLAG(std::string, job);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(std::string, server_secret_file);
ABSL_DECLARE_FLAG(uint64_t, rounds);
ABSL_DECLARE_FLAG(bool, summary);
ABSL_DECLARE_FLAG(uint32_t, gpu_nodes);
ABSL_DECLARE_FLAG(uint32_t, cpu_nodes);
ABSL_DECLARE_FLAG(addend::ByteSize, bytes);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(addend::AutoByteSize, partition_bytes);
ABSL_DECLARE_FLAG(addend::Bandwidth, bandwidth);
ABSL_DECLARE_FLAG(std::string, bandwidths);
ABSL_DECLARE_FLAG(std::string, topology);
ABSL_DECLARE_FLAG(std::string, export);
ABSL_DECLARE_FLAG(std::string, intranode);
ABSL_DECLARE_FLAG(bool, explain);
ABSL_DECLARE_FLAG(absl::Duration, interval);
ABSL_DECLARE_FLAG(bool, once);
ABSL_DECLARE_FLAG(std::string, file);
ABSL_DECLARE_FLAG(std::string, image);
ABSL_DECLARE_FLAG(std::string, agent_cpu);
ABSL_DECLARE_FLAG(std::string, agent_cpu_limit);
ABSL_DECLARE_FLAG(std::string, agent_memory);
ABSL_DECLARE_FLAG(std::string, image_pull_secret);
ABSL_DECLARE_FLAG(std::string, agent_tls_secret);
ABSL_DECLARE_FLAG(std::string, agent_tls_server_name);
ABSL_DECLARE_FLAG(std::string, job_secret);
ABSL_DECLARE_FLAG(std::string, replicated_job);
ABSL_DECLARE_FLAG(addend::ByteSize, model_bytes);
ABSL_DECLARE_FLAG(uint32_t, local_size);
ABSL_DECLARE_FLAG(std::string, socket);
ABSL_DECLARE_FLAG(addend::ByteSize, memory);
ABSL_DECLARE_FLAG(std::string, transport);
ABSL_DECLARE_FLAG(addend::ByteSize, bandwidth_probe);
