// The rounds that a job's nodes wait for, as their heartbeats list them: the ranks that have not
// pushed them, and the tensors that these ranks wait for instead. And operations without a name
// that cannot belong together: an order of calls, or shapes, in which the ranks differ. Of a
// generation; not stored, because nodes repeat their lists. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/base/participants.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

struct Job;

class Standstill {
 public:
  // Two tensors that ranks push instead of each other, and the sentence that names both.
  struct Clash {
    std::string first;
    std::string second;
    std::string message;
  };
  struct News {
    bool told = false;           // nodes have to be told something else than before
    std::optional<Clash> clash;  // found just now
  };

  // Takes the node's list. `next_number`: gives the number of a question.
  News Take(const Job& job, NodeId node, const v1::HeartbeatRequest& beat, absl::Time now,
            absl::FunctionRef<uint64_t()> next_number);
  void Fill(v1::NodeUpdate* update) const;

 private:
  struct Open {
    uint64_t round = 0;
    std::set<uint32_t> missing;
    absl::Time since = absl::InfiniteFuture();
    Participants participants;
    bool is_open() const { return since != absl::InfiniteFuture(); }
  };
  struct List {
    std::map<std::string, Open> rounds;  // by tensor
    bool complete = true;
    uint64_t answer = 0;
  };
  // An operation without a name, and a rank that has pushed it.
  struct Witness {
    std::string name;
    uint64_t round = 0;
    NodeId node;
    uint32_t rank = 0;
    Participants participants;
  };

  bool Keep(const Job& job, NodeId node, const v1::HeartbeatRequest& beat, absl::Time now);
  bool Explain(const Job& job, absl::Time now);
  v1::Stall ExplainOne(const Job& job, const std::string& name, uint64_t round,
                       const Participants& participants) const;
  std::string Instead(NodeId node, const std::string& name, std::optional<uint32_t> rank) const;
  bool WantsToAsk(const Job& job, const std::vector<Witness>& witnesses, absl::Time now,
                  std::optional<Clash>* clash);
  std::vector<Witness> Unnamed(const Job& job) const;
  bool MayClash(const Witness& a, const Witness& b) const;
  // Whether the rank has pushed the round of that tensor; nullopt: its node has not said so.
  std::optional<bool> HasPushed(NodeId node, uint32_t rank, const Witness& of) const;
  bool HasAnswered(NodeId node) const;

  std::map<NodeId, List> lists_;
  std::vector<v1::Stall> stalls_;
  absl::Time told_ = absl::InfinitePast();
  uint64_t question_ = 0;
  std::vector<std::string> asked_;
  absl::Time asked_at_ = absl::InfinitePast();
  std::set<std::pair<std::string, std::string>> settled_;  // pairs that are told, or no clash
};

}  // namespace addend
