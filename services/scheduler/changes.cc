// The changes that an event gathers.
#include "services/scheduler/changes.h"

#include <algorithm>

#include "services/scheduler/record_keys.h"

namespace addend {
namespace {

bool IsRelease(const v1::JobReservation& reservation) {
  return reservation.release_tensors_size() + reservation.release_partitions_size() > 0;
}

}  // namespace

void Changes::Note(std::string_view kind, std::string_view job, std::string text) {
  history_.log.Add(now_, kind, job, text);
  Say(std::move(text));
}

std::string Changes::NoteIncident(absl::Time when, const v1::Incident& incident,
                                  std::string_view job) {
  history_.log.AddIncident(when, incident, job);
  std::string text = history_.log.events().back().text();
  Say(text);
  return text;
}

void Changes::Delete(ServerId server) {
  updates_.servers.erase(server);
  updates_.reserved.erase(server);
  records_.servers.erase(server);
  records_.deleted.push_back(records::ServerKey(server.value()));
}

void Changes::Delete(JobId job) {
  records_.jobs.erase(job);
  updates_.broadcasts.erase(job);
  records_.deleted.push_back(records::JobKey(job.value()));
}

void Changes::Delete(JobId job, NodeId node) {
  records_.nodes.erase({job, node});
  updates_.full.erase({job, node});
  records_.deleted.push_back(records::NodeKey(job.value(), node.value()));
}

void Changes::DeleteAgreement(JobId job, uint64_t agreement) {
  records_.agreements.erase({job, agreement});
  records_.deleted.push_back(records::AgreementKey(job.value(), agreement));
}

void Changes::DeletePlan(JobId job, uint64_t agreement) {
  records_.plans.erase({job, agreement});
  records_.deleted.push_back(records::PlanKey(job.value(), agreement));
}

void Changes::EndWatch(WatchId watch, absl::Status reason) {
  ended_.push_back({watch, std::move(reason)});
}

v1::JobReservation* Changes::ReservationFor(ServerId server, JobId job) {
  v1::ServerUpdate& update = updates_.servers[server];
  for (v1::JobReservation& reservation : *update.mutable_jobs()) {
    if (reservation.job_id() == job.value() && !IsRelease(reservation)) return &reservation;
  }
  v1::JobReservation* const reservation = update.add_jobs();
  reservation->set_job_id(job.value());
  return reservation;
}

v1::JobReservation* Changes::ReleasesFor(ServerId server, JobId job) {
  v1::ServerUpdate& update = updates_.servers[server];
  for (v1::JobReservation& reservation : *update.mutable_jobs()) {
    if (reservation.job_id() == job.value() && IsRelease(reservation)) return &reservation;
  }
  update.add_jobs()->set_job_id(job.value());
  for (int i = update.jobs_size() - 1; i > 0; --i) update.mutable_jobs()->SwapElements(i, i - 1);
  return update.mutable_jobs(0);
}

void Changes::ReleaseJob(ServerId server, JobId job, Generation generation) {
  v1::JobReservation* const release = ReservationFor(server, job);
  release->Clear();
  release->set_job_id(job.value());
  release->set_generation(generation.value());
  release->set_release_all(true);
}

void Changes::DropUpdatesOf(JobId job) {
  for (auto& [id, update] : updates_.servers) {
    auto* const jobs = update.mutable_jobs();
    jobs->erase(std::remove_if(jobs->begin(), jobs->end(),
                               [job](const v1::JobReservation& reservation) {
                                 return reservation.job_id() == job.value();
                               }),
                jobs->end());
  }
  updates_.broadcasts.erase(job);
  updates_.with_servers.erase(job);
}

Decision Changes::TakeDecision() {
  Decision decision;
  decision.ended = std::move(ended_);
  decision.reasons = std::move(reasons_);
  decision.planned = planned_;
  return decision;
}

}  // namespace addend
