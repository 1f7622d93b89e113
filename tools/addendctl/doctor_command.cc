#include "tools/addendctl/doctor_command.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/version.h"
#include "lib/rpc/local_address.h"
#include "tools/addendctl/ask.h"
#include "tools/addendctl/cluster_checks.h"
#include "tools/addendctl/cluster_facts.h"
#include "tools/addendctl/machine_checks.h"
#include "tools/addendctl/machine_facts.h"

namespace addend {
namespace {

constexpr uint64_t kMostProbeBytes = 64 << 20;
constexpr uint32_t kMostLocalRanks = 1024;

absl::StatusOr<WantedTransport> ParseTransport(const std::string& text) {
  if (text == "auto") return WantedTransport::kAuto;
  if (text == "tcp") return WantedTransport::kTcp;
  if (text == "rdma") return WantedTransport::kRdma;
  return absl::InvalidArgumentError(
      absl::StrFormat("--transport=%s is no transport: use auto, tcp or rdma", text));
}

std::vector<Finding> CheckMachine(const DoctorQuestion& question, WantedTransport wanted) {
  const MachineFacts facts = ReadMachine({.scheduler = question.scheduler.addresses.front(),
                                          .rdma = wanted != WantedTransport::kTcp,
                                          .socket = question.socket});
  return {CheckDescriptors(facts.limits),
          CheckSharedMemory(facts.shared_memory_error),
          CheckMemory(facts.memory, question.memory_bytes, question.model_bytes,
                      std::max(question.local_size, 1u)),
          CheckRdma(facts.rdma, wanted),
          CheckLockedMemory(facts.limits, facts.rdma, wanted),
          CheckGpus(facts.gpu),
          CheckPorts(facts.ports),
          CheckSocket(facts.socket),
          CheckInterface(facts.interface)};
}

}  // namespace

absl::StatusOr<Diagnosis> RunDoctor(const DoctorQuestion& question) {
  ADDEND_ASSIGN_OR_RETURN(const WantedTransport wanted, ParseTransport(question.transport));
  if (question.probe_bytes > kMostProbeBytes) {
    return absl::InvalidArgumentError("--bandwidth-probe must be at most 64MiB");
  }
  if (question.local_size > kMostLocalRanks) {
    return absl::InvalidArgumentError(absl::StrFormat("--local-size=%d must be from 1 to %d",
                                                      question.local_size, kMostLocalRanks));
  }
  Diagnosis diagnosis{.checks = CheckMachine(question, wanted), .scheduler = {}};
  std::vector<Finding>& checks = diagnosis.checks;
  const ClusterFacts cluster = ReadCluster({.schedulers = question.scheduler,
                                            .timeout = question.timeout,
                                            .probe_bytes = question.probe_bytes});
  checks.push_back(CheckSchedulers(cluster.schedulers));
  const auto answers =
      std::find_if(cluster.schedulers.begin(), cluster.schedulers.end(),
                   [](const SchedulerFacts& scheduler) { return scheduler.answer.ok(); });
  if (answers == cluster.schedulers.end()) {
    diagnosis.scheduler =
        Explained(question.scheduler.ToString(), cluster.schedulers.back().answer);
    return diagnosis;
  }
  checks.push_back(CheckClock(*answers));
  checks.push_back(CheckVersions(std::string(Version()), *answers, cluster.members));
  checks.push_back(CheckAdvertised(Hostname(), cluster.members));
  for (const MemberFacts& member : cluster.members) {
    checks.push_back(CheckReachable(member));
    checks.push_back(CheckBandwidth(member, question.probe_bytes != 0));
  }
  return diagnosis;
}

}  // namespace addend
