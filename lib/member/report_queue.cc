#include "lib/member/report_queue.h"

#include <utility>

namespace addend::internal {
namespace {

// Far below the limit of a message, even with names of 4096 bytes.
constexpr int kMaxBatch = 1000;

// Returns true if it appended the content of `next` to `last`.
bool Merge(Report* last, Report* next) {
  if (last->index() != next->index() || GenerationOf(*last) != GenerationOf(*next)) return false;
  if (auto* declare = std::get_if<v1::DeclareRequest>(last)) {
    if (declare->tensors_size() >= kMaxBatch) return false;
    auto& more = std::get<v1::DeclareRequest>(*next);
    for (auto& tensor : *more.mutable_tensors()) *declare->add_tensors() = std::move(tensor);
    declare->mutable_numbers()->MergeFrom(more.numbers());
    return true;
  }
  if (auto* undeclare = std::get_if<v1::UndeclareRequest>(last)) {
    if (undeclare->names_size() >= kMaxBatch) return false;
    for (auto& name : *std::get<v1::UndeclareRequest>(*next).mutable_names()) {
      *undeclare->add_names() = std::move(name);
    }
    return true;
  }
  return false;
}

}  // namespace

uint32_t GenerationOf(const Report& report) {
  return std::visit([](const auto& request) { return request.generation(); }, report);
}

void ReportQueue::Add(Report report) {
  MutexLock lock(&mu_);
  if (closed_ || (!reports_.empty() && Merge(&reports_.back(), &report))) return;
  reports_.push_back(std::move(report));
  changed_.NotifyAll();
}

void ReportQueue::AddFront(Report report) {
  MutexLock lock(&mu_);
  if (closed_) return;
  reports_.push_front(std::move(report));
  changed_.NotifyAll();
}

bool ReportQueue::Take(Report* report) {
  MutexLock lock(&mu_);
  while (!closed_ && reports_.empty()) changed_.Wait(&mu_);
  if (closed_) return false;
  *report = std::move(reports_.front());
  reports_.pop_front();
  sending_ = true;
  return true;
}

void ReportQueue::Done() {
  MutexLock lock(&mu_);
  sending_ = false;
  changed_.NotifyAll();
}

bool ReportQueue::WaitUntilEmpty(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&mu_);
  while (!closed_ && (sending_ || !reports_.empty())) {
    if (!changed_.WaitUntil(&mu_, deadline)) break;
  }
  return !sending_ && reports_.empty();
}

void ReportQueue::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace addend::internal
