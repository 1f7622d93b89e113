// A node's knowledge of its job's generation: the scheduler's updates, and those of its own reports
// that it does not repeat (an agent repeats declarations without a plan). A scheduler that has lost
// its store goes on from the memories of all nodes (v1::Recollection,
// services/scheduler/reunion.h).
//
// Costs the node a second copy of its tensors' plans. Any thread: updates come in the watch thread,
// reports leave in the sender's, and any thread of the session may register.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "lib/base/mutex.h"
#include "lib/member/report.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend::internal {

class NodeMemory {
 public:
  // The scheduler has sent this update.
  void Note(const v1::NodeUpdate& update);
  // The report is about to be sent. Once for each report, however often it is sent.
  void Note(const Report& report);
  // Fills in the recollection; leaves it out if it does not fit into a request.
  void AddTo(v1::RegisterNodeRequest* request) const;
  // A failure of the generation that the node has reported and that no update has confirmed.
  std::optional<v1::ReportFailureRequest> Unconfirmed() const;

 private:
  void BeginGeneration(uint32_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePlan(const v1::TensorPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteRemoved(uint32_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteUndeclared(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  // All but the lists below.
  v1::Recollection told_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, v1::TensorPlan> plans_ ABSL_GUARDED_BY(mu_);  // by tensor id
  std::set<uint32_t> undeclared_ ABSL_GUARDED_BY(mu_);             // of them
  std::deque<uint32_t> removed_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::ReportFailureRequest> failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend::internal
