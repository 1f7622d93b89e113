// The thread of a shard: its transports, its periodic checks, and the way to the jobs.
#include "lib/summation/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/transport/traffic.h"

namespace addend {
namespace {

constexpr absl::Duration kStallInterval = absl::Seconds(2);
constexpr size_t kRoundsChecked = 1000;
// An audit that is not complete by then is abandoned.
constexpr absl::Duration kAuditPatience = absl::Seconds(30);

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(
    Machine* machine, uint32_t index, MemoryBudget* budget, const ServerIdentity* identity,
    const SendLimits& send_limits, std::shared_ptr<InprocNetwork> network,
    std::function<void(const std::string&)> on_mismatch, WireEncoding encoding,
    Outgoing::TroubleFn on_trouble) {
  ADDEND_ASSIGN_OR_RETURN(auto loop, machine->StartLoop(absl::StrFormat("sum-%d", index)));
  std::unique_ptr<Shard> shard(new Shard(machine, std::move(loop), budget, identity, send_limits,
                                         std::move(on_mismatch), encoding));
  shard->tcp_ = machine->MakeTransport(shard->loop_.get());
  shard->shm_ = machine->MakeSharedMemory(shard->loop_.get());
  if (network != nullptr)
    shard->inproc_ = MakeInprocTransport(shard->loop_.get(), std::move(network));
  if (on_trouble) shard->PrepareOutgoing(machine, std::move(on_trouble));
  shard->loop_->Run([&shard] { shard->CheckStalls(); });
  return shard;
}

void Shard::PrepareOutgoing(const Machine* machine, Outgoing::TroubleFn on_trouble) {
  outgoing_ = {
      .tcp = tcp_.get(),
      .shm = shm_.get(),
      .convoy = &convoy_,
      .run_after = [this](absl::Duration delay,
                          EventLoop::Task task) { loop_->RunAfter(delay, std::move(task)); },
      .now = context_.now,
      .cluster_now = [machine] { return machine->ClusterNow(); },
      .on_trouble = std::move(on_trouble),
      .retired = {}};
  context_.outgoing = &outgoing_;
}

Shard::Shard(const Machine* machine, std::unique_ptr<EventLoop> loop, MemoryBudget* budget,
             const ServerIdentity* identity, const SendLimits& send_limits,
             std::function<void(const std::string&)> on_mismatch, WireEncoding encoding)
    : send_limits_(send_limits),
      on_mismatch_(std::move(on_mismatch)),
      loop_(std::move(loop)),
      context_(
          identity, budget, [this](const Auditor::Finding& finding) { OnAudited(finding); },
          [this](EventLoop::Task task) { loop_->Defer(std::move(task)); },
          [this] { return loop_->Now(); }, encoding),
      convoy_(send_limits),
      doorkeeper_(
          identity, &context_.stats, [this](JobId job) { return Find(job); },
          {.steady = context_.now, .cluster = [machine] { return machine->ClusterNow(); }}) {}

// Links first: they refer to jobs, and jobs to partitions, which are destroyed by the thread that
// used them.
Shard::~Shard() {
  loop_->Run([this] {
    tcp_.reset();
    inproc_.reset();
    shm_.reset();
    rdma_.reset();
    jobs_.clear();
    context_.dropped.Clear();
  });
  loop_->Stop();
}

absl::Status Shard::ListenInproc(const std::string& name) {
  absl::Status status;
  loop_->Run([&] {
    const auto accept = [this](Link* link) { return Accept(link, *inproc_); };
    status = inproc_->Listen({.host = name}, accept).status();
  });
  return status;
}

absl::Status Shard::ListenSharedMemory(const std::string& name) {
  if (shm_ == nullptr) return absl::OkStatus();
  absl::Status status;
  loop_->Run([&] {
    const auto accept = [this](Link* link) { return Accept(link, *shm_); };
    status = shm_->Listen({.host = name}, accept).status();
  });
  return status;
}

absl::Status Shard::ListenRdma(const rdma::Devices& devices, const RdmaOptions& options) {
  ADDEND_ASSIGN_OR_RETURN(rdma_, MakeRdmaTransport(loop_.get(), devices, nullptr, options));
  absl::Status status;
  loop_->Run([&] {
    const auto accept = [this](Link* link) { return Accept(link, *rdma_); };
    status = rdma_->Listen({}, accept).status();
  });
  return status;
}

Sink* Shard::Accept(Link* link, const Transport& transport) {
  links_.push_back(std::make_unique<NodeLink>(
      &doorkeeper_, link, &transport.traits(), send_limits_, [this](NodeLink* closed) {
        links_.remove_if([closed](const auto& other) { return other.get() == closed; });
      }));
  return links_.back().get();
}

void Shard::AnswerRdma(const RdmaCall& call, std::unique_ptr<rdma::Signals> signals) {
  absl::Status refusal;
  if (rdma_ == nullptr || hung_up_) {
    refusal = rdma::PathFailure(absl::UnavailableError("this server takes no links over RDMA"));
  } else {
    refusal = doorkeeper_.TokenOf(call.peer, call.terms, auth::BytesOf(call.proof)).status();
  }
  if (refusal.ok()) {
    return rdma_->Answer(call.peer, call.terms.claim.job.value(), call.offer, std::move(signals));
  }
  signals->Say({.ends = std::nullopt, .goodbye = std::move(refusal)});
}

void Shard::HangUp() {
  hung_up_ = true;
  if (rdma_ != nullptr) rdma_->CloseAll(absl::UnavailableError("the server is shutting down"));
}

JobShard* Shard::Find(JobId id) const {
  const auto job = jobs_.find(id);
  return job == jobs_.end() ? nullptr : job->second.get();
}

void Shard::SetJob(const JobSpec& spec, std::shared_ptr<JobMemory> memory) {
  JobShard* const former = Find(spec.id);
  if (former != nullptr && former->IsSameGeneration(spec)) return former->Update(spec);
  JobTotals totals;
  if (former != nullptr) {
    totals = former->totals();
    DropJob(spec.id, absl::AbortedError("the job starts over as a new generation"));
  }
  jobs_[spec.id] =
      std::make_unique<JobShard>(spec, std::move(memory), std::move(totals), &context_);
}

void Shard::DropJob(JobId id, const absl::Status& why) {
  const auto job = jobs_.extract(id);
  if (job.empty()) return;
  job.mapped()->End(why);
  context_.early_buffers->DropAll();
}

void Shard::AddPartition(JobId job, std::shared_ptr<Partition> partition) {
  jobs_.at(job)->Add(std::move(partition));
}

void Shard::AddPartition(JobId job, std::shared_ptr<LatestPartition> partition) {
  jobs_.at(job)->Add(std::move(partition));
}

void Shard::AddPartition(JobId job, std::shared_ptr<RelayedPartition> partition) {
  jobs_.at(job)->Add(std::move(partition));
}

void Shard::TakeOver(JobId id, PartitionId partition, PlanVersion version, bool handed_over) {
  if (JobShard* const job = Find(id)) job->TakeOver(partition, version, handed_over);
}

void Shard::HandOver(JobId id, TensorId tensor, const std::set<uint32_t>& partitions,
                     PlanVersion next) {
  if (JobShard* const job = Find(id)) job->HandOver(tensor, partitions, next);
}

void Shard::DropRelayed(JobId id, TensorId tensor, const std::set<uint32_t>& partitions) {
  if (JobShard* const job = Find(id)) job->DropRelayed(tensor, partitions);
}

void Shard::DropPartitions(JobId id, TensorId tensor, const std::set<uint32_t>& partitions) {
  if (JobShard* const job = Find(id)) job->Drop(tensor, partitions);
}

void Shard::LimitInFlight(JobId id, size_t bytes, size_t sums) {
  if (JobShard* const job = Find(id)) job->LimitInFlight(bytes, sums);
}

void Shard::TrimEarly() {
  for (auto& [id, job] : jobs_) job->TrimEarly();
  context_.early_buffers->DropUnused();
}

void Shard::OnAudited(const Auditor::Finding& finding) {
  JobShard* const job = Find(finding.job);
  if (job == nullptr || !job->NoteAudit(finding)) return;
  spdlog::error("silent corruption in job '{}': {}", job->name(), finding.text);
  if (on_mismatch_) on_mismatch_(finding.text);
}

void Shard::CheckStalls() {
  loop_->RunAfter(kStallInterval, [this] { CheckStalls(); });
  outgoing_.DropClosed();
  context_.auditor.AbandonOlderThan(context_.now() - kAuditPatience);
  for (const auto& link : links_) link->CheckPatience();
  std::vector<OpenRoundInfo> open;
  RollCall(JobId(), kRoundsChecked, &open);
  for (const std::string& stall : stalls_.Check(open)) spdlog::warn("{}", stall);
  MeasureLinks();
}

// The links of a machine share its network: the busiest of them shows for how long that was busy.
void Shard::MeasureLinks() {
  absl::Duration busiest = absl::ZeroDuration();
  for (const auto& link : links_) busiest = std::max(busiest, link->TakeSendingTime());
  context_.encoder.costs()->NoteTraffic(TrafficOf(transports()), busiest);
}

void Shard::RollCall(JobId wanted, size_t limit, std::vector<OpenRoundInfo>* out) const {
  for (const auto& [id, job] : jobs_) {
    if (wanted == JobId() || wanted == id) job->RollCall(limit, out);
  }
}

void Shard::AddTotals(std::map<JobId, JobTotals>* totals) const {
  for (const auto& [id, job] : jobs_) {
    JobTotals& sum = (*totals)[id];
    sum.Add(job->totals());
    sum.name = job->name();
  }
}

void Shard::AddLinks(LinkCounts* counts) const {
  for (const auto& link : links_) {
    if (!link->is_member()) continue;
    ++counts->by_transport[link->transport()];
    counts->queued += link->queued();
  }
}

void Shard::AddNames(JobId id, std::map<TensorId, std::string>* names) const {
  if (const JobShard* const job = Find(id)) job->AddNames(names);
}

}  // namespace addend
