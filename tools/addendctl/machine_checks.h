// The machine checks of `addendctl doctor`. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/addendctl/finding.h"
#include "tools/addendctl/machine_facts.h"

namespace addend {

enum class WantedTransport { kAuto, kTcp, kRdma };

Finding CheckDescriptors(const LimitFacts& limits);
Finding CheckLockedMemory(const LimitFacts& limits, const RdmaFacts& rdma, WantedTransport wanted);
Finding CheckRdma(const RdmaFacts& rdma, WantedTransport wanted);
Finding CheckGpus(const GpuFacts& gpu);
// `model_bytes` 0: unknown. `given_bytes`: the memory limit to assume; 0: the cgroup's.
Finding CheckMemory(const MemoryFacts& memory, uint64_t given_bytes, uint64_t model_bytes,
                    uint32_t local_size);
Finding CheckSharedMemory(const std::string& error);
Finding CheckInterface(const InterfaceFacts& interface);
Finding CheckPorts(const std::vector<PortFacts>& ports);
Finding CheckSocket(const SocketFacts& socket);

}  // namespace addend
