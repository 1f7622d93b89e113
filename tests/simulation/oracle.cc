#include "tests/simulation/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"

namespace addend::simulation {
namespace {

// Rounds of a tensor that any rank may still ask about.
constexpr uint64_t kRemembered = 8;

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

}  // namespace

std::vector<std::byte> Oracle::Contribution(const JobPlan& job, const GenerationId& generation,
                                            size_t tensor, uint64_t round, uint32_t rank) const {
  const TensorSetting& setting = job.tensors[tensor];
  uint64_t seed = Mixed(Mixed(generation.first) + generation.second * 1'000'003 + tensor);
  for (const char c : job.name) seed = Mixed(seed + static_cast<uint8_t>(c));
  seed = Mixed(seed ^ round << 20 ^ rank);
  std::vector<std::byte> bytes(setting.bytes());
  WithType(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (uint64_t i = 0; i < setting.elements; ++i) {
      const T value = ValueOf<T>(Mixed(seed + i));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

// Ranks of a node in their order, then nodes in theirs.
std::vector<std::byte> Oracle::Reference(const JobPlan& job, const GenerationId& generation,
                                         size_t tensor, uint64_t round,
                                         const std::set<uint32_t>& without) const {
  const TensorSetting& setting = job.tensors[tensor];
  std::vector<std::byte> sum;
  WithType(setting.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto add = [&](std::vector<std::byte>* to, const std::vector<std::byte>& from) {
      if (to->empty()) return void(*to = from);
      for (uint64_t i = 0; i < setting.elements; ++i) {
        T a, b;
        std::memcpy(&a, to->data() + i * sizeof(T), sizeof(T));
        std::memcpy(&b, from.data() + i * sizeof(T), sizeof(T));
        a = Combine(setting.op, a, b);
        std::memcpy(to->data() + i * sizeof(T), &a, sizeof(T));
      }
    };
    for (uint32_t node = 0; node < job.nodes; ++node) {
      if (without.contains(node)) continue;
      std::vector<std::byte> local;
      for (uint32_t l = 0; l < job.local_size; ++l) {
        add(&local, Contribution(job, generation, tensor, round, node * job.local_size + l));
      }
      add(&sum, local);
    }
  });
  return sum;
}

void Oracle::OnResult(const JobPlan& job, const GenerationId& generation, size_t tensor,
                      uint64_t round, uint32_t rank, Bytes result) {
  ++results_;
  const TensorSetting& setting = job.tensors[tensor];
  const auto describe = [&] {
    return absl::StrFormat("job %s, generation %d, tensor %s, round %d: rank %d", job.name,
                           generation.second, setting.name, round, rank);
  };
  Seen& seen = seen_[{&job, generation, tensor, round}];
  // A scheduler that has lost its store begins the job anew.
  if (!seen.ranks.insert(rank).second && excused_all_.empty()) {
    return world_->Violate(describe() + " has a second result");
  }
  if (seen.ranks.size() > 1) {
    if (!std::equal(result.begin(), result.end(), seen.bits.begin(), seen.bits.end())) {
      world_->Violate(describe() + " has other bits than another rank");
    }
  } else {
    seen.bits.assign(result.begin(), result.end());
    // A lost node takes part, or does not, partition by partition.
    std::vector<std::vector<std::byte>> allowed;
    const std::set<uint32_t>& lost = lost_[&job];
    const std::vector<uint32_t> nodes(lost.begin(), lost.end());
    for (uint64_t mask = 0; mask < uint64_t{1} << (job.shrink ? nodes.size() : 0); ++mask) {
      std::set<uint32_t> without;
      for (size_t i = 0; i < nodes.size(); ++i) {
        if (mask >> i & 1) without.insert(nodes[i]);
      }
      if (without.size() < job.nodes) {
        allowed.push_back(Reference(job, generation, tensor, round, without));
      }
    }
    const size_t width = SizeOf(setting.dtype);
    for (uint64_t i = 0; i < setting.elements; ++i) {
      const bool right = std::any_of(allowed.begin(), allowed.end(), [&](const auto& one) {
        return std::memcmp(one.data() + i * width, result.data() + i * width, width) == 0;
      });
      if (right) continue;
      world_->Violate(
          absl::StrFormat("%s has a wrong element %d of %d", describe(), i, setting.elements));
      break;
    }
  }
  if (seen.ranks.size() == job.ranks()) seen.bits = {};
  if (round > kRemembered) seen_.erase({&job, generation, tensor, round - kRemembered});
}

void Oracle::OnFailure(const JobPlan& job, uint32_t rank, const client::Error& error) {
  const bool of_a_peer = error.code == ADDEND_ERROR_PEER_LOST ||
                         error.code == ADDEND_ERROR_STALLED ||
                         error.code == ADDEND_ERROR_UNREACHABLE;
  if (of_a_peer && (!excuses_[&job].empty() || !excused_all_.empty())) return;
  world_->Violate(absl::StrFormat("job %s fails on rank %d without a cause: %s (%d)", job.name,
                                  rank, error.text, static_cast<int>(error.code)));
}

void Oracle::Excuse(const JobPlan& job, const std::string& why) { excuses_[&job] = why; }

}  // namespace addend::simulation
