// The answers of servers to reservations.
#include "services/scheduler/reservations.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/placement.h"
#include "services/scheduler/replacement.h"

namespace addend {

void Reservations::TakeAnswer(const v1::AckReservationRequest& answer, Server* server) {
  const auto found = server->unanswered.find(answer.update_id());
  if (found == server->unanswered.end()) return;
  const std::vector<std::pair<JobId, TensorId>> asked = std::move(found->second);
  server->unanswered.erase(found);
  NoteFreeBytes(answer.free_bytes(), server);
  std::map<std::pair<JobId, TensorId>, std::string> refused;
  for (const v1::RefusedTensor& tensor : answer.refused()) {
    refused[{JobId(tensor.job_id()), TensorId(tensor.tensor_id())}] = tensor.reason();
  }
  for (const auto& key : asked) {
    Job* const job = jobs_.Find(key.first);
    DeclaredTensor* const tensor = job == nullptr ? nullptr : job->current.tensors.Find(key.second);
    if (tensor == nullptr) continue;
    const JobScope scope{*job, fleet_, changes_, jobs_.size()};
    Placement placement(scope);
    if (const auto why = refused.find(key); why != refused.end()) {
      // The servers with room for what it took over get it, and the rest of its partitions too.
      if (!server->colocated() && tensor->recovering.contains(server->id)) {
        Replacement(scope).LeaveServer(
            server, absl::StrFormat("it has no room for what it took over of tensor '%s': %s",
                                    tensor->descriptor.name(), why->second));
        continue;
      }
      if (!tensor->owned.contains(server->id)) continue;  // the job has left the server since
      placement.TakeRefusal(*server, tensor, why->second);
    }
    // A later update may make the server the owner of more of this tensor: then this is not yet the
    // answer. Only a planned tensor needs to know: Owes() searches all unanswered updates.
    const bool settled = tensor->stage != v1::AgreementRecord::PLANNED || !server->Owes(key);
    placement.TakeAnswer(*server, tensor, settled);
  }
  for (auto& [id, job] : jobs_) {
    if (!server->Owes(id)) job.current.change.awaited.erase(server->id);
  }
}

// The server's own count, less the reservations on their way to it.
void Reservations::NoteFreeBytes(uint64_t free_bytes, Server* server) {
  server->free_bytes = free_bytes;
  if (free_bytes == ServerLoad::kUnlimited) return;
  for (const auto& [update, tensors] : server->unanswered) {
    for (const auto& [job_id, tensor_id] : tensors) {
      Job* const job = jobs_.Find(job_id);
      const DeclaredTensor* const tensor =
          job == nullptr ? nullptr : job->current.tensors.Find(tensor_id);
      if (tensor == nullptr || !tensor->owned.contains(server->id)) continue;
      fleet_.Reserve(server->id, tensor->owned.at(server->id).accumulator_bytes);
    }
  }
}

}  // namespace addend
