// The numbers of an engine, and its findings, for people.
#include <optional>
#include <utility>

#include "lib/summation/engine.h"

namespace addend {

std::vector<OpenRoundInfo> Engine::RollCall(JobId job, size_t limit) const {
  std::vector<OpenRoundInfo> rounds;
  OnShards([&](Shard* shard) { shard->RollCall(job, limit, &rounds); });
  return rounds;
}

std::map<JobId, Engine::JobNumbers> Engine::job_numbers() const {
  std::map<JobId, JobTotals> totals;
  OnShards([&](Shard* shard) { shard->AddTotals(&totals); });
  std::map<JobId, JobNumbers> numbers;
  const MutexLock lock(&mu_);
  for (auto& [id, of_job] : totals) {
    numbers[id].totals = std::move(of_job);
    const auto held = jobs_.find(id);
    if (held == jobs_.end()) continue;
    for (const auto& [number, tensor] : held->second.tensors) {
      for (const auto& [index, partition] : tensor.partitions) {
        numbers[id].reserved_bytes += partition.bytes;
      }
    }
  }
  return numbers;
}

std::vector<std::string> Engine::TakeMismatches() {
  const MutexLock lock(&mismatches_mu_);
  return std::exchange(mismatches_, {});
}

LinkCounts Engine::links() const {
  LinkCounts counts;
  OnShards([&](Shard* shard) { shard->AddLinks(&counts); });
  return counts;
}

std::vector<SumEvent> Engine::Trace(JobId job, uint64_t rounds) const {
  std::vector<SumEvent> events;
  OnShards([&](Shard* shard) {
    std::optional<Generation> generation;  // the last
    std::map<TensorId, Round> newest;      // of each tensor: the round of its first event
    shard->journal().events().NewestFirst([&](const SumEvent& event) {
      if (event.job != job) return true;
      if (!generation) generation = event.generation;
      if (event.generation != *generation) return false;
      const Round last = newest.emplace(event.partition.tensor(), event.round).first->second;
      if (event.round.value() + rounds > last.value()) events.push_back(event);
      return true;
    });
  });
  return events;
}

std::map<TensorId, std::string> Engine::TensorNames(JobId job) const {
  std::map<TensorId, std::string> names;
  OnShards([&](Shard* shard) { shard->AddNames(job, &names); });
  return names;
}

EngineStats Engine::stats() const {
  EngineStats sum;
  for (const auto& shard : shards_) {
    for (const Transport* transport : shard->transports()) {
      if (transport == nullptr) continue;
      const TransportStats& t = transport->stats();
      sum.network_bytes_sent += t.bytes_sent;
      sum.network_bytes_received += t.bytes_received;
      sum.local_bytes += t.local_bytes;
      sum.links_malformed += t.links_malformed;
    }
    const ShardStats& s = shard->stats();
    sum.copied_bytes += s.copied_bytes;
    sum.partitions_sealed += s.partitions_sealed;
    sum.payload_bytes_summed += s.payload_bytes_summed;
    sum.early_kept += s.early_kept;
    sum.early_dropped += s.early_dropped;
    for (size_t i = 0; i < s.links_refused.size(); ++i) sum.links_refused[i] += s.links_refused[i];
    sum.updates_applied += s.updates_applied;
    sum.updates_lost += s.updates_lost;
    sum.spun_s += static_cast<double>(shard->loop()->spun().count()) * 1e-9;
  }
  sum.memory_used_bytes = budget_.used();
  sum.memory_peak_bytes = budget_.peak();
  return sum;
}

}  // namespace addend
