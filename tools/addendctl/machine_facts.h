// Facts that `addendctl doctor` reads from this machine, or container, without judging them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/memory/container_limit.h"
#include "lib/options/host_port.h"

namespace addend {

inline constexpr uint64_t kUnlimited = ~uint64_t{0};

struct RdmaPortFacts {
  std::string device;  // "mlx5_0:1"
  std::string fabric;
  std::string gid;
  uint32_t mtu_bytes = 0;
  std::string registration_error;  // of registering 64 MB; empty: success
};

struct RdmaFacts {
  std::vector<RdmaPortFacts> ports;  // usable ports
  std::string why_none;              // the reason if there are no usable ports
  bool denied = false;               // ports exist, but this process may not use them
};

struct LimitFacts {
  uint64_t memlock_bytes = kUnlimited;
  uint64_t nofile = kUnlimited;
  uint64_t nofile_hard = kUnlimited;
};

struct GpuFacts {
  std::vector<std::string> devices;  // "/dev/nvidia0"
  std::string driver;                // its version; empty: no driver is visible
};

// The interface that leads to a peer.
struct InterfaceFacts {
  std::string name;
  std::string address;
  uint32_t mtu_bytes = 0;
  double speed_bps = 0;  // 0: unknown to the kernel
  bool loopback = false;
  std::string error = {};  // set if there is no route to the peer
};

struct PortFacts {
  uint16_t port = 0;
  std::string use;  // "data of addend-agent"
  bool taken = false;
};

struct SocketFacts {
  std::string path;   // empty: no socket to check
  std::string error;  // why a trainer could not connect
};

struct MachineFacts {
  LimitFacts limits;
  RdmaFacts rdma;
  GpuFacts gpu;
  MemoryFacts memory;
  std::string shared_memory_error;  // empty: a sealed memfd works
  InterfaceFacts interface;         // towards the scheduler
  std::vector<PortFacts> ports;
  SocketFacts socket;
};

struct MachineQuestion {
  HostPort scheduler;
  bool rdma = true;    // inspect the NICs
  std::string socket;  // empty: no socket to check
};

MachineFacts ReadMachine(const MachineQuestion& question);

}  // namespace addend
