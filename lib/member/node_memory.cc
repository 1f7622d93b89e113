#include "lib/member/node_memory.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "lib/rpc/request_bounds.h"

namespace addend::internal {
namespace {

// Whether other nodes may not have heard of a removal matters for the last updates only.
constexpr size_t kMostRemoved = 4096;
// Of a request, for the recollection; the rest of a registration is small.
constexpr size_t kMostRecollectionBytes = kMaxRequestBytes / 16 * 15;

}  // namespace

void NodeMemory::BeginGeneration(uint32_t generation) {
  told_.Clear();
  told_.set_generation(generation);
  plans_.clear();
  undeclared_.clear();
  removed_.clear();
  failure_.reset();
}

void NodeMemory::Note(const v1::NodeUpdate& update) {
  const MutexLock lock(&mu_);
  if (update.generation() < told_.generation()) return;
  if (update.generation() > told_.generation()) BeginGeneration(update.generation());
  if (update.state() == v1::FAILED) failure_.reset();
  told_.set_state(update.state());
  told_.set_reason(update.reason());
  told_.set_exit_code(update.exit_code());
  told_.set_failed_kind(update.failed_kind());
  told_.set_plan_version(std::max(told_.plan_version(), update.plan_version()));
  *told_.mutable_lost_nodes() = update.lost_nodes();
  if (update.full()) {
    // A tensor that other nodes may need is absent while its owners recover it.
    std::set<uint32_t> gone = undeclared_;
    for (const v1::TensorPlan& plan : update.tensors()) gone.erase(plan.tensor_id());
    for (const uint32_t id : gone) NoteRemoved(id);
  }
  for (const v1::TensorPlan& plan : update.tensors()) NotePlan(plan);
  for (const uint32_t id : update.removed()) NoteRemoved(id);
}

// A plan that comes again after the tensor was taken for removed is of a tensor that was being
// recovered. The node has undeclared it all the same.
void NodeMemory::NotePlan(const v1::TensorPlan& plan) {
  const uint32_t tensor = plan.tensor_id();
  const bool is_new = plans_.insert_or_assign(tensor, plan).second;
  if (is_new && std::erase(removed_, tensor) > 0) undeclared_.insert(tensor);
}

void NodeMemory::NoteRemoved(uint32_t tensor) {
  plans_.erase(tensor);
  undeclared_.erase(tensor);
  removed_.push_back(tensor);
  if (removed_.size() > kMostRemoved) removed_.pop_front();
}

void NodeMemory::Note(const Report& report) {
  const MutexLock lock(&mu_);
  const auto is_current = [generation = told_.generation()](const auto& request) {
    return request.generation() == generation;
  };
  if (const auto* undeclare = std::get_if<v1::UndeclareRequest>(&report)) {
    if (!is_current(*undeclare)) return;
    for (const std::string& name : undeclare->names()) NoteUndeclared(name);
  } else if (const auto* idle = std::get_if<v1::ReportIdleRequest>(&report)) {
    if (is_current(*idle)) told_.set_idle(true);
  } else if (const auto* failure = std::get_if<v1::ReportFailureRequest>(&report)) {
    if (is_current(*failure)) failure_ = *failure;
  }
}

// The tensor of the name that the node has not undeclared; none if its declaration was refused.
void NodeMemory::NoteUndeclared(const std::string& name) {
  for (const auto& [id, plan] : plans_) {
    if (undeclared_.contains(id) || plan.tensor().name() != name) continue;
    undeclared_.insert(id);
    return;
  }
}

void NodeMemory::AddTo(v1::RegisterNodeRequest* request) const {
  const MutexLock lock(&mu_);
  if (told_.generation() == 0) return;
  v1::Recollection& all = *request->mutable_recollection();
  all = told_;
  for (const auto& [id, plan] : plans_) *all.add_tensors() = plan;
  all.mutable_undeclared()->Add(undeclared_.begin(), undeclared_.end());
  all.mutable_removed()->Add(removed_.begin(), removed_.end());
  ShortenSentences(request);
  if (all.ByteSizeLong() > kMostRecollectionBytes) request->clear_recollection();
}

std::optional<v1::ReportFailureRequest> NodeMemory::Unconfirmed() const {
  const MutexLock lock(&mu_);
  return failure_;
}

}  // namespace addend::internal
