// The options of addendctl; which command reads which is said in their help.
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
ABSL_DECLARE_FLAG(uint32_t, gpu_nodes);
ABSL_DECLARE_FLAG(uint32_t, cpu_nodes);
ABSL_DECLARE_FLAG(addend::ByteSize, bytes);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(addend::AutoByteSize, partition_bytes);
ABSL_DECLARE_FLAG(addend::Bandwidth, bandwidth);
ABSL_DECLARE_FLAG(std::string, bandwidths);
