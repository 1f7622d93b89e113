// Ranks that wait for each other.
#include "services/scheduler/standstill.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/base/unnamed.h"
#include "services/scheduler/job.h"

namespace addend {
namespace {

constexpr int kMostStalledOfBeat = 18;              // of a heartbeat
constexpr size_t kMostExplained = 8;                // rounds
constexpr size_t kMostNamed = 3;                    // nodes in a sentence
constexpr size_t kMostWitnesses = 16;               // operations that are compared
constexpr absl::Duration kLong = absl::Seconds(4);  // a round that is open for so long is explained
// Every node's list may change the sentences of all.
constexpr absl::Duration kPauseForEachNode = absl::Milliseconds(10);
// Between questions about operations that a rank may be alone with, as with every operation of a
// model's first step while the others are late.
constexpr absl::Duration kPauseOfQuestions = absl::Seconds(1);
constexpr double kLongestS = 1e7;

// "all_reduce/Sum/float32[3]" of "torch.distributed/1.0/all_reduce/Sum/float32[3]/2/0".
std::string KindOf(std::string_view name) {
  std::string_view kind = name.substr(GroupOfUnnamed(name).size());
  const auto is_number = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  while (!kind.empty()) {
    const size_t slash = kind.rfind('/');
    if (slash == std::string_view::npos || !is_number(kind.substr(slash + 1))) break;
    kind = kind.substr(0, slash);
  }
  return std::string(kind.substr(0, 200));
}

}  // namespace

bool Standstill::Keep(const Job& job, NodeId node, const v1::HeartbeatRequest& beat,
                      absl::Time now) {
  List list;
  list.answer = beat.answer();
  list.complete = !beat.stalled_more() && beat.stalled_size() <= kMostStalledOfBeat;
  const uint32_t first = node.value() * job.settings.local_size();
  for (int i = 0; i < std::min(beat.stalled_size(), kMostStalledOfBeat); ++i) {
    const v1::StalledRound& stalled = beat.stalled(i);
    const auto participants = Participants::FromBits(stalled.participants(), job.ranks());
    if (stalled.name().size() > kMaxNameBytes || !participants) continue;
    Open open{.round = stalled.round(), .missing = {}, .participants = *participants};
    for (const uint32_t rank : stalled.missing()) {
      if (rank >= first && rank - first < job.settings.local_size()) open.missing.insert(rank);
    }
    if (stalled.open_s() > 0 && stalled.open_s() < kLongestS) {
      open.since = now - absl::Seconds(stalled.open_s());
    }
    list.rounds[stalled.name()] = std::move(open);
  }
  const auto former = lists_.find(node);
  const bool nothing = list.rounds.empty() && list.answer == 0;
  if (nothing && former == lists_.end()) return false;
  if (nothing) {
    lists_.erase(former);
  } else {
    lists_[node] = std::move(list);
  }
  return true;
}

// The oldest other round that the node, or the rank, waits for.
std::string Standstill::Instead(NodeId node, const std::string& name,
                                std::optional<uint32_t> rank) const {
  const auto list = lists_.find(node);
  const std::pair<const std::string, Open>* oldest = nullptr;
  if (list != lists_.end()) {
    for (const auto& entry : list->second.rounds) {
      const Open& open = entry.second;
      if (entry.first == name || !open.is_open()) continue;
      if (rank && (open.missing.contains(*rank) || !open.participants.Contains(*rank))) continue;
      if (oldest == nullptr || open.since < oldest->second.since) oldest = &entry;
    }
  }
  if (oldest == nullptr) return "";
  return absl::StrFormat(", and waits for tensor '%s' instead (its round %d)", oldest->first,
                         oldest->second.round);
}

// Without a text: no rank is known to be missing.
v1::Stall Standstill::ExplainOne(const Job& job, const std::string& name, uint64_t round,
                                 const Participants& participants) const {
  v1::Stall stall;
  stall.set_name(name);
  stall.set_round(round);
  size_t named = 0;
  size_t further = 0;
  std::string text;
  const auto add = [&](const std::string& sentence) {
    if (named == kMostNamed) return void(++further);
    text += (named++ == 0 ? "" : "; ") + sentence;
  };
  const DeclaredTensor* const tensor = job.current.tensors.Front(name);
  for (const auto& [id, node] : job.nodes) {
    if (!job.TakesPart(node) || !job.IsAmong(id, participants)) continue;
    // It has the results of all its rounds, and does not list them any more.
    if (tensor != nullptr && tensor->undeclared.Contains(id)) continue;
    const auto list = lists_.find(id);
    const Open* open = nullptr;
    if (list != lists_.end()) {
      const auto entry = list->second.rounds.find(name);
      if (entry != list->second.rounds.end()) open = &entry->second;
      if (open == nullptr && !list->second.complete) continue;
    }
    if (open != nullptr && (open->round > round || (open->round == round && open->is_open()))) {
      if (open->round > round || open->missing.empty()) continue;
      for (const uint32_t rank : open->missing) {
        add(absl::StrFormat("rank %d of %s has not pushed it%s", rank, NameOf(node),
                            Instead(id, name, rank)));
      }
    } else {
      add(absl::StrFormat("%s has not pushed it%s", NameOf(job, node),
                          Instead(id, name, std::nullopt)));
    }
    stall.add_missing_nodes(id.value());
  }
  if (further > 0) text += absl::StrFormat("; and %d more", further);
  stall.set_text(std::move(text));
  return stall;
}

// True: the sentences are others than those that the nodes know.
bool Standstill::Explain(const Job& job, absl::Time now) {
  if (now - told_ < static_cast<double>(job.nodes.size()) * kPauseForEachNode) return false;
  struct Round {
    absl::Time since = absl::InfiniteFuture();
    uint64_t round = 0;
    Participants participants;
  };
  std::map<std::string, Round> rounds;
  for (const auto& [node, list] : lists_) {
    const auto known = job.nodes.find(node);
    if (known == job.nodes.end() || !job.TakesPart(known->second)) continue;
    for (const auto& [name, open] : list.rounds) {
      if (!open.is_open() || now - open.since < kLong) continue;
      Round& oldest = rounds[name];
      oldest.round = std::max(oldest.round, open.round);
      oldest.since = std::min(oldest.since, open.since);
      oldest.participants = open.participants;
    }
  }
  std::vector<std::pair<absl::Time, std::string>> order;
  for (const auto& [name, round] : rounds) order.emplace_back(round.since, name);
  std::sort(order.begin(), order.end());
  std::vector<v1::Stall> stalls;
  for (const auto& [since, name] : order) {
    if (stalls.size() == kMostExplained) break;
    const Round& round = rounds.at(name);
    v1::Stall stall = ExplainOne(job, name, round.round, round.participants);
    if (stall.text().empty()) continue;
    stall.set_open_s(absl::ToDoubleSeconds(now - since));
    stalls.push_back(std::move(stall));
  }
  const bool same =
      std::equal(stalls.begin(), stalls.end(), stalls_.begin(), stalls_.end(),
                 [](const v1::Stall& a, const v1::Stall& b) {
                   return a.name() == b.name() && a.round() == b.round() && a.text() == b.text();
                 });
  if (same) return false;
  stalls_ = std::move(stalls);
  told_ = now;
  return true;
}

// Of each operation without a name that a node waits for, a rank that has pushed it.
std::vector<Standstill::Witness> Standstill::Unnamed(const Job& job) const {
  std::map<std::string, Witness> found;
  for (const auto& [node, list] : lists_) {
    const uint32_t first = node.value() * job.settings.local_size();
    for (const auto& [name, open] : list.rounds) {
      if (!open.is_open() || GroupOfUnnamed(name).empty() || found.contains(name)) continue;
      for (uint32_t rank = first; rank < first + job.settings.local_size(); ++rank) {
        if (open.missing.contains(rank) || !open.participants.Contains(rank)) continue;
        if (found.size() == kMostWitnesses) break;
        found[name] = {name, open.round, node, rank, open.participants};
        break;
      }
    }
  }
  std::vector<Witness> witnesses;
  for (auto& [name, witness] : found) witnesses.push_back(std::move(witness));
  return witnesses;
}

std::optional<bool> Standstill::HasPushed(NodeId node, uint32_t rank, const Witness& of) const {
  const auto list = lists_.find(node);
  if (list == lists_.end()) return std::nullopt;
  const auto entry = list->second.rounds.find(of.name);
  if (entry == list->second.rounds.end()) return std::nullopt;
  const Open& open = entry->second;
  if (open.round != of.round) return open.round > of.round;
  return !open.missing.contains(rank);
}

// Each has pushed its own operation, and is not known to have pushed the other's.
bool Standstill::MayClash(const Witness& a, const Witness& b) const {
  return GroupOfUnnamed(a.name) == GroupOfUnnamed(b.name) && a.rank != b.rank &&
         a.participants == b.participants && !HasPushed(a.node, a.rank, b).value_or(false) &&
         !HasPushed(b.node, b.rank, a).value_or(false) &&
         !settled_.contains(std::make_pair(a.name, b.name));
}

bool Standstill::HasAnswered(NodeId node) const {
  const auto list = lists_.find(node);
  return list != lists_.end() && question_ != 0 && list->second.answer == question_;
}

// A rank that lacks an operation may have pushed it and have its result already: only its node's
// answer about that very operation proves that it has not. And a rank that waits for an operation
// which nobody else lists may be alone with its shape. After the last such wait the question is
// withdrawn, so that heartbeats are short again.
Standstill::News Standstill::Take(const Job& job, NodeId node, const v1::HeartbeatRequest& beat,
                                  absl::Time now, absl::FunctionRef<uint64_t()> next_number) {
  if (!Keep(job, node, beat, now)) return {};
  News news;
  news.told = Explain(job, now);
  const std::vector<Witness> witnesses = Unnamed(job);
  if (witnesses.empty() && question_ != 0) {
    question_ = 0;
    asked_.clear();
    news.told = true;
  } else if (WantsToAsk(job, witnesses, now, &news.clash)) {
    question_ = next_number();
    asked_at_ = now;
    news.told = true;
  }
  return news;
}

// True: a question is due, about `asked_`.
bool Standstill::WantsToAsk(const Job& job, const std::vector<Witness>& witnesses, absl::Time now,
                            std::optional<Clash>* clash) {
  for (size_t i = 0; i < witnesses.size(); ++i) {
    for (size_t j = i + 1; j < witnesses.size(); ++j) {
      const Witness& a = witnesses[i];
      const Witness& b = witnesses[j];
      if (!MayClash(a, b)) continue;
      const std::vector<std::string> names{a.name, b.name};
      if (asked_ != names) {
        asked_ = names;
        return true;
      }
      if (!HasAnswered(a.node) || !HasAnswered(b.node)) return false;
      settled_.emplace(a.name, b.name);
      if (HasPushed(a.node, a.rank, b) != false || HasPushed(b.node, b.rank, a) != false) continue;
      *clash = Clash{
          a.name, b.name,
          absl::StrFormat("rank %d calls '%s' where rank %d calls '%s': all ranks must call "
                          "operations without a name in the same order, with the same shapes and "
                          "types",
                          a.rank, KindOf(a.name), b.rank, KindOf(b.name))};
      return false;
    }
  }
  if (now - asked_at_ < kPauseOfQuestions) return false;
  for (const Witness& witness : witnesses) {
    const DeclaredTensor* const tensor = job.current.tensors.Front(witness.name);
    const bool alone = tensor != nullptr && tensor->stage == v1::AgreementRecord::COLLECTING;
    if (!alone || settled_.contains(std::make_pair(witness.name, std::string()))) continue;
    settled_.emplace(witness.name, std::string());
    asked_ = {witness.name};
    return true;
  }
  return false;
}

void Standstill::Fill(v1::NodeUpdate* update) const {
  update->clear_stalls();
  for (const v1::Stall& stall : stalls_) *update->add_stalls() = stall;
  update->clear_asked();
  update->set_question(question_);
  for (const std::string& name : asked_) update->add_asked(name);
}

}  // namespace addend
