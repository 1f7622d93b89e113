// The second sum, and the comparison with the nodes' digests.
#include "lib/summation/auditor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/reduce/rounding.h"
#include "lib/summation/round_sum.h"
#include "lib/wire/crc32c.h"

namespace addend {
namespace {

// Of other elements than float32 there is no such type.
WireDType WireOf(const FrameHeader& header) {
  if (header.dtype != DType::kFloat32) return WireDType::kSame;
  for (const WireDType wire : {WireDType::kBFloat16, WireDType::kFloat16, WireDType::kInt8}) {
    if (header.flags & WireFlagOf(wire)) return wire;
  }
  return WireDType::kSame;
}

// The same sum as the owner's. No node is lost, so each contribution is at its position.
std::vector<std::byte> SumOf(
    const FrameHeader& header,
    const std::map<NodeId, std::unique_ptr<EarlyContribution>>& contributions, uint64_t elements,
    uint64_t ranks, WireDType wire) {
  const auto positions = static_cast<uint32_t>(contributions.size());
  const uint32_t levels = SumLevels(positions);
  const size_t accumulator = elements * AccumulatorSizeOf(header.dtype);
  std::vector<std::byte> sum(elements * SizeOf(header.dtype));
  // With a single level everything is summed at once, right into the result.
  std::vector<std::byte> sums(levels > 1 ? levels * accumulator : 0);
  RoundSum::Memory memory{nullptr, sum.data(), nullptr};
  if (levels > 1) memory = {sums.data(), sum.data(), sums.data() + accumulator};
  RoundSum round(header.dtype, header.op, elements, positions);
  uint32_t position = 0;
  for (const auto& [node, contribution] : contributions) {
    if (!contribution->empty()) {
      round.Add(position, node, contribution->content(), /*owner=*/nullptr, memory);
    }
    ++position;
  }
  round.Finish(memory, ranks);
  if (wire != WireDType::kSame) {
    auto* const result = reinterpret_cast<float*>(sum.data());
    RoundToWire({wire, /*stochastic=*/false}, /*key=*/0, /*first=*/0, elements, result, result);
  }
  return sum;
}

}  // namespace

// A job's audits do not push out those of other jobs.
Auditor::Key Auditor::FirstToGiveWay() const {
  std::map<JobId, size_t> of_job;
  for (const auto& [key, audit] : open_) ++of_job[std::get<JobId>(key)];
  const auto rank = [&](const auto& entry) {  // the smallest is abandoned
    return std::make_pair(-static_cast<int>(of_job[std::get<JobId>(entry.first)]),
                          entry.second.since);
  };
  return std::min_element(open_.begin(), open_.end(),
                          [&](const auto& a, const auto& b) { return rank(a) < rank(b); })
      ->first;
}

Auditor::Audit* Auditor::Find(const FrameHeader& header, absl::Time now) {
  const Key key(header.job, header.generation, header.partition, header.round);
  if (const auto found = open_.find(key); found != open_.end()) return &found->second;
  if (open_.size() >= kOpenMax) Abandon(FirstToGiveWay());
  Audit& audit = open_[key];
  audit.header = header;
  audit.since = now;
  return &audit;
}

void Auditor::OnContribution(const FrameHeader& header, uint32_t nodes, uint64_t ranks,
                             std::unique_ptr<EarlyContribution> contribution, absl::Time now) {
  Audit* const audit = Find(header, now);
  if (audit->nodes == 0) {
    audit->nodes = nodes;
    audit->ranks = ranks;
  }
  bool fits = contribution != nullptr && audit->nodes == nodes && audit->ranks == ranks;
  if (fits && !contribution->empty()) {
    // The contributions that are not empty have the same size.
    const EncodedBytes content = contribution->content();
    const size_t bytes = content.raw() ? content.bytes.size() : header.uncompressed_bytes;
    const uint64_t elements = bytes / SizeOf(header.dtype);
    if (audit->elements == 0) {
      audit->elements = elements;
      audit->wire = WireOf(header);
    }
    fits = audit->elements == elements && audit->wire == WireOf(header) &&
           IsWellFormed(content, header.dtype, elements);
  }
  if (!fits || audit->header.dtype != header.dtype || audit->header.op != header.op) {
    return Abandon({header.job, header.generation, header.partition, header.round});
  }
  audit->contributions[NodeId(header.sender)] = std::move(contribution);
  FinishIfComplete(header);
}

void Auditor::OnDigest(const FrameHeader& header, absl::Time now) {
  Audit* const audit = Find(header, now);
  audit->digests[NodeId(header.sender)] = header.detail;
  audit->owner = header.contributors;
  FinishIfComplete(header);
}

void Auditor::FinishIfComplete(const FrameHeader& header) {
  const auto it = open_.find({header.job, header.generation, header.partition, header.round});
  const Audit& audit = it->second;
  if (audit.nodes == 0 || audit.contributions.size() < audit.nodes ||
      audit.digests.size() < audit.nodes) {
    return;
  }
  const Finding finding = Compare(audit);
  open_.erase(it);
  on_finding_(finding);
}

Auditor::Finding Auditor::Compare(const Audit& audit) const {
  Finding finding{.result = Result::kMatch, .job = audit.header.job, .text = {}};
  const bool all_empty = std::all_of(audit.contributions.begin(), audit.contributions.end(),
                                     [](const auto& entry) { return entry.second->empty(); });
  if (all_empty) return finding;  // nothing was summed, and the size is not known
  const uint32_t expected =
      Crc32c(SumOf(audit.header, audit.contributions, audit.elements, audit.ranks, audit.wire));
  std::vector<uint32_t> differ;
  for (const auto& [node, digest] : audit.digests) {
    if (digest != expected) differ.push_back(node.value());
  }
  if (differ.empty()) return finding;
  finding.result = Result::kMismatch;
  finding.text = absl::StrFormat(
      "partition %d of tensor %d, round %d, was summed again: the result that server %d gave "
      "node%s "
      "%s is another one%s",
      audit.header.partition.index(), audit.header.partition.tensor().value(),
      audit.header.round.value(), audit.owner, differ.size() == 1 ? "" : "s",
      absl::StrJoin(differ, ", "),
      differ.size() == audit.digests.size()
          ? ": that server's memory or CPU is at fault, or this one's"
          : ": it was changed on its way, or in that node's memory");
  return finding;
}

void Auditor::Abandon(Key key) {
  if (open_.erase(key) == 0) return;
  on_finding_({.result = Result::kAbandoned, .job = std::get<JobId>(key), .text = {}});
}

void Auditor::AbandonOlderThan(absl::Time before) {
  std::vector<Key> old;
  for (const auto& [key, audit] : open_) {
    if (audit.since < before) old.push_back(key);
  }
  for (const Key& key : old) Abandon(key);
}

void Auditor::ForgetNode(JobId job, NodeId node) {
  std::vector<Key> refer;
  for (const auto& [key, audit] : open_) {
    if (std::get<JobId>(key) != job) continue;
    const auto contribution = audit.contributions.find(node);
    if (contribution != audit.contributions.end() && contribution->second->by_reference()) {
      refer.push_back(key);
    }
  }
  for (const Key& key : refer) Abandon(key);
}

void Auditor::ForgetJob(JobId job) {
  std::erase_if(open_, [job](const auto& entry) { return std::get<JobId>(entry.first) == job; });
}

}  // namespace addend
