// The orders of the scheduler, and their way to the shards.
#include "lib/summation/engine.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/units.h"
#include "lib/memory/arena.h"
#include "lib/summation/partition_layout.h"
#include "lib/summation/table_bytes.h"

namespace addend {
namespace {

// The partitions that an order reaches in one turn of a shard, while the links of others wait.
constexpr size_t kPartitionsAtOnce = 64;

uint64_t BytesOf(const TensorSpec& tensor) { return tensor.elements * SizeOf(tensor.dtype); }

absl::Status Unknown(JobId job) {
  return absl::NotFoundError(absl::StrFormat("job %d is not known to this server", job.value()));
}

// A relay passes a result on to its nodes.
uint32_t ReceiversOf(const TensorSpec& tensor, uint32_t partition, uint32_t nodes) {
  if (tensor.relayed.empty()) return nodes;
  const auto at = std::find(tensor.partitions.begin(), tensor.partitions.end(), partition);
  const auto& relayed = tensor.relayed[static_cast<size_t>(at - tensor.partitions.begin())];
  if (relayed == nullptr) return nodes;
  for (const RelayedSpan& one : *relayed) nodes -= std::min(nodes, one.span.count) - 1;
  return nodes;
}

template <typename Map>
std::set<uint32_t> KeysOf(const Map& map) {
  std::set<uint32_t> keys;
  for (const auto& [key, value] : map) keys.insert(keys.end(), key);
  return keys;
}

// Calls `order` with a few of the partitions at a time.
template <typename Order>
void InPieces(const std::set<uint32_t>& partitions, Order order) {
  for (auto next = partitions.begin(); next != partitions.end();) {
    std::set<uint32_t> some;
    while (next != partitions.end() && some.size() < kPartitionsAtOnce) {
      some.insert(some.end(), *next++);
    }
    order(some);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Options options) {
  if (options.shards == 0) return absl::InvalidArgumentError("--shards must be at least 1");
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  for (uint32_t i = 0; i < engine->options_.shards; ++i) {
    ADDEND_ASSIGN_OR_RETURN(
        auto shard, Shard::Create(
                        engine->options_.machine, i, &engine->budget_, &engine->identity_,
                        engine->options_.send_limits, engine->options_.network,
                        [raw = engine.get()](const std::string& text) {
                          const MutexLock lock(&raw->mismatches_mu_);
                          raw->mismatches_.push_back(text);
                        },
                        engine->options_.encoding,
                        [raw = engine.get()](JobId job, ServerId peer, const std::string& why) {
                          raw->relays_.NoteTrouble(job, peer, why);
                        }));
    if (!engine->options_.rdma_devices.empty()) {
      ADDEND_RETURN_IF_ERROR(
          shard->ListenRdma(engine->options_.rdma_devices, engine->options_.rdma_options));
    }
    engine->shards_.push_back(std::move(shard));
  }
  return engine;
}

Engine::Engine(Options options)
    : options_(std::move(options)), budget_(options_.memory_limit_bytes), relays_(&shards_) {
  identity_.incarnation = options_.incarnation;
}

Engine::~Engine() {
  port_.reset();
  shards_.clear();
}

absl::StatusOr<uint16_t> Engine::Listen(const Address& bind) {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    ADDEND_RETURN_IF_ERROR(
        shards_[i]->ListenSharedMemory(SharedMemoryName(identity_.incarnation, i)));
  }
  std::vector<ShardEnd> ends;
  for (auto& shard : shards_) {
    Shard* const raw = shard.get();
    ends.push_back(
        {raw->loop(), raw->tcp(), [raw](Link* link) { return raw->Accept(link, *raw->tcp()); }});
  }
  ADDEND_ASSIGN_OR_RETURN(port_, options_.machine->OpenPort(bind, std::move(ends)));
  return port_->port();
}

absl::Status Engine::ListenInproc() {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    ADDEND_RETURN_IF_ERROR(shards_[i]->ListenInproc(InprocName(i)));
  }
  return absl::OkStatus();
}

std::string Engine::InprocName(uint32_t shard) { return absl::StrFormat("summation/%d", shard); }

void Engine::AnswerRdma(Shard::RdmaCall call, std::unique_ptr<rdma::Signals> signals) {
  Shard* const shard = shards_[call.offer.shard % shards_.size()].get();
  shard->loop()
      ->Post([shard, call = std::move(call), signals = std::move(signals)]() mutable {
        shard->AnswerRdma(call, std::move(signals));
      })
      .IgnoreError();
}

void Engine::HangUp() {
  OnShards([](Shard* shard) { shard->HangUp(); });
}

void Engine::OnShards(absl::FunctionRef<void(Shard*)> task) const {
  for (auto& shard : shards_) {
    Shard* const raw = shard.get();
    raw->loop()->Run([&task, raw] { task(raw); });
  }
}

void Engine::SetJob(const JobSpec& spec) {
  MutexLock lock(&mu_);
  HeldJob& held = jobs_[spec.id];
  if (held.spec.generation != spec.generation || held.spec.key != spec.key) {
    held.ForgetTensors();
    relays_.EndJob(spec.id);
  }
  held.spec = spec;
  if (held.memory == nullptr) {
    held.memory = std::make_shared<JobMemory>(&budget_, options_.job_memory_limit_bytes);
    TrimEarly();
  }
  OnShards([&](Shard* shard) { shard->SetJob(spec, held.memory); });
}

absl::StatusOr<std::vector<std::shared_ptr<Partition>>> Engine::MakePartitions(
    const HeldJob& job, const TensorSpec& tensor, HeldPartitions* held) {
  std::optional<ExternalSlots> external;
  if (options_.external_slots)
    external = options_.external_slots(job.spec.id, job.spec.generation, tensor.name);
  if (external && external->slot[0].size() < BytesOf(tensor)) external.reset();
  uint64_t bytes = 0;
  for (const uint32_t index : tensor.partitions)
    bytes += OwnBytes(tensor, index, job.spec.num_nodes, external.has_value());
  const uint64_t tables = tensor.partitions.size() * PartitionTableBytes(job.spec.num_nodes);
  ADDEND_RETURN_IF_ERROR(job.memory->Reserve(tensor.name, bytes + tables));
  auto arena = Arena::Create(bytes);
  if (!arena.ok()) {
    job.memory->Release(bytes + tables);
    return arena.status();
  }
  std::vector<std::shared_ptr<Partition>> partitions;
  const SharedText name = tensor.name;
  std::byte* own = (*arena)->memory().data();
  for (size_t i = 0; i < tensor.partitions.size(); ++i) {
    const uint32_t index = tensor.partitions[i];
    const MutableBytes part(own, OwnBytes(tensor, index, job.spec.num_nodes, external.has_value()));
    PartitionMemory memory = Layout(tensor, index, job.spec.num_nodes, own, external);
    own += part.size();
    (*held)[index] = {part.size() + PartitionTableBytes(job.spec.num_nodes),
                      tensor.ElementsOf(index) * SizeOf(tensor.dtype), tensor.shards[i]};
    memory.keep_alive = KeepAlive(*arena, part, external);
    partitions.push_back(
        std::make_shared<Partition>(SpecOf(job.spec, tensor, name, i), std::move(memory)));
  }
  return partitions;
}

// Two copies of each value are reserved: the latest value, and a copy on its way to a node.
absl::StatusOr<std::vector<std::shared_ptr<LatestPartition>>> Engine::MakeLatest(
    const HeldJob& job, const TensorSpec& tensor, HeldPartitions* held) {
  const auto payload_of = [&tensor](size_t i) {
    return tensor.ElementsOf(tensor.partitions[i]) * SizeOf(tensor.dtype);
  };
  const uint64_t table = LatestPartitionTableBytes(job.spec.num_nodes);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensor.partitions.size(); ++i) {
    bytes += ValueCopies::kReserved * payload_of(i) + table;
  }
  ADDEND_RETURN_IF_ERROR(job.memory->Reserve(tensor.name, bytes));
  std::vector<std::shared_ptr<LatestPartition>> partitions;
  const SharedText name = tensor.name;
  for (size_t i = 0; i < tensor.partitions.size(); ++i) {
    const uint64_t payload = payload_of(i);
    (*held)[tensor.partitions[i]] = {ValueCopies::kReserved * payload + table, payload,
                                     tensor.shards[i]};
    partitions.push_back(
        std::make_shared<LatestPartition>(SpecOf(job.spec, tensor, name, i), job.memory));
  }
  return partitions;
}

