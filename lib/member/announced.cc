#include "lib/member/announced.h"

#include <algorithm>
#include <utility>

namespace addend::internal {
namespace {

// Ignores lower plan versions than before, which a scheduler announces after it has lost its latest
// records. Returns false if the update belongs to a former generation.
bool NoteVersion(uint32_t generation, uint64_t plan_version, v1::Announced* highest) {
  if (generation < highest->generation()) return false;
  if (generation > highest->generation()) {
    const uint64_t job = highest->job_id();
    highest->Clear();
    highest->set_job_id(job);
    highest->set_generation(generation);
  }
  highest->set_plan_version(std::max(highest->plan_version(), plan_version));
  return true;
}

}  // namespace

void NodeAnnounced::Note(const v1::NodeUpdate& update) {
  if (!NoteVersion(update.generation(), update.plan_version(), &highest_)) return;
  for (const v1::TensorPlan& plan : update.tensors()) {
    highest_.set_tensor_id(std::max(highest_.tensor_id(), plan.tensor_id()));
  }
  if (update.state() == v1::READY) highest_.set_began(true);
}

void NodeAnnounced::AddTo(v1::WatchRequest* watch) const {
  if (highest_.generation() == 0) return;
  v1::Announced* const told = watch->add_announced();
  *told = highest_;
  told->set_job_id(watch->member().job_id());
}

void ServerAnnounced::Note(const v1::ServerUpdate& update) {
  std::map<JobId, v1::Announced> former;
  if (update.full()) former.swap(highest_);
  for (const v1::JobReservation& job : update.jobs()) {
    const JobId id(job.job_id());
    if (job.release_all()) {
      highest_.erase(id);
      continue;
    }
    if (const auto known = former.extract(id); !known.empty()) highest_[id] = known.mapped();
    v1::Announced& highest = highest_[id];
    highest.set_job_id(job.job_id());
    NoteVersion(job.generation(), job.plan_version(), &highest);
    highest.set_key(job.key());
  }
}

void ServerAnnounced::AddTo(v1::WatchRequest* watch) const {
  for (const auto& [id, highest] : highest_) {
    v1::Announced* const told = watch->add_announced();
    *told = highest;
    told->clear_key();
  }
}

void ServerAnnounced::AddTo(v1::RegisterServerRequest* request) const {
  for (const auto& [id, highest] : highest_) *request->add_announced() = highest;
}

}  // namespace addend::internal
