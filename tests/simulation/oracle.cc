#include "tests/simulation/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/reduce/block_codec.h"
#include "lib/reduce/rounding.h"

namespace addend::simulation {
namespace {

// Rounds of a tensor that any rank may still ask about.
constexpr uint64_t kRemembered = 8;
constexpr size_t kLostMost = 8;  // whose presence is tried in all combinations
// Nodes of a job that may be lost while all sums without some of them are known.
constexpr size_t kMayLose = 3;

uint64_t Mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

template <typename T>
T ValueOf(uint64_t bits) {
  if constexpr (std::is_floating_point_v<T>) {
    // Of all magnitudes, so that the order of a sum shows in its bits.
    const auto mantissa = static_cast<T>(static_cast<int64_t>(bits & 0xffffff) - 0x800000);
    return std::ldexp(mantissa, static_cast<int>(bits >> 24 & 15) - 30);
  } else {
    return static_cast<T>(static_cast<int64_t>(bits & 0xffff) - 0x8000);
  }
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin:
      return b < a ? b : a;
    case ReduceOp::kMax:
      return b > a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

// Calls `body` with a value of the dtype.
template <typename Body>
auto WithType(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(double{});
    case DType::kInt32:
      return body(int32_t{});
    case DType::kInt64:
      return body(int64_t{});
    default:
      return body(float{});
  }
}

void Round(const TensorSetting& setting, uint64_t round, uint32_t whose,
           std::vector<std::byte>* bytes) {
  if (!setting.wire.lossy()) return;
  auto* elements = reinterpret_cast<float*>(bytes->data());
  const uint64_t key = RoundingKey(setting.name, round, whose);
  RoundToWire(setting.wire, key, /*first=*/0, setting.elements, elements, elements);
}

}  // namespace

uint64_t JobPlan::RoundOf(size_t tensor, uint64_t step) const {
  for (uint64_t first = step; first > 0; --first) {
    if (DeclaresAnewBefore(first, tensor)) return step - first + 1;
  }
  return step;
}

std::vector<std::byte> Oracle::Contribution(const JobPlan& job, const GenerationId& generation,
                                            size_t tensor, uint64_t round, uint32_t rank) const {
  const TensorSetting& setting = job.tensors[tensor];
  uint64_t seed = Mixed(Mixed(generation.first) + generation.second * 1'000'003 + tensor);
  for (const char c : job.name) seed = Mixed(seed + static_cast<uint8_t>(c));
  seed = Mixed(seed ^ round << 20 ^ rank);
  std::vector<std::byte> bytes(setting.bytes());
  WithType(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (setting.asynchronous()) {
      // The first of the node's ranks that take part.
      bool first = true;
      for (uint32_t other = rank - rank % job.local_size; other < rank; ++other) {
        first = first && !setting.TakesPart(other);
      }
      const T one = first ? 1 : 0;
      for (uint64_t i = rank / job.local_size; i < setting.elements; i += job.nodes) {
        std::memcpy(bytes.data() + i * sizeof(T), &one, sizeof(T));
      }
      return;
    }
    for (uint64_t i = 0; i < setting.elements; ++i) {
      const bool is_zero = job.zero_blocks && Mixed(seed ^ i / kBlockElements) % 2 == 0;
      const T value = is_zero ? T(0) : ValueOf<T>(Mixed(seed + i));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

// Ranks of a node in their order, then the nodes with participants by the tree of radix 8; a node
// without a contribution keeps its place. What a node sends is rounded to a lossy type, and the sum
// once more.
std::vector<std::byte> Oracle::Reference(const JobPlan& job, const GenerationId& generation,
                                         size_t tensor, uint64_t round,
                                         const std::set<uint32_t>& without) const {
  const TensorSetting& setting = job.tensors[tensor];
  if (setting.op == ReduceOp::kBroadcast) {
    return Contribution(job, generation, tensor, round, setting.root);
  }
  const uint64_t declared_round = job.RoundOf(tensor, round);
  std::vector<std::vector<std::byte>> sums;  // of a level of the tree; empty: adds nothing
  WithType(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto add = [&](std::vector<std::byte>* to, const std::vector<std::byte>& from) {
      if (to->empty() || from.empty()) return void(to->insert(to->end(), from.begin(), from.end()));
      for (uint64_t i = 0; i < setting.elements; ++i) {
        T a, b;
        std::memcpy(&a, to->data() + i * sizeof(T), sizeof(T));
        std::memcpy(&b, from.data() + i * sizeof(T), sizeof(T));
        a = Combine(setting.op, a, b);
        std::memcpy(to->data() + i * sizeof(T), &a, sizeof(T));
      }
    };
    for (uint32_t node = 0; node < job.nodes; ++node) {
      std::vector<std::byte> local;
      for (uint32_t l = 0; l < job.local_size; ++l) {
        const uint32_t rank = node * job.local_size + l;
        if (!setting.TakesPart(rank)) continue;
        add(&local, Contribution(job, generation, tensor, round, rank));
      }
      if (local.empty()) continue;
      Round(setting, declared_round, node, &local);
      if (without.contains(node)) local.clear();
      sums.push_back(std::move(local));
    }
    while (sums.size() > 1) {
      std::vector<std::vector<std::byte>> above((sums.size() + 7) / 8);
      for (size_t i = 0; i < sums.size(); ++i) add(&above[i / 8], sums[i]);
      sums = std::move(above);
    }
  });
  if (sums.empty() || sums.front().empty()) return {};
  Round(setting, declared_round, kRoundingOfResult, &sums.front());
  return std::move(sums.front());
}

void Oracle::OnJoin(const JobPlan& job, uint32_t rank) {
  alone_.erase({&job, rank});
  ended_well_.erase({&job, rank});
  for (size_t tensor = 0; tensor < job.tensors.size(); ++tensor) {
    latest_.erase({&job, rank, tensor});
  }
}

void Oracle::OnPush(const JobPlan& job, const GenerationId& generation, size_t tensor,
                    uint64_t round, uint32_t rank) {
  if (!job.tensors[tensor].asynchronous()) return;
  uint64_t& begun = begun_[{&job, generation, tensor, rank / job.local_size}];
  begun = std::max(begun, round);
}

void Oracle::OnResult(const JobPlan& job, const GenerationId& generation, size_t tensor,
                      uint64_t round, uint32_t rank, Bytes result) {
  ++results_;
  const TensorSetting& setting = job.tensors[tensor];
  const std::string whose = absl::StrFormat("job %s, generation %d, tensor %s, round %d: rank %d",
                                            job.name, generation.second, setting.name, round, rank);
  Seen& seen = seen_[{&job, generation, tensor, round}];
  // A scheduler that has lost its store begins the job anew.
  if (!seen.ranks.insert(rank).second && excused_all_.empty()) {
    return world_->Violate(whose + " has a second result");
  }
  if (setting.asynchronous()) {
    CheckLatest(job, generation, tensor, round, rank, result, whose);
  } else if (seen.bits.empty()) {
    seen.bits.assign(result.begin(), result.end());
    seen.first = rank;
    CheckSum(job, generation, tensor, round, result, whose);
  } else {
    Compare(job, rank, result, whose, &seen);
  }
  if (round > kRemembered) seen_.erase({&job, generation, tensor, round - kRemembered});
}

void Oracle::Compare(const JobPlan& job, uint32_t rank, Bytes result, const std::string& whose,
                     Seen* seen) {
  if (std::equal(result.begin(), result.end(), seen->bits.begin(), seen->bits.end())) return;
  const std::string difference =
      absl::StrFormat("%s has other bits than rank %d", whose, seen->first);
  if (MayBeLost(job, rank) && MayBeLost(job, seen->first)) {
    alone_.emplace(std::make_pair(&job, rank), Alone{difference, seen->first});
    alone_.emplace(std::make_pair(&job, seen->first), Alone{difference, rank});
  } else if (MayBeLost(job, rank)) {
    alone_.emplace(std::make_pair(&job, rank), Alone{difference, std::nullopt});
  } else if (MayBeLost(job, seen->first)) {
    alone_.emplace(std::make_pair(&job, seen->first), Alone{difference, std::nullopt});
    seen->bits.assign(result.begin(), result.end());
    seen->first = rank;
  } else {
    world_->Violate(difference);
  }
}

bool Oracle::MayBeLost(const JobPlan& job, uint32_t rank) const {
  if (!job.shrink) return false;
  if (!excused_all_.empty()) return true;
  const auto lost = lost_.find(&job);
  return lost != lost_.end() && lost->second.contains(rank / job.local_size);
}

void Oracle::CheckSum(const JobPlan& job, const GenerationId& generation, size_t tensor,
                      uint64_t round, Bytes result, const std::string& whose) {
  const TensorSetting& setting = job.tensors[tensor];
  const std::set<uint32_t>& lost = lost_[&job];
  if (job.shrink && !excused_all_.empty()) return;  // any node may be lost
  if (job.shrink && lost.size() > kLostMost) return;
  const std::vector<uint32_t> nodes(lost.begin(), lost.end());
  // A lost node takes part, or does not, partition by partition.
  std::vector<std::vector<std::byte>> allowed;
  for (uint64_t mask = 0; mask < uint64_t{1} << (job.shrink ? nodes.size() : 0); ++mask) {
    std::set<uint32_t> without;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (mask >> i & 1) without.insert(nodes[i]);
    }
    if (auto sum = Reference(job, generation, tensor, round, without); !sum.empty()) {
      allowed.push_back(std::move(sum));
    }
  }
  const size_t width = SizeOf(setting.dtype);
  for (uint64_t i = 0; i < setting.elements; ++i) {
    const bool right = std::any_of(allowed.begin(), allowed.end(), [&](const auto& one) {
      return std::memcmp(one.data() + i * width, result.data() + i * width, width) == 0;
    });
    if (right) continue;
    return world_->Violate(
        absl::StrFormat("%s has a wrong element %d of %d", whose, i, setting.elements));
  }
}

// OWN, TWICE and FALLEN of spec/latest.pml.
void Oracle::CheckLatest(const JobPlan& job, const GenerationId& generation, size_t tensor,
                         uint64_t round, uint32_t rank, Bytes result, const std::string& whose) {
  const TensorSetting& setting = job.tensors[tensor];
  std::vector<double>& former = latest_[{&job, rank, tensor}];
  former.resize(setting.elements);
  WithType(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (uint64_t i = 0; i < setting.elements; ++i) {
      T element;
      std::memcpy(&element, result.data() + i * sizeof(T), sizeof(T));
      const auto value = static_cast<double>(element);
      const auto node = static_cast<uint32_t>(i % job.nodes);
      const auto begun = static_cast<double>(begun_[{&job, generation, tensor, node}]);
      if (node == rank / job.local_size && value != static_cast<double>(round)) {
        return world_->Violate(
            absl::StrFormat("%s finds %.0f of its node's updates in element %d", whose, value, i));
      }
      if (value > begun) {
        return world_->Violate(
            absl::StrFormat("%s finds %.0f updates of node %d in element %d, which has begun %.0f",
                            whose, value, node, i, begun));
      }
      if (value < former[i]) {
        return world_->Violate(absl::StrFormat("%s finds %.0f updates in element %d, after %.0f",
                                               whose, value, i, former[i]));
      }
      former[i] = value;
    }
  });
}

void Oracle::OnPlan(const JobPlan& plan, uint32_t node, uint64_t job, uint32_t generation,
                    const v1::TensorPlan& tensor) {
  for (int i = 0; i < tensor.servers_size(); ++i) {
    const uint64_t version = i < tensor.versions_size() ? tensor.versions(i) : 0;
    const std::pair<uint32_t, uint32_t> owner(tensor.servers(i), tensor.shards(i));
    const bool relayed = version == 0 && plan.rack_nodes != 0;
    // A rack may have several relays, of different eight ranks.
    const uint32_t place = relayed ? 1 + node : 0;
    const auto [known, first] =
        owners_.try_emplace(Version(job, generation, tensor.tensor_id(), i, version, place), owner);
    if (!first && known->second != owner && excused_all_.empty()) {
      world_->Violate(absl::StrFormat(
          "version %d of partition %d of tensor '%s' is given to server %d and to server %d",
          version, i, tensor.tensor().name(), known->second.first, owner.first));
    }
  }
}

void Oracle::OnLeave(const JobPlan& job, uint32_t rank) {
  ended_well_.emplace(&job, rank);
  const auto alone = alone_.find({&job, rank});
  // With another excuse it is not known which of the two was taken for lost.
  if (alone == alone_.end() || !excused_all_.empty()) return;
  const auto& [difference, other] = alone->second;
  if (other.has_value() && !ended_well_.contains({&job, *other})) return;
  world_->Violate(difference + ", and goes on");
}

void Oracle::OnFailure(const JobPlan& job, uint32_t rank, const client::Error& error) {
  const bool may = MayFail(job, rank, error);
  if (job.shrink) MayLose(job, rank / job.local_size);  // it leaves, and the others go on
  if (may) return;
  world_->Violate(absl::StrFormat("job %s fails on rank %d without a cause: %s (%d)", job.name,
                                  rank, error.text, static_cast<int>(error.code)));
}

bool Oracle::MayFail(const JobPlan& job, uint32_t rank, const client::Error& error) const {
  if (may_fail_.contains(&job)) return true;
  const auto lost = lost_.find(&job);
  const bool any_lost = lost != lost_.end() && !lost->second.empty();
  const bool of_a_peer = error.code == ADDEND_ERROR_PEER_LOST ||
                         error.code == ADDEND_ERROR_STALLED ||
                         error.code == ADDEND_ERROR_UNREACHABLE;
  // With a rank that ends after a refusal the job fails: the refusal may have driven it away.
  const bool of_odds = job.odd_rank && error.code == ADDEND_ERROR_MISMATCH;
  if (of_odds && (any_lost || !excused_all_.empty())) return true;
  // Without its root a broadcast fails.
  const bool without_root =
      std::any_of(job.tensors.begin(), job.tensors.end(), [&](const TensorSetting& tensor) {
        return tensor.op == ReduceOp::kBroadcast && MayBeLost(job, tensor.root);
      });
  const bool excused = job.shrink ? MayBeLost(job, rank) || without_root : any_lost;
  const bool refused = error.text.find(" of the memory limit of ") != std::string::npos;
  if (refused && short_of_memory_) return true;
  // With nodes their servers are lost, and perhaps all that had room.
  const bool of_loss = of_a_peer || error.code == ADDEND_ERROR_RESOURCES;
  return of_loss && (excused || !excused_all_.empty());
}

void Oracle::OnOdd(const JobPlan& job, uint32_t rank, const client::Error& refusal) {
  if (refusal.code == ADDEND_ERROR_MISMATCH) return;
  // Those that are left agree, without a rank that may be lost, or it is left alone.
  bool alone = rank == *job.odd_rank;
  for (uint32_t other = 0; other < job.ranks(); ++other) {
    alone = alone && (other == rank || MayBeLost(job, other));
  }
  if (refusal.ok() && (alone || MayBeLost(job, *job.odd_rank))) return;
  world_->Violate(absl::StrFormat(
      "job %s, rank %d: a tensor that another rank has declared otherwise ends with: %s", job.name,
      rank, refusal.ok() ? "a result" : refusal.text));
}

// VERDICT of spec/node_loss.pml.
void Oracle::OnEnd(const JobPlan& job, const GenerationId& generation, uint32_t rank,
                   const std::vector<uint64_t>& rounds) {
  if (job.shrink || may_fail_.contains(&job) || !excused_all_.empty()) return;
  auto& firsts = ended_[{&job, generation}];
  firsts.resize(rounds.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (job.tensors[i].asynchronous() || rounds[i] == kNoRounds) continue;
    auto& first = firsts[i];
    if (!first) first = {rank, rounds[i]};
    if (rounds[i] == first->second) continue;
    world_->Violate(absl::StrFormat(
        "job %s, generation %d fails after round %d of tensor %s on rank %d, and after round %d "
        "on rank %d",
        job.name, generation.second, first->second, job.tensors[i].name, first->first, rounds[i],
        rank));
  }
}

bool Oracle::CanLose(const JobPlan& job, uint32_t node) const {
  const auto lost = lost_.find(&job);
  return !job.shrink || lost == lost_.end() || lost->second.size() < kMayLose ||
         lost->second.contains(node);
}

}  // namespace addend::simulation