template <typename P>
void Engine::GiveToShards(JobId job, const TensorSpec& tensor,
                          const std::vector<std::shared_ptr<P>>& partitions) {
  for (size_t begin = 0; begin < partitions.size(); begin += kPartitionsAtOnce) {
    const size_t end = std::min(partitions.size(), begin + kPartitionsAtOnce);
    for (uint32_t s = 0; s < shards_.size(); ++s) {
      Shard* const shard = shards_[s].get();
      shard->loop()->Run([&] {
        for (size_t i = begin; i < end; ++i) {
          if (tensor.shards[i] == s) shard->AddPartition(job, partitions[i]);
        }
      });
    }
  }
}

absl::Status Engine::Reserve(JobId job, const TensorSpec& tensor) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return Unknown(job);
  ADDEND_RETURN_IF_ERROR(CheckTensor(tensor, shards_.size()));
  HeldJob& held = it->second;
  DropOutdated(job, tensor, &held);
  const TensorSpec whole = WithoutPartitions(tensor);
  TensorSpec added = whole;
  const auto known = held.tensors.find(tensor.id);
  for (size_t i = 0; i < tensor.partitions.size(); ++i) {
    const uint32_t index = tensor.partitions[i];
    if (known == held.tensors.end() || !known->second.partitions.contains(index)) {
      added.partitions.push_back(index);
      added.shards.push_back(tensor.shards[i]);
      added.versions.push_back(tensor.versions[i]);
      added.handed_over.push_back(tensor.handed_over[i]);
      if (!tensor.relayed.empty()) added.relayed.push_back(tensor.relayed[i]);
    } else if (tensor.versions[i] != PlanVersion()) {
      Shard* const shard = shards_[tensor.shards[i]].get();
      shard->loop()->Run([&] {
        shard->TakeOver(job, PartitionId(tensor.id, index), tensor.versions[i],
                        tensor.handed_over[i]);
      });
    }
  }
  if (known != held.tensors.end() && added.partitions.empty()) return absl::OkStatus();
  if (added.partitions.size() > kMaxPartitions - std::min(kMaxPartitions, held.partitions())) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor '%s' has %d partitions here, and its job %d others, more than %d together: raise "
        "--partition-bytes",
        tensor.name, added.partitions.size(), held.partitions(), kMaxPartitions));
  }
  HeldPartitions reserved;
  if (tensor.op == ReduceOp::kAccumulate) {
    ADDEND_ASSIGN_OR_RETURN(const auto partitions, MakeLatest(held, added, &reserved));
    GiveToShards(job, added, partitions);
  } else {
    ADDEND_ASSIGN_OR_RETURN(const auto partitions, MakePartitions(held, added, &reserved));
    GiveToShards(job, added, partitions);
  }
  held.owned_bytes.resize(shards_.size());
  for (auto& [index, one] : reserved) {
    one.receivers = ReceiversOf(added, index, held.spec.num_nodes);
    held.owned_bytes[one.shard] += one.payload;
    held.result_bytes += one.payload * one.receivers;
  }
  const auto [there, is_new] =
      held.tensors.emplace(tensor.id, HeldTensor{.spec = whole, .partitions = {}});
  if (is_new) held.all_bytes += BytesOf(whole);
  there->second.partitions.merge(reserved);
  LimitInFlight(job, held);
  TrimEarly();
  return absl::OkStatus();
}

