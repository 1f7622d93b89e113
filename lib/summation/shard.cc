#include "lib/summation/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/trace/clock.h"

namespace addend {

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(
    uint32_t index, MemoryBudget* budget, const ServerIdentity* identity,
    const SendLimits& send_limits, std::shared_ptr<InprocNetwork> network,
    std::function<void(const std::string&)> on_mismatch) {
  std::unique_ptr<Shard> shard(new Shard(budget, identity, send_limits, std::move(on_mismatch)));
  ADDEND_ASSIGN_OR_RETURN(shard->loop_, EventLoop::Start(absl::StrFormat("sum-%d", index)));
  shard->tcp_ = MakeTcpTransport(shard->loop_.get());
  if (network != nullptr)
    shard->inproc_ = MakeInprocTransport(shard->loop_.get(), std::move(network));
  shard->loop_->Run([&shard] { shard->CheckStalls(); });
  return shard;
}

Shard::~Shard() {
  loop_->Run([this] {
    tcp_.reset();
    inproc_.reset();
    rdma_.reset();
    jobs_.clear();
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

absl::Status Shard::ListenRdma(const rdma::Devices& devices, const RdmaOptions& options) {
  ADDEND_ASSIGN_OR_RETURN(rdma_, MakeRdmaTransport(loop_.get(), devices, nullptr, options));
  absl::Status status;
  loop_->Run([&] {
    const auto accept = [this](Link* link) { return Accept(link, *rdma_); };
    status = rdma_->Listen({}, accept).status();
  });
  return status;
}

void Shard::SetJob(const JobSpec& spec, std::shared_ptr<JobMemory> memory) {
  const auto it = jobs_.find(spec.id);
  if (it != jobs_.end() && it->second->spec.generation == spec.generation) {
    ShardJob* const job = it->second.get();
    job->spec.plan_version = spec.plan_version;
    if (spec.failed && !job->spec.failed) {
      job->spec.failed = true;
      for (auto& [id, partition] : job->partitions) {
        // The next owner decides, not one that has handed over.
        const bool decides = partition->ownership().state() != Ownership::State::kClosed;
        if (decides) Abort(job, partition.get());
      }
      for (auto& [id, partition] : job->latest) partition->Abort();
    }
    for (const NodeId node : spec.lost) {
      if (job->spec.lost.insert(node).second) Lose(job, node);
    }
    return;
  }
  JobTotals totals;  // go on
  if (it != jobs_.end()) {
    totals = std::move(it->second->totals);
    DropJob(spec.id, absl::AbortedError("the job starts over as a new generation"));
  }
  auto job = std::make_unique<ShardJob>();
  job->spec = spec;
  job->memory = std::move(memory);
  job->totals = std::move(totals);
  job->links.resize(spec.num_nodes, nullptr);
  jobs_[spec.id] = std::move(job);
}

// Whoever has contributed to the open round is told, and so is whoever does later.
void Shard::Abort(ShardJob* job, Partition* partition) {
  partition->Abort();
  if (!partition->ownership().Sums()) return;  // nobody knows yet which round is open
  for (NodeLink* link : job->links) {
    if (link != nullptr) SendAborted(link, *partition);
  }
}

void Shard::Lose(ShardJob* job, NodeId node) {
  if (NodeLink* const link = job->links[node.value()]; link != nullptr) {
    job->links[node.value()] = nullptr;
    link->LeaveJob();
    link->link()->Close(absl::AbortedError("the node is not in this generation any more"));
  }
  for (auto& [id, partition] : job->partitions) Lose(job, partition.get(), node);
  for (auto& [id, partition] : job->latest) {
    if (partition->Lose(node)) Restore(job, partition.get());
  }
}

void Shard::Lose(ShardJob* job, Partition* partition, NodeId node) {
  const bool lacked = partition->ownership().AnyLacks();
  const Partition::Loss loss = partition->Lose(node);
  if (loss.reports_complete) return EndRecovery(job, partition);
  if (!loss.status.ok()) return Abort(job, partition);
  const Ownership& ownership = partition->ownership();
  if (ownership.Sums() && ownership.AnyLacks() && !partition->Holds(ownership.newest())) {
    if (const auto holder = ownership.Holder(); holder.has_value()) {
      if (NodeLink* const link = job->links[holder->value()]) AskForNewest(link, *partition);
    } else {
      partition->GoBack();
      for (uint32_t i = 0; i < job->spec.num_nodes; ++i) AskAgain(job, *partition, NodeId(i));
    }
  }
  // Nobody lacks any more what is on its way.
  if (lacked && !ownership.AnyLacks()) StopReceiving(*partition);
  if (loss.sealed != Round()) SendResults(job, partition);
  // Others may have been waiting for its turn.
  if (!Advance(job, partition).ok()) return Abort(job, partition);
  CloseIfDue(job, partition);
}

void Shard::AddPartition(JobId job, std::shared_ptr<Partition> partition) {
  const PartitionId id = partition->spec().id;
  NoteRecovery(partition.get());
  jobs_.at(job)->partitions.emplace(id, std::move(partition));
}

// So that the roll-call knows how long the nodes' reports are waited for.
void Shard::NoteRecovery(Partition* partition) const {
  if (partition->ownership().state() == Ownership::State::kRecovering) {
    partition->Touch(absl::Now(), 0);
  }
}

void Shard::DropPartitions(JobId job, TensorId tensor, const std::set<uint32_t>& partitions) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  for (const uint32_t index : partitions) {
    it->second->partitions.erase(PartitionId(tensor, index));
    it->second->latest.erase(PartitionId(tensor, index));
  }
}

void Shard::DropJob(JobId job, const absl::Status& why) {
  auto node = jobs_.extract(job);
  if (node.empty()) return;
  // Links first: after Close() nothing is read into the accumulators any more.
  for (auto& link : links_) {
    if (link->job() != node.mapped().get()) continue;
    link->LeaveJob();
    link->link()->Close(why);
  }
  node.mapped().reset();
  auditor_.ForgetJob(job);
  early_buffers_->DropUnused();
}

void Shard::LimitInFlight(JobId id, size_t bytes) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second->in_flight_bytes = bytes;
  for (NodeLink* link : job->second->links) {
    if (link != nullptr) link->link()->LimitInFlight(bytes);
  }
}

void Shard::TrimEarly() {
  for (auto& [id, job] : jobs_) {
    if (!job->memory->over_part()) continue;
    for (auto& [partition_id, partition] : job->partitions) {
      partition->DropEarly();  // counted when they are asked for, as all that were dropped
    }
  }
  early_buffers_->DropUnused();
}

void Shard::Sign(FrameHeader* header) const {
  header->sender = identity_->id.load(std::memory_order_relaxed);
  header->incarnation = identity_->incarnation;
}

absl::Status Shard::Take(ShardJob* job, Partition* partition, Payload payload, bool empty) {
  const size_t bytes = payload.bytes().size();
  ADDEND_RETURN_IF_ERROR(Taken(job, partition, partition->Take(std::move(payload), empty), bytes));
  return Advance(job, partition);
}

absl::Status Shard::Taken(ShardJob* job, Partition* partition, absl::Status status, size_t bytes) {
  if (status.ok()) {
    stats_.payload_bytes_summed.fetch_add(bytes, std::memory_order_relaxed);
    job->totals.payload_bytes += bytes;
  }
  if (status.ok() || !partition->RootIsLost()) return status;
  Abort(job, partition);
  return absl::OkStatus();
}

void Shard::Settle(ShardJob* job, Partition* partition) {
  if (partition->aborted()) return;
  Round sealed;
  const uint64_t copied = partition->copied_bytes();
  const int64_t began = TraceNow();
  partition->Settle(&sealed);
  partition->gathering().busy_ns += TraceNow() - began;
  stats_.copied_bytes.fetch_add(partition->copied_bytes() - copied, std::memory_order_relaxed);
  if (sealed != Round()) SendResults(job, partition);
}

void Shard::SendResults(ShardJob* job, Partition* partition) {
  stats_.partitions_sealed.fetch_add(1, std::memory_order_relaxed);
  journal_.Summed({.job = job->spec.id,
                   .generation = job->spec.generation,
                   .partition = partition->spec().id,
                   .round = partition->LastRound()},
                  partition->gathering(), &job->totals);
  partition->gathering() = {};
  for (NodeLink* link : job->links) {
    if (link != nullptr) SendResult(link, *partition);
  }
}

absl::Status Shard::Advance(ShardJob* job, Partition* partition) {
  while (!partition->aborted()) {
    const Collector::Next next = partition->collector().Advance();
    if (next == Collector::Next::kKept) {
      const auto bytes = partition->TakeKept();
      stats_.early_kept.fetch_add(1, std::memory_order_relaxed);
      ADDEND_RETURN_IF_ERROR(Taken(job, partition, bytes.status(), bytes.value_or(0)));
      continue;
    }
    if (next == Collector::Next::kAsk) {
      stats_.early_dropped.fetch_add(1, std::memory_order_relaxed);
      AskAgain(job, *partition, partition->collector().turn());
    }
    Settle(job, partition);
    break;
  }
  return absl::OkStatus();
}

void Shard::AskAgain(ShardJob* job, const Partition& partition, NodeId node) {
  NodeLink* link = job->links[node.value()];
  if (link == nullptr) return;  // it will send all it retains when it connects
  FrameHeader header = HeaderFor(*job, partition, FrameType::kSendAgain);
  header.round = partition.collector().round();
  header.priority = INT32_MAX;  // everybody waits for it
  link->Push(header);
}

FrameHeader Shard::HeaderFor(const ShardJob& job, const Partition& partition,
                             FrameType type) const {
  return HeaderFor(job, partition.spec(), partition.ownership().version(), type);
}

FrameHeader Shard::HeaderFor(const ShardJob& job, const Partition::Spec& spec, PlanVersion version,
                             FrameType type) const {
  FrameHeader header;
  header.type = type;
  header.dtype = spec.dtype;
  header.op = spec.op;
  header.job = job.spec.id;
  header.generation = job.spec.generation;
  header.plan_version = version;
  header.partition = spec.id;
  Sign(&header);
  return header;
}

bool Shard::IsReceiving(const Partition& partition) const {
  return std::any_of(links_.begin(), links_.end(),
                     [&](const auto& link) { return link->IsReceiving(partition); });
}

void Shard::HandOver(JobId job_id, TensorId tensor, const std::set<uint32_t>& partitions,
                     PlanVersion next) {
  const auto job = jobs_.find(job_id);
  if (job == jobs_.end()) return;
  for (const uint32_t index : partitions) {
    const PartitionId id(tensor, index);
    if (const auto latest = job->second->latest.find(id); latest != job->second->latest.end()) {
      if (latest->second->HandOver(next)) CloseIfDue(job->second.get(), latest->second.get());
    }
    const auto it = job->second->partitions.find(id);
    if (it == job->second->partitions.end() || !it->second->HandOver(next)) continue;
    CloseIfDue(job->second.get(), it->second.get());
  }
}

void Shard::CloseIfDue(ShardJob* job, Partition* partition) {
  if (partition->ownership().state() != Ownership::State::kClosing) return;
  if (job->spec.failed) return;  // the next owner could seal what this one has aborted
  if (!partition->CloseIfDue(IsReceiving(*partition))) return;
  for (NodeLink* link : job->links) {
    if (link != nullptr) SendMoved(link, *partition);
  }
}

void Shard::SendMoved(NodeLink* link, const Partition& partition) {
  FrameHeader header = HeaderFor(*link->job(), partition, FrameType::kMoved);
  header.plan_version = partition.ownership().next_version();
  header.round = partition.LastRound();
  header.priority = partition.priority();  // behind the result of that round
  link->Push(header);
}

// What is being received would land in the middle of the next sum. It is sent again.
void Shard::StopReceiving(const Partition& partition) {
  for (auto& link : links_) {
    if (link->IsReceiving(partition)) {
      link->link()->Close(absl::UnavailableError("the partition is being recovered"));
    }
  }
}

void Shard::TakeOver(JobId job_id, PartitionId id, PlanVersion version, bool handed_over) {
  const auto job = jobs_.find(job_id);
  if (job == jobs_.end()) return;
  if (const auto latest = job->second->latest.find(id); latest != job->second->latest.end()) {
    if (latest->second->TakeOver(version) && job->second->spec.failed) latest->second->Abort();
  }
  const auto it = job->second->partitions.find(id);
  if (it == job->second->partitions.end() || version <= it->second->ownership().version()) return;
  StopReceiving(*it->second);
  it->second->TakeOver(version, handed_over);
  if (job->second->spec.failed) it->second->Abort();
  NoteRecovery(it->second.get());
}

void Shard::EndRecovery(ShardJob* job, Partition* partition) {
  const Ownership& ownership = partition->ownership();
  for (NodeLink* link : job->links) {
    if (link != nullptr) SendRecovered(link, *partition);
  }
  if (!ownership.AnyLacks()) return CloseIfDue(job, partition);
  if (partition->Holds(ownership.newest())) return Relay(job, partition);
  // A node whose link is broken says what it holds when it is back.
  if (NodeLink* holder = job->links[ownership.Holder()->value()]; holder != nullptr) {
    AskForNewest(holder, *partition);
  }
}

void Shard::SendRecovered(NodeLink* link, const Partition& partition) {
  FrameHeader header = HeaderFor(*link->job(), partition, FrameType::kRecover);
  header.flags = kFlagReply;
  header.round = partition.ownership().newest();
  header.priority = INT32_MAX;
  link->Push(header);
}

void Shard::SendAborted(NodeLink* link, const Partition& partition) {
  FrameHeader header = HeaderFor(*link->job(), partition, FrameType::kAborted);
  if (!link->job()->spec.failed) header.flags = kFlagEmpty;
  header.round = partition.collector().round();
  header.priority = partition.priority();
  link->Push(header);
}

void Shard::AskForNewest(NodeLink* link, const Partition& partition) {
  FrameHeader header = HeaderFor(*link->job(), partition, FrameType::kSendAgain);
  header.flags = kFlagResult;
  header.round = partition.ownership().newest();
  header.priority = INT32_MAX;
  link->Push(header);
}

void Shard::Relay(ShardJob* job, Partition* partition) {
  for (uint32_t node = 0; node < job->spec.num_nodes; ++node) {
    NodeLink* const link = job->links[node];
    if (link != nullptr && partition->ownership().Lacks(NodeId(node))) {
      SendResult(link, *partition);
    }
  }
  partition->Supplied();
  CloseIfDue(job, partition);
}

void Shard::SendResult(NodeLink* link, const Partition& partition) {
  const ShardJob& job = *link->job();
  FrameHeader header = HeaderFor(job, partition, FrameType::kResult);
  header.round = partition.LastRound();
  header.priority = partition.priority();
  header.contributors = partition.contributors();
  if (partition.nonfinite()) header.flags |= kFlagNonFinite;
  const Bytes result = partition.LastResult();
  header.uncompressed_bytes = static_cast<uint32_t>(result.size());
  // The memory is lent until it is sent, whatever becomes of the tensor.
  const ShardJournal::Subject subject{.job = header.job,
                                      .generation = header.generation,
                                      .partition = header.partition,
                                      .round = header.round};
  link->PushResult(header, result,
                   [this, keep = partition.shared_from_this(), subject, node = link->node(),
                    sealed = TraceNow()](absl::Status status) {
                     keep->NoteSent();
                     if (!status.ok()) return;
                     journal_.Sent(subject, node, static_cast<uint32_t>(keep->payload_bytes()),
                                   sealed);
                   });
}

void Shard::OnLinkClosed(NodeLink* link, const absl::Status& why) {
  if (ShardJob* job = link->job(); job != nullptr) {
    spdlog::info("the link of node {} of job {} has closed: {}", link->node().value(),
                 job->spec.id.value(), Message(why));
    if (job->links[link->node().value()] == link) job->links[link->node().value()] = nullptr;
    for (auto& [id, partition] : job->partitions) partition->ForgetReferences(link->node());
    auditor_.ForgetNode(job->spec.id, link->node());
  }
  ShardJob* const job = link->job();
  links_.remove_if([link](const auto& other) { return other.get() == link; });
  if (job == nullptr) return;
  for (auto& [id, partition] : job->partitions) CloseIfDue(job, partition.get());
}

}  // namespace addend
