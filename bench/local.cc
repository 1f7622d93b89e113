#include "bench/local.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "bench/address_book.h"
#include "bench/child_process.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/options/stop_signal.h"

namespace addend {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kStartTimeout = absl::Seconds(60);

// A folder for logs, sockets and port files that is removed at the end.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make() {
    std::string path = (std::filesystem::temp_directory_path() / "addend-bench.XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      return absl::PermissionDeniedError(absl::StrFormat(
          "cannot make the folder %s for logs and sockets; set TMPDIR to one that is "
          "writable",
          path));
    }
    return TemporaryFolder(std::move(path));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

class LocalCluster {
 public:
  LocalCluster(const BenchOptions& options, TemporaryFolder folder, std::string programs)
      : options_(options), folder_(std::move(folder)), programs_(std::move(programs)) {}

  absl::Status Start();
  absl::Status RunRanks();

 private:
  using Words = std::vector<std::string>;

  absl::Status StartService(const std::string& program, const std::string& name, Words flags);
  absl::Status StartRank(uint32_t node, uint32_t local_rank);
  absl::StatusOr<uint16_t> AwaitPort(size_t service, const std::string& key);
  // Returns an error if a service has ended, or the user asks for the end; else waits for
  // kPollInterval.
  absl::Status Breathe();
  std::string PortFile(size_t service) const {
    return folder_.File(absl::StrFormat("%d.ports", service));
  }
  std::string Socket(uint32_t node) const { return folder_.File(absl::StrFormat("%d.sock", node)); }

  const BenchOptions& options_;
  const TemporaryFolder folder_;
  const std::string programs_;  // the folder of this program
  StopSignal stop_;
  std::string scheduler_;
  std::vector<ChildProcess> services_;
  std::vector<ChildProcess> ranks_;
};

absl::Status LocalCluster::Breathe() {
  if (stop_.Wait(kPollInterval)) {
    return WithKind(absl::CancelledError("stopped by a signal"), FailureKind::kTemporary);
  }
  for (ChildProcess& service : services_) {
    if (service.Poll()) return service.Failure();
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartService(const std::string& program, const std::string& name,
                                        Words flags) {
  Words words = {programs_ + "/" + program,     "--insecure",
                 "--listen=127.0.0.1:0",        "--http=127.0.0.1:0",
                 "--health-listen=127.0.0.1:0", "--port-file=" + PortFile(services_.size())};
  if (!scheduler_.empty()) {
    words.insert(words.end(), {"--scheduler=" + scheduler_, "--data-listen=127.0.0.1:0",
                               "--advertise=127.0.0.1"});
    if (options_.shards != 0) words.push_back(absl::StrFormat("--shards=%d", options_.shards));
  }
  words.insert(words.end(), flags.begin(), flags.end());
  ADDEND_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start(
          {.name = name, .words = words, .environment = {}, .log = folder_.File(name)}));
  services_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::StatusOr<uint16_t> LocalCluster::AwaitPort(size_t service, const std::string& key) {
  const absl::Time deadline = SteadyNow() + kStartTimeout;
  while (SteadyNow() < deadline) {
    if (const std::optional<uint16_t> port = ReadPort(PortFile(service), key)) return *port;
    ADDEND_RETURN_IF_ERROR(Breathe());
  }
  return absl::DeadlineExceededError(absl::StrFormat("%s does not serve after %s",
                                                     services_[service].name(),
                                                     absl::FormatDuration(kStartTimeout)));
}

absl::Status LocalCluster::Start() {
  ADDEND_RETURN_IF_ERROR(StartService("addend-scheduler", "scheduler", {"--store=memory"}));
  ADDEND_ASSIGN_OR_RETURN(const uint16_t port, AwaitPort(0, "grpc"));
  scheduler_ = absl::StrFormat("127.0.0.1:%d", port);
  for (uint32_t i = 0; i < options_.cpu_nodes; ++i) {
    ADDEND_RETURN_IF_ERROR(StartService("addend-summation", absl::StrFormat("server%d", i),
                                        {"--shared-memory=" + options_.shared_memory}));
  }
  // All servers must be registered before the first tensor is planned.
  for (size_t i = 1; i < services_.size(); ++i)
    ADDEND_RETURN_IF_ERROR(AwaitPort(i, "data").status());
  for (uint32_t node = 0; node < options_.nodes; ++node) {
    Words flags = {"--job=bench",
                   absl::StrFormat("--node-rank=%d", node),
                   absl::StrFormat("--num-nodes=%d", options_.nodes),
                   absl::StrFormat("--local-size=%d", options_.local_size),
                   "--socket=" + Socket(node),
                   "--shared-memory=" + options_.shared_memory};
    if (!options_.partition_bytes.empty()) {
      flags.push_back("--partition-bytes=" + options_.partition_bytes);
    }
    ADDEND_RETURN_IF_ERROR(
        StartService("addend-agent", absl::StrFormat("agent%d", node), std::move(flags)));
  }
  for (size_t i = 1 + options_.cpu_nodes; i < services_.size(); ++i) {
    ADDEND_RETURN_IF_ERROR(AwaitPort(i, "data").status());
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartRank(uint32_t node, uint32_t local_rank) {
  const uint32_t rank = node * options_.local_size + local_rank;
  std::string names;
  bool model = false;
  for (const Workload& workload : options_.workloads) {
    names += (names.empty() ? "" : ",") + workload.name;
    model = workload.is_model;
  }
  Words words = {programs_ + "/addend-bench",
                 "push-pull",
                 "--socket=" + Socket(node),
                 (model ? "--model=" : "--sizes=") + names,
                 absl::StrFormat("--iterations=%d", options_.iterations),
                 absl::StrFormat("--warm-up=%d", options_.warm_up),
                 options_.in_place ? "--in-place" : "--noin-place",
                 "--contents=" + options_.contents,
                 options_.json ? "--json" : "--nojson"};
  const std::string size = std::to_string(options_.nodes * options_.local_size);
  ADDEND_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start(
          {.name = absl::StrFormat("rank %d", rank),
           .words = std::move(words),
           .environment = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", size},
                           {"LOCAL_RANK", std::to_string(local_rank)},
                           {"LOCAL_WORLD_SIZE", std::to_string(options_.local_size)},
                           {"GROUP_RANK", std::to_string(node)}},
           .log = folder_.File(absl::StrFormat("rank%d", rank)),
           .inherit_output = rank == 0}));
  ranks_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::Status LocalCluster::RunRanks() {
  for (uint32_t node = 0; node < options_.nodes; ++node) {
    for (uint32_t local_rank = 0; local_rank < options_.local_size; ++local_rank) {
      ADDEND_RETURN_IF_ERROR(StartRank(node, local_rank));
    }
  }
  while (true) {
    size_t ended = 0;
    for (ChildProcess& rank : ranks_) {
      const std::optional<int> status = rank.Poll();
      if (status.value_or(0) != 0) return rank.Failure();
      ended += status.has_value();
    }
    if (ended == ranks_.size()) return absl::OkStatus();
    ADDEND_RETURN_IF_ERROR(Breathe());
  }
}

}  // namespace

absl::Status RunLocal(const BenchOptions& options) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find the folder of this program: no /proc");
  ADDEND_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Make());
  LocalCluster cluster(options, std::move(folder), self.parent_path().string());
  ADDEND_RETURN_IF_ERROR(cluster.Start());
  return cluster.RunRanks();
}

}  // namespace addend
