// The changes of an event: records to store and updates to send, gathered so that each member gets
// at most one update and each record is written once. Dispatch makes the Decision of them.
//
// Lives as long as the event. Only numbers and messages: the state is read when the event is over.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/decision.h"
#include "services/scheduler/history.h"

namespace addend {

// Numbers of updates and of announced changes. They begin with the clock, above all numbers of an
// earlier scheduler.
class UpdateNumbers {
 public:
  explicit UpdateNumbers(absl::Time began)
      : next_(static_cast<uint64_t>(absl::ToUnixMicros(began))) {}
  uint64_t Next() { return next_++; }

 private:
  uint64_t next_;
};

class Changes {
 public:
  using NodeKey = std::pair<JobId, NodeId>;
  using TensorKey = std::pair<JobId, uint64_t>;  // with the number of the agreement

  struct Records {
    bool ids = false;
    std::set<ServerId> servers;
    std::set<JobId> jobs;
    std::set<NodeKey> nodes;
    std::set<TensorKey> agreements;
    std::set<TensorKey> plans;
    std::vector<std::string> deleted;  // keys
  };
  struct Updates {
    std::map<ServerId, v1::ServerUpdate> servers;
    // Reservations that the server has to answer, by job and tensor.
    std::map<ServerId, std::vector<std::pair<JobId, TensorId>>> reserved;
    std::map<JobId, v1::NodeUpdate> broadcasts;
    std::map<NodeKey, v1::NodeUpdate> singles;  // to a single node, after the broadcast
    std::set<NodeKey> full;                     // nodes that get the whole state instead of either
    // Broadcasts that tell of the servers that have come and gone, and singles that list all.
    std::set<JobId> with_servers;
    std::set<NodeKey> with_all_servers;
  };

  // `history` and `numbers` outlive the event.
  Changes(absl::Time now, History* history, UpdateNumbers* numbers)
      : now_(now), history_(*history), numbers_(*numbers) {}
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  absl::Time now() const { return now_; }
  uint64_t NextNumber() { return numbers_.Next(); }

  // A sentence for the log.
  void Say(std::string sentence) { reasons_.push_back(std::move(sentence)); }
  // A sentence for the log and for a status. `job`: its name, "" if it concerns all.
  void Note(std::string_view kind, std::string_view job, std::string text);
  // As Note, for an incident that a member has reported. Returns the text as noted.
  std::string NoteIncident(absl::Time when, const v1::Incident& incident, std::string_view job);
  void CountPlan(PlanReason reason) { ++history_.plan_changes[reason]; }
  MembersLost& lost() { return history_.lost; }
  void CountPlanned() { ++planned_; }

  // Records to write, and records to delete.
  void StoreIds() { records_.ids = true; }
  void Store(ServerId server) { records_.servers.insert(server); }
  void Store(JobId job) { records_.jobs.insert(job); }
  void Store(JobId job, NodeId node) { records_.nodes.insert({job, node}); }
  void StoreAgreement(JobId job, uint64_t agreement) {
    records_.agreements.insert({job, agreement});
  }
  void StorePlan(JobId job, uint64_t agreement) { records_.plans.insert({job, agreement}); }
  void Delete(ServerId server);
  void Delete(JobId job);
  void Delete(JobId job, NodeId node);
  void DeleteAgreement(JobId job, uint64_t agreement);
  void DeletePlan(JobId job, uint64_t agreement);

  void EndWatch(WatchId watch, absl::Status reason);
  // The update of all nodes of the job, and of a single node.
  v1::NodeUpdate& Broadcast(JobId job) { return updates_.broadcasts[job]; }
  v1::NodeUpdate& Single(JobId job, NodeId node) { return updates_.singles[{job, node}]; }
  // That update also tells of the servers of the plan, as it is when the event is over.
  void TellServers(JobId job) {
    Broadcast(job);
    updates_.with_servers.insert(job);
  }
  void TellServers(JobId job, NodeId node) {
    Single(job, node);
    updates_.with_all_servers.insert({job, node});
  }
  // The node, or the server, gets the whole state.
  void SendAll(JobId job, NodeId node) { updates_.full.insert({job, node}); }
  void SendAll(ServerId server) { updates_.servers[server].set_full(true); }
  void SendDrained(ServerId server) { updates_.servers[server].set_drained(true); }

  // The entry for new reservations of the job.
  v1::JobReservation* ReservationFor(ServerId server, JobId job);
  // The entry for releases, to which the caller adds a release. It stands before all reservations,
  // so that its memory is free again for the reservations of the same update. No event releases its
  // own reservations: a tensor is taken back only when its servers have answered, or are gone.
  v1::JobReservation* ReleasesFor(ServerId server, JobId job);
  // The server has to forget the job. `generation`: 0 if the job goes on without the server.
  void ReleaseJob(ServerId server, JobId job, Generation generation);
  // The server has to answer for this tensor.
  void ExpectAnswer(ServerId server, JobId job, TensorId tensor) {
    updates_.reserved[server].emplace_back(job, tensor);
  }
  // Drops all that was to be sent about the job's tensors: its generation is over.
  void DropUpdatesOf(JobId job);

  const Records& records() const { return records_; }
  Updates& updates() { return updates_; }
  // The decision without records and updates: ended watches, sentences, counters. To be called
  // once.
  Decision TakeDecision();

 private:
  const absl::Time now_;
  History& history_;
  UpdateNumbers& numbers_;
  Records records_;
  Updates updates_;
  std::vector<WatchEnd> ended_;
  std::vector<std::string> reasons_;
  uint64_t planned_ = 0;
};

}  // namespace addend