absl::Status Engine::Relay(JobId job, const TensorSpec& tensor,
                           const std::vector<RelayOrder>& orders) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return Unknown(job);
  ADDEND_RETURN_IF_ERROR(CheckTensor(tensor, shards_.size()));
  HeldJob& held = it->second;
  ADDEND_RETURN_IF_ERROR(relays_.Reserve(held.spec, held.memory, tensor, orders));
  LimitInFlight(job, held);
  TrimEarly();
  return absl::OkStatus();
}

void Engine::TrimEarly() const {
  const bool over = std::any_of(jobs_.begin(), jobs_.end(),
                                [](const auto& job) { return job.second.memory->over_part(); });
  if (over || budget_.over_limit()) OnShards([](Shard* shard) { shard->TrimEarly(); });
}

void Engine::HandOver(JobId job, TensorId tensor, const std::set<uint32_t>& partitions,
                      PlanVersion next) {
  MutexLock lock(&mu_);
  InPieces(partitions, [&](const std::set<uint32_t>& some) {
    OnShards([&](Shard* shard) { shard->HandOver(job, tensor, some, next); });
  });
}

void Engine::Release(JobId job, TensorId tensor) {
  MutexLock lock(&mu_);
  relays_.Release(job, tensor);
  const auto it = jobs_.find(job);
  if (it == jobs_.end() || !it->second.tensors.contains(tensor)) return;
  Drop(job, tensor, KeysOf(it->second.tensors.at(tensor).partitions), &it->second);
}

void Engine::Release(JobId job, TensorId tensor, const std::set<uint32_t>& partitions) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it != jobs_.end()) Drop(job, tensor, partitions, &it->second);
}

