// Trainers before they are ranks: checks their first message, lets them wait for the generation to
// begin, tells them its progress, and admits or refuses them. Outlives generations. Belongs to the
// agent's core thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/worker_agent/local_ranks.h"
#include "services/worker_agent/node_context.h"

namespace addend {

class Admission {
 public:
  // All pointers in `context` outlive this.
  explicit Admission(const NodeContext& context)
      : context_(context), node_(context.options->node) {}

  // The options' node, or that of the first trainer that fits; nullopt: none has come yet.
  std::optional<NodeId> node() const { return node_; }
  bool anyone_waits() const { return !waiting_.empty(); }
  // The trainer's first message: from now on it waits, or it was refused. INVALID_ARGUMENT: it is
  // not the first. `running`: the generation of `ranks` has not failed. Where trainers say the
  // node, a trainer of another node waits too if the former run is about to end.
  absl::Status OnInit(Trainer* trainer, ipc::InitMessage init, const LocalRanks& ranks,
                      bool running);
  // Admits the waiting trainers to `ranks` if the job is ready and no rank has left; returns them.
  // Else tells them the progress.
  std::vector<Trainer*> AdmitWaiting(LocalRanks* ranks);
  // A trainer that perhaps waits is gone.
  void OnTrainerGone(const Trainer* trainer);
  // Forgets the trainers of other nodes. Their connections have to end without a word: they come
  // again then, and the first of them says the node.
  void LetEarlyGo() { early_.clear(); }
  // Tells the scheduler how many trainers wait, while the job forms.
  void ReportWaiting() const;
  // Refuses trainers that have waited for --stall-timeout, and tells early trainers again that they
  // wait: no update of the scheduler may come meanwhile.
  void RefuseStalled(const LocalRanks& ranks);
  // The process ends: refuses all trainers from now on. `told`: ranks that were told otherwise.
  void RefuseAll(const absl::Status& why, uint32_t told);
  // Trainers that were refused, since RefuseAll if it was called; and ranks told by RefuseAll.
  uint32_t refused() const { return refused_; }

 private:
  struct Waiting {
    Trainer* trainer;
    uint32_t rank;  // in the job
    absl::Time since;
  };
  absl::Status Check(const ipc::InitMessage& init) const;
  absl::Status CheckPlace(const ipc::InitMessage& init) const;
  absl::Status CheckNode(uint32_t rank) const;
  NodeId NodeOf(uint32_t rank) const;
  uint32_t LocalRankOf(uint32_t rank) const;
  absl::Status CheckFree(uint32_t rank, const LocalRanks& ranks, bool running) const;
  bool IsEarly(const Waiting& waiting, const LocalRanks& ranks, bool running) const;
  bool RefuseStalled(std::deque<Waiting>* waiting, const std::string& progress);
  void RefuseEarly();
  void Refuse(Trainer* trainer, const absl::Status& why);
  void Admit(const Waiting& waiting, LocalRanks* ranks) const;
  void TellProgress(Trainer* trainer, const LocalRanks& ranks) const;
  std::string ProgressText(const LocalRanks& ranks) const;

  const NodeContext context_;
  std::optional<NodeId> node_;
  std::deque<Waiting> waiting_;
  std::deque<Waiting> early_;  // of other nodes; at most --local-size
  absl::Status refusing_;      // not OK: the process is about to end
  uint32_t refused_ = 0;
};

}  // namespace addend
