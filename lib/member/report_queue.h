// What a node has still to tell the scheduler. Internal to lib/member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "lib/base/mutex.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend::internal {

// One call to the scheduler; the member's identity is filled in when it is made.
using Report = std::variant<v1::DeclareRequest, v1::UndeclareRequest, v1::ReportTrainersRequest,
                            v1::ReportIdleRequest, v1::ReportFailureRequest,
                            v1::ReportServerLostRequest, v1::AckChangeRequest>;

uint32_t GenerationOf(const Report& report);

// First in, first out; any number of threads put reports in, one takes them out. A declaration
// joins the report at the end of the queue if that is one of declarations of the same generation
// and not too large; so do undeclarations.
class ReportQueue {
 public:
  void Add(Report report);
  // Goes before all others: it takes the place of the report just taken.
  void AddFront(Report report);
  // Waits for a report and takes it; false after Close. The report counts as waiting until Done.
  bool Take(Report* report);
  void Done();
  // True when nothing waits and nothing is being sent; false if that took until `deadline`, or
  // after Close.
  bool WaitUntilEmpty(std::chrono::steady_clock::time_point deadline);
  // Wakes all who wait. What is queued is dropped.
  void Close();

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend::internal
