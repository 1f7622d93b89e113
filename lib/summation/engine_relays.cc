// The partitions that an engine relays.
#include "lib/summation/engine_relays.h"

#include <optional>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/sum_tree.h"
#include "lib/memory/arena.h"
#include "lib/summation/partition_layout.h"
#include "lib/summation/table_bytes.h"

namespace addend {
namespace {

absl::Status CheckOrder(const JobSpec& job, const TensorSpec& tensor, const RelayOrder& order) {
  const SumSpan& span = order.span;
  const bool fits = EntryOf(span, job.num_nodes).has_value() && order.first_node >= span.first &&
                    order.first_node < span.end();
  const uint32_t before = fits ? order.first_node - span.first : 0;
  const bool chained = before > 0 && EntryOf({.first = 0, .count = before}, span.count).has_value();
  if (fits && (before == 0 || chained) && (before == 0) == (order.before == ServerId()) &&
      job.peers.contains(order.to) && (before == 0 || job.peers.contains(order.before)) &&
      IsReduction(tensor.op) && tensor.participants == nullptr && job.lost.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the order to relay '%s' for nodes %d to %d of %d is malformed", tensor.name,
                      span.first, uint64_t{span.first} + span.count - 1, job.num_nodes));
}

uint64_t MemoryOf(const TensorSpec& tensor, uint32_t partition, uint32_t nodes) {
  return OwnBytes(tensor, partition, nodes, /*external=*/false);
}

}  // namespace

absl::Status EngineRelays::Reserve(const JobSpec& job, const std::shared_ptr<JobMemory>& memory,
                                   const TensorSpec& tensor,
                                   const std::vector<RelayOrder>& orders) {
  if (orders.size() != tensor.partitions.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d orders for %d partitions of '%s', which are to be relayed",
                        orders.size(), tensor.partitions.size(), tensor.name));
  }
  for (const RelayOrder& order : orders) ADDEND_RETURN_IF_ERROR(CheckOrder(job, tensor, order));
  const HeldTensor* former = Find(job.id, tensor.id);
  if (former != nullptr && !IsSameTensor(former->spec, tensor)) {
    Release(job.id, tensor.id);
    former = nullptr;
  }
  std::vector<size_t> added;
  uint64_t all = 0, tables = 0;
  for (size_t i = 0; i < orders.size(); ++i) {
    if (former != nullptr && former->partitions.contains(tensor.partitions[i])) continue;
    added.push_back(i);
    all += MemoryOf(tensor, tensor.partitions[i], orders[i].span.count);
    tables += PartitionTableBytes(orders[i].span.count);
  }
  if (added.empty()) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(memory->Reserve(tensor.name, all + tables));
  auto arena = Arena::Create(all);
  if (!arena.ok()) {
    memory->Release(all + tables);
    return arena.status();
  }
  Held& held = jobs_[job.id];
  held.memory = memory;
  HeldTensor& relayed = held.tensors[tensor.id];
  relayed.spec = WithoutPartitions(tensor);
  HeldPartitions& known = relayed.partitions;
  const SharedText name = tensor.name;
  std::byte* own = (*arena)->memory().data();
  for (const size_t i : added) {
    const uint32_t index = tensor.partitions[i], nodes = orders[i].span.count;
    const MutableBytes part(own, MemoryOf(tensor, index, nodes));
    own += part.size();
    PartitionMemory place = Layout(tensor, index, nodes, part.data(), /*external=*/std::nullopt);
    place.keep_alive = KeepAlive(*arena, part, /*external=*/std::nullopt);
    const uint32_t senders = orders[i].span.end() - orders[i].first_node;
    known[index] = {.bytes = part.size() + PartitionTableBytes(nodes),
                    .payload = tensor.ElementsOf(index) * SizeOf(tensor.dtype),
                    .shard = tensor.shards[i],
                    .receivers = senders + (orders[i].before == ServerId() ? 0 : 1)};
    Shard* const shard = (*shards_)[tensor.shards[i]].get();
    shard->loop()->Run([&] {
      shard->AddPartition(job.id, std::make_shared<RelayedPartition>(SpecOf(job, tensor, name, i),
                                                                     orders[i], std::move(place)));
    });
  }
  return absl::OkStatus();
}

const EngineRelays::HeldTensor* EngineRelays::Find(JobId job, TensorId tensor) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return nullptr;
  const auto there = held->second.tensors.find(tensor);
  return there == held->second.tensors.end() ? nullptr : &there->second;
}

void EngineRelays::Release(JobId job, TensorId tensor) {
  const HeldTensor* const held = Find(job, tensor);
  if (held == nullptr) return;
  std::set<uint32_t> all;
  for (const auto& [index, one] : held->partitions) all.insert(all.end(), index);
  Drop(job, tensor, all);
}

void EngineRelays::RetainOnly(JobId job, const Holdings& wanted) {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return;
  std::map<TensorId, std::set<uint32_t>> dropped;
  for (const auto& [tensor, relayed] : held->second.tensors) {
    const auto kept = wanted.find(tensor);
    for (const auto& [index, one] : relayed.partitions) {
      if (kept == wanted.end() || !kept->second.contains(index)) dropped[tensor].insert(index);
    }
  }
  for (const auto& [tensor, partitions] : dropped) Drop(job, tensor, partitions);
}

void EngineRelays::Drop(JobId job, TensorId tensor, const std::set<uint32_t>& partitions) {
  Held& held = jobs_.at(job);
  for (const auto& shard : *shards_) {
    shard->loop()->Run([&] { shard->DropRelayed(job, tensor, partitions); });
  }
  HeldPartitions& known = held.tensors.at(tensor).partitions;
  for (const uint32_t index : partitions) {
    held.memory->Release(known.at(index).bytes);
    known.erase(index);
  }
  if (known.empty()) held.tensors.erase(tensor);
  if (!held.tensors.empty()) return;
  ForgetTroubles(job);
  jobs_.erase(job);
}

EngineRelays::Load EngineRelays::LoadOf(JobId job) const {
  Load load{.bytes = std::vector<uint64_t>(shards_->size())};
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return load;
  for (const auto& [tensor, relayed] : held->second.tensors) {
    for (const auto& [index, one] : relayed.partitions) {
      load.bytes[one.shard] += one.payload;
      load.result_bytes += one.payload * one.receivers;
    }
  }
  return load;
}

void EngineRelays::EndJob(JobId job) {
  ForgetTroubles(job);  // also those of relays that were dropped before
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return;
  for (const auto& [tensor, relayed] : held->second.tensors) {
    for (const auto& [index, one] : relayed.partitions) held->second.memory->Release(one.bytes);
  }
  jobs_.erase(held);
}

void EngineRelays::NoteTrouble(JobId job, ServerId peer, const std::string& why) {
  const MutexLock lock(&troubles_mu_);
  troubles_[{job, peer}] = why;
}

EngineRelays::Troubles EngineRelays::troubles() const {
  const MutexLock lock(&troubles_mu_);
  return troubles_;
}

void EngineRelays::ForgetTroubles(JobId job) {
  const MutexLock lock(&troubles_mu_);
  std::erase_if(troubles_, [job](const auto& trouble) { return trouble.first.first == job; });
}

}  // namespace addend
