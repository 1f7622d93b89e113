// A job and its generations.
#include "services/scheduler/job.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"

namespace addend {
namespace {

// No scheduler gives so many numbers between two copies of its store.
constexpr uint64_t kMostJobsSkipped = uint64_t{1} << 32;

}  // namespace

std::string NameOf(const Node& node) {
  return absl::StrFormat("node %d (on %s)", node.rank.value(), node.info.hostname());
}

std::string NameOf(const Job& job, const Node& node) {
  const uint32_t size = job.settings.local_size();
  const uint32_t first = node.rank.value() * size;
  const std::string ranks = size == 1 ? absl::StrFormat("rank %d", first)
                                      : absl::StrFormat("ranks %d..%d", first, first + size - 1);
  return absl::StrFormat("node %d (on %s, %s)", node.rank.value(), node.info.hostname(), ranks);
}

bool Job::AllIn(const NodeSet& set, const DeclaredTensor& tensor) const {
  const auto missing =
      std::count_if(current.gone.begin(), current.gone.end(), [&](const auto& node) {
        return !set.Contains(node.first) && IsAmong(node.first, tensor.participants);
      });
  return set.size() + static_cast<uint32_t>(missing) == tensor.nodes;
}

absl::StatusOr<Participants> Job::ParticipantsOf(const v1::TensorDescriptor& tensor) const {
  const auto participants = Participants::FromBits(tensor.participants(), ranks());
  if (participants) return *participants;
  return absl::InvalidArgumentError(
      absl::StrFormat("tensor '%s' cannot be summed: it names ranks that job '%s' does not have, "
                      "which has ranks 0..%d",
                      tensor.name().substr(0, 200), name, ranks() - 1));
}

void Job::CountNodes(DeclaredTensor* tensor) const {
  if (tensor->nodes != 0) return;
  tensor->nodes = tensor->participants.CountNodes(settings.num_nodes(), settings.local_size());
}

bool Job::AllTakingPartIn(const std::set<NodeId>& set) const {
  return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return !TakesPart(node.second) || set.contains(node.first);
  });
}

bool Job::AllTakeServerChanges() const {
  return std::all_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return node.second.info.takes_server_changes(); });
}

bool Job::AllHeard() const {
  return std::all_of(nodes.begin(), nodes.end(), [this](const auto& node) {
    return node.second.lease.has_watched || !TakesPart(node.second);
  });
}

double Job::SpeedOf(ServerId server) const {
  const auto found = speeds.find(server);
  return found == speeds.end() ? 1 : found->second;
}

Node* Job::Find(NodeId rank) {
  const auto found = nodes.find(rank);
  return found == nodes.end() ? nullptr : &found->second;
}

void Job::NextPlanVersion() {
  uint64_t next = plan_version.value() + 1;
  if (first_given_version == 0) {
    // Nodes that this scheduler has not heard may know of the very next versions.
    if (!AllHeard()) next += kVersionsLeft;
    first_given_version = next;
  }
  plan_version = PlanVersion(next);
}

TensorId Job::NextTensor() {
  static_assert(kTensorsLeft > kMaxTensors);
  if (first_given_tensor == 0) {
    next_tensor += kTensorsLeft;
    first_given_tensor = next_tensor;
  }
  return TensorId(next_tensor++);
}

bool Job::IsForgotten(TensorId tensor) const {
  const uint32_t number = tensor.value();
  return number >= next_tensor || (number >= stored_next_tensor && number < first_given_tensor);
}

void Job::Begin(Generation generation, absl::Time now) {
  current = JobGeneration();
  current.number = generation;
  current.forming_since = now;
  for (auto& [rank, node] : nodes) {
    node.idle = false;
    node.trainers = 0;
    node.accusers.clear();
  }
}

Job* Jobs::Find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

Job* Jobs::Find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &jobs_.at(found->second);
}

const Job* Jobs::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &jobs_.at(found->second);
}

Job& Jobs::Create(const std::string& name) {
  Job job;
  job.id = JobId(next_++);
  job.name = name;
  return Restore(std::move(job));
}

Job& Jobs::Restore(Job job) {
  const JobId id = job.id;
  by_name_[job.name] = id;
  return jobs_[id] = std::move(job);
}

void Jobs::Remove(JobId id) {
  by_name_.erase(jobs_.at(id).name);
  jobs_.erase(id);
}

void Jobs::SkipFormer(uint64_t former) {
  if (former < next_ || former - next_ >= kMostJobsSkipped) return;
  next_ = former + 1;
}

}  // namespace addend
