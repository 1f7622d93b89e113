#include "tools/addendctl/machine_checks.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/units.h"
#include "tools/addendctl/memory_need.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

// An agent uses two descriptors for every tensor and one more for every local rank, a server uses
// one for every node. A model of some hundred tensors on a machine of eight ranks needs this limit.
constexpr uint64_t kFewDescriptors = 4096;
constexpr uint64_t kTooFewDescriptors = 256;
constexpr uint64_t kLittleLocked = 64'000'000;
constexpr uint32_t kEthernetMtu = 1500;

std::string MiB(uint64_t bytes) { return absl::StrFormat("%d MiB", bytes >> 20); }

std::string Describe(const RdmaPortFacts& port) {
  return absl::StrFormat("%s (%s, GID %s, MTU %d)", port.device, port.fabric, port.gid,
                         port.mtu_bytes);
}

}  // namespace

Finding CheckDescriptors(const LimitFacts& limits) {
  Finding finding{.name = "descriptors", .found = "", .advice = ""};
  finding.found = limits.nofile == kUnlimited
                      ? "no limit of open files"
                      : absl::StrFormat("%d open files allowed", limits.nofile);
  if (limits.nofile >= kFewDescriptors) return finding;
  finding.verdict = limits.nofile < kTooFewDescriptors ? Verdict::kProblem : Verdict::kWarning;
  finding.advice = absl::StrFormat(
      "allow %d or more (ulimit -n, LimitNOFILE=): an agent needs some for every tensor, a server "
      "one for every node",
      kFewDescriptors);
  return finding;
}

Finding CheckLockedMemory(const LimitFacts& limits, const RdmaFacts& rdma, WantedTransport wanted) {
  Finding finding{.name = "locked memory", .found = "", .advice = ""};
  finding.found =
      limits.memlock_bytes == kUnlimited
          ? "no limit"
          : absl::StrFormat("%s allowed", FormatSize(static_cast<double>(limits.memlock_bytes)));
  if (wanted == WantedTransport::kTcp ||
      (rdma.ports.empty() && !rdma.denied && wanted == WantedTransport::kAuto)) {
    finding.verdict = Verdict::kNotApplicable;
    finding.found += "; only RDMA needs it";
    return finding;
  }
  if (limits.memlock_bytes == kUnlimited) return finding;
  finding.verdict = limits.memlock_bytes < kLittleLocked ? Verdict::kProblem : Verdict::kWarning;
  finding.advice =
      "lift the limit (ulimit -l unlimited, LimitMEMLOCK=infinity, or CAP_IPC_LOCK in the "
      "container): all memory that is used over RDMA is locked";
  return finding;
}

Finding CheckRdma(const RdmaFacts& rdma, WantedTransport wanted) {
  Finding finding{.name = "rdma", .found = "", .advice = ""};
  if (wanted == WantedTransport::kTcp) {
    return {"rdma", Verdict::kNotApplicable, "not looked for: --transport=tcp", ""};
  }
  if (rdma.ports.empty()) {
    finding.found = rdma.why_none;
    if (rdma.denied) {
      finding.verdict = Verdict::kProblem;
      finding.advice =
          "let this process use it: with /dev/infiniband from an RDMA device plugin, and without a "
          "limit of locked memory (ulimit -l unlimited, or CAP_IPC_LOCK in the container)";
    } else if (wanted == WantedTransport::kRdma) {
      finding.verdict = Verdict::kProblem;
      finding.advice = "use --transport=auto, or bring up an RDMA port (docs/rdma.md)";
    } else {
      finding.verdict = Verdict::kNotApplicable;
    }
    return finding;
  }
  std::vector<std::string> names;
  for (const RdmaPortFacts& port : rdma.ports) {
    names.push_back(Describe(port));
    if (port.registration_error.empty()) continue;
    return {"rdma", Verdict::kProblem,
            absl::StrFormat("%s: 64 MB cannot be registered: %s", Describe(port),
                            port.registration_error),
            "lift the limit of locked memory, or use --transport=tcp"};
  }
  finding.found = absl::StrFormat("%s; 64 MB registered", absl::StrJoin(names, ", "));
  return finding;
}