// Drops another tensor under the number of `wanted`, and partitions that this server has held at
// another shard and now gets back.
void Engine::DropOutdated(JobId job, const TensorSpec& wanted, HeldJob* held) {
  const auto found = held->tensors.find(wanted.id);
  if (found == held->tensors.end()) return;
  const HeldPartitions& partitions = found->second.partitions;
  if (!IsSameTensor(found->second.spec, wanted)) {
    return Drop(job, wanted.id, KeysOf(partitions), held);
  }
  std::set<uint32_t> elsewhere;
  for (size_t i = 0; i < wanted.partitions.size(); ++i) {
    const auto partition = partitions.find(wanted.partitions[i]);
    if (partition != partitions.end() && partition->second.shard != wanted.shards[i]) {
      elsewhere.insert(wanted.partitions[i]);
    }
  }
  if (!elsewhere.empty()) Drop(job, wanted.id, elsewhere, held);
}

void Engine::Drop(JobId job, TensorId tensor, const std::set<uint32_t>& partitions, HeldJob* held) {
  const auto there = held->tensors.find(tensor);
  if (there == held->tensors.end()) return;
  InPieces(partitions, [&](const std::set<uint32_t>& some) {
    OnShards([&](Shard* shard) { shard->DropPartitions(job, tensor, some); });
  });
  HeldPartitions& dropped = there->second.partitions;
  for (const uint32_t index : partitions) {
    const auto partition = dropped.find(index);
    if (partition == dropped.end()) continue;
    held->memory->Release(partition->second.bytes);
    held->owned_bytes[partition->second.shard] -= partition->second.payload;
    held->result_bytes -= partition->second.payload * partition->second.receivers;
    dropped.erase(partition);
  }
  if (dropped.empty()) {
    held->all_bytes -= BytesOf(there->second.spec);
    held->tensors.erase(there);
  }
  LimitInFlight(job, *held);
}

void Engine::HeldJob::ForgetTensors() {
  for (const auto& [id, tensor] : tensors) {
    for (const auto& [index, partition] : tensor.partitions) memory->Release(partition.bytes);
  }
  tensors.clear();
  all_bytes = 0;
  owned_bytes.clear();
  result_bytes = 0;
}

// Every link gets a part of the machine's link in proportion to its results in a round.
void Engine::LimitInFlight(JobId id, const HeldJob& job) const {
  const size_t limit = options_.send_limits.results_in_flight;
  if (limit == SendLimits::kUnlimited) return;
  const EngineRelays::Load relayed = relays_.LoadOf(id);
  std::vector<uint64_t> summed = relayed.bytes;
  for (size_t i = 0; i < job.owned_bytes.size(); ++i) summed[i] += job.owned_bytes[i];
  const double sent = BytesSentBeside(/*colocated=*/options_.network != nullptr, job.all_bytes,
                                      std::accumulate(summed.begin(), summed.end(), uint64_t{0}),
                                      job.result_bytes + relayed.result_bytes);
  if (sent <= 0) return;
  for (size_t i = 0; i < summed.size(); ++i) {
    const size_t results = PartInFlight(limit, static_cast<double>(summed[i]) / sent);
    const size_t sums = PartInFlight(options_.send_limits.contributions_in_flight,
                                     static_cast<double>(relayed.bytes[i]) / sent);
    Shard* const shard = shards_[i].get();
    shard->loop()->Run([&] { shard->LimitInFlight(id, results, sums); });
  }
}

void Engine::ReleaseJob(JobId job) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  OnShards([&](Shard* shard) { shard->DropJob(job, absl::CancelledError("the job has ended")); });
  it->second.ForgetTensors();
  relays_.EndJob(job);
  jobs_.erase(it);
}

void Engine::RetainOnly(const Holdings& wanted, const Holdings& relayed) {
  std::vector<JobId> jobs;
  Holdings partitions;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, job] : jobs_) {
      const auto keep = wanted.find(id);
      if (keep == wanted.end()) {
        jobs.push_back(id);
        continue;
      }
      const auto still = relayed.find(id);
      relays_.RetainOnly(id, still == relayed.end() ? EngineRelays::Holdings() : still->second);
      for (const auto& [tensor, held] : job.tensors) {
        const auto kept = keep->second.find(tensor);
        for (const auto& [index, partition] : held.partitions) {
          if (kept != keep->second.end() && kept->second.contains(index)) continue;
          partitions[id][tensor].insert(index);
        }
      }
    }
  }
  for (const JobId job : jobs) ReleaseJob(job);
  for (const auto& [job, tensors] : partitions) {
    for (const auto& [tensor, indices] : tensors) Release(job, tensor, indices);
  }
}

}  // namespace addend
