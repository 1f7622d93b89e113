// The reports that a node has not sent to the scheduler yet. Internal to lib/member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "lib/base/mutex.h"
#include "lib/member/report.h"

namespace addend::internal {

uint32_t GenerationOf(const Report& report);

// First in, first out; any number of threads add reports, a single thread takes them. A declaration
// is merged into the last report in the queue if that report has declarations of the same
// generation and is not too large; so are undeclarations.
class ReportQueue {
 public:
  void Add(Report report);
  // Adds a report before all others, in place of the report just taken.
  void AddFront(Report report);
  // Waits for a report and takes it; false after Close. The report counts as waiting until Done.
  bool Take(Report* report);
  void Done();
  // Returns true when the queue is empty and no report is being sent; false at `deadline` or after
  // Close.
  bool WaitUntilEmpty(std::chrono::steady_clock::time_point deadline);
  // Wakes all waiting threads and drops the queued reports.
  void Close();

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace addend::internal