Finding CheckGpus(const GpuFacts& gpu) {
  if (gpu.devices.empty() && gpu.driver.empty()) {
    return {"gpu", Verdict::kNotApplicable, "no NVIDIA GPU is visible; Addend itself needs none",
            ""};
  }
  const std::string driver = gpu.driver.empty() ? "no driver" : "driver " + gpu.driver;
  if (gpu.devices.empty()) {
    return {"gpu", Verdict::kWarning, driver + " but no device node /dev/nvidia*",
            "if trainers are to use GPUs, ask for them in the pod (nvidia.com/gpu)"};
  }
  return {"gpu", Verdict::kOk,
          absl::StrFormat("%d visible (%s), %s", gpu.devices.size(),
                          absl::StrJoin(gpu.devices, ", "), driver),
          ""};
}

Finding CheckMemory(const MemoryFacts& memory, uint64_t given_bytes, uint64_t model_bytes,
                    uint32_t local_size) {
  Finding finding{.name = "memory", .found = "", .advice = ""};
  uint64_t allowed = memory.machine_bytes;
  std::string what = absl::StrFormat("the machine has %s, and no limit is set", MiB(allowed));
  if (given_bytes != 0) {
    allowed = given_bytes;
    what = absl::StrFormat("--memory=%s", MiB(allowed));
  } else if (memory.limit_bytes != 0) {
    allowed = memory.limit_bytes;
    what = absl::StrFormat("the limit is %s (%s)", MiB(allowed), memory.source);
  }
  if (model_bytes == 0) {
    finding.found = what + "; --model-bytes tells whether that suffices";
    finding.verdict = Verdict::kNotApplicable;
    return finding;
  }
  const uint64_t need = AgentMemoryBytes(model_bytes, local_size);
  finding.found =
      absl::StrFormat("%s; an agent and its trainers need %s for %s of tensors and %d local rank%s",
                      what, MiB(need), FormatSize(static_cast<double>(model_bytes)), local_size,
                      local_size == 1 ? "" : "s");
  if (allowed == 0 || allowed >= need) return finding;
  finding.verdict = Verdict::kProblem;
  finding.advice = absl::StrFormat("set the memory limit to at least %dMi", need >> 20);
  return finding;
}

Finding CheckSharedMemory(const std::string& error) {
  if (error.empty()) return {"shared memory", Verdict::kOk, "memfd can be made and sealed", ""};
  return {
      "shared memory", Verdict::kProblem, absl::StrFormat("memfd does not work: %s", error),
      "allow memfd_create and F_ADD_SEALS in the container's seccomp profile; the agent and its "
      "trainers share memory in no other way"};
}

Finding CheckInterface(const InterfaceFacts& interface) {
  if (!interface.error.empty()) {
    return {"interface", Verdict::kProblem, interface.error,
            "check --scheduler, the DNS and the routes of this machine"};
  }
  std::string found = absl::StrFormat("%s (%s) leads to the scheduler, MTU %d",
                                      interface.name.empty() ? "an interface" : interface.name,
                                      interface.address, interface.mtu_bytes);
  if (interface.speed_bps > 0) found += ", " + FormatBandwidth(interface.speed_bps);
  if (interface.mtu_bytes != 0 && interface.mtu_bytes < kEthernetMtu) {
    return {
        "interface", Verdict::kWarning, found,
        "an overlay network may take the rest; for large gradients use the host's network, or a "
        "larger MTU underneath"};
  }
  if (interface.speed_bps == 0 && !interface.loopback) {
    return {"interface", Verdict::kWarning, found + ", speed not known to the kernel",
            "give agents and servers --bandwidth: without it the plan takes all links for equal"};
  }
  return {"interface", Verdict::kOk, found, ""};
}

Finding CheckPorts(const std::vector<PortFacts>& ports) {
  std::vector<std::string> taken;
  for (const PortFacts& port : ports) {
    if (port.taken) taken.push_back(absl::StrFormat("%d (%s)", port.port, port.use));
  }
  if (taken.empty()) return {"ports", Verdict::kOk, "Addend's ports are free on this machine", ""};
  return {"ports", Verdict::kWarning, absl::StrFormat("taken: %s", absl::StrJoin(taken, ", ")),
          "fine if that is Addend itself; else give the services other ports with --listen, "
          "--data-listen, --http and --health-listen"};
}

Finding CheckSocket(const SocketFacts& socket) {
  if (socket.path.empty()) {
    return {"socket", Verdict::kNotApplicable, "no --socket to try", ""};
  }
  if (socket.error.empty()) {
    return {"socket", Verdict::kOk, absl::StrFormat("an agent listens on %s", socket.path), ""};
  }
  return {"socket", Verdict::kProblem,
          absl::StrFormat("no trainer can connect to %s: %s", socket.path, socket.error),
          "check that the agent runs with this --socket, that the trainer has the same volume, and "
          "that its user may write there (--socket-mode)"};
}

}  // namespace addend
