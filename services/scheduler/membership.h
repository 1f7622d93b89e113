// The scheduler's decisions: its members, the jobs that run, their tensors, and the servers that
// sum them.
//
// Pure: no thread, socket, file or clock. Every event takes `now` and returns a Decision: records
// to store and updates to send, with the reasons for people. The owner serialises all calls, stores
// Decision::writes before it sends anything, and delivers the updates of a watch in their order.
//
// Objects, each of which uses only those below it:
//
//   Membership                      the events; owns all state
//     StatusView, Dispatch          read the state: a status; the updates and records of an event
//     Registration                  lets members in
//     Reunion                       takes in jobs of which there are no records
//     Roster                        ends members and jobs
//     StaleStore                    repairs a job whose store has lost writes
//     Stragglers, Encodings         give slow servers less | plan for the bytes on the wire
//     Handover | Replacement        new owners: a planned change | a loss
//     Declarations, Reservations    calls of nodes and servers about tensors
//     Placement                     plans, reserves, publishes
//     PartitionLedger, Lifecycle    owners of partitions | states of a generation
//     Leases                        leases and watches
//     Changes                       gathers an event's records and updates
//     Fleet, Jobs, Agreements       state: servers; jobs and nodes; a job's tensors
//     Numbering, NetworkMap         numbers for nodes that ask | the members' measurements
//
// Invariants
//
//  1. Updates that were sent follow from records that were stored. A scheduler that restores the
//     records and answers each Watch with a full update continues where the former scheduler ended.
//
//  2. A job's generation, plan version, tensor ids and server ids are never given twice, not even
//     by a scheduler whose store has lost its last writes: the members know them (stale_store.h).
//
//  3. A tensor's plan is published only when every server that it names has reserved its
//     partitions.
//
//  4. All nodes of a job are told the same plans, errors and states, except that an idle node sees
//     the job as FORMING: it waits for the next generation.
//
//  5. A member is lost at the end of its lease, or when a node cannot reach it and its connection
//     to this scheduler is gone too. A member in doubt registers again. A job's report about a
//     server moves that job alone.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/clock.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/decision.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/history.h"
#include "services/scheduler/job.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/leases.h"
#include "services/scheduler/network_file.h"
#include "services/scheduler/network_map.h"
#include "services/scheduler/numbering.h"
#include "services/scheduler/registration.h"
#include "services/scheduler/reunion.h"
#include "services/scheduler/status_view.h"
#include "services/scheduler/store/store.h"
#include "services/scheduler/tokens.h"

namespace addend {

class Membership {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
    bool react_to_stragglers = true;        // slow servers get less to sum
    std::string version;                    // of this build, for GetStatus
    std::string store;                      // name of the store, for GetStatus
    std::function<std::string()> make_key;  // 32 new bytes that nobody can guess
    absl::Duration token_lifetime = absl::Hours(1);
    // Other machines compare this clock with theirs, so it may jump; all else follows `now`.
    std::function<absl::Time()> token_clock = SteadyNow;
    std::string servers_digest;  // of the proof that CPU servers must bring; empty: no proof
    // Of the first job without a record: higher than the numbers that any former scheduler gave, so
    // that its jobs keep theirs.
    uint64_t first_job_number = 1;
    bool measure_network = true;
    NetworkPlaces network_places = {};  // before those that members tell
  };

  Membership(Options options, absl::Time now);

  // Takes in the records of an earlier scheduler; to be called first or not at all. All members get
  // two full leases: the first to find this scheduler. DATA_LOSS if a record cannot be read.
  absl::Status Restore(absl::Time now, std::span<const StoreEntry> entries);

  Outcome<absl::StatusOr<v1::RegisterServerResponse>> RegisterServer(
      absl::Time now, const v1::RegisterServerRequest& request);
  Outcome<absl::StatusOr<v1::RegisterNodeResponse>> RegisterNode(
      absl::Time now, const v1::RegisterNodeRequest& request);
  // NOT_FOUND, here and below: this member is not known (any more); it should register again.
  Outcome<absl::Status> Heartbeat(absl::Time now, const v1::HeartbeatRequest& request);
  // Of a node's heartbeat that was answered: renews the lease of the colocated server that it
  // speaks for. False: it speaks for no server, or the server is not known.
  bool TakeColocated(absl::Time now, const v1::HeartbeatRequest& request);
  // Of a heartbeat that was answered: takes the member's measurements of the network, and asks
  // for more.
  void ExchangeProbes(absl::Time now, const v1::HeartbeatRequest& request,
                      v1::HeartbeatResponse* response);
  Outcome<absl::StatusOr<v1::NumberNodeResponse>> NumberNode(absl::Time now,
                                                             const v1::NumberNodeRequest& request);
  Outcome<absl::Status> Drain(absl::Time now, const v1::DrainRequest& request);
  Outcome<absl::Status> Leave(absl::Time now, const v1::MemberId& member);

  // `watch` is new and not 0. The decision's first update for it is a full update. A former watch
  // of the same member ends.
  Outcome<absl::Status> WatchServer(absl::Time now, const v1::WatchRequest& request, WatchId watch);
  Outcome<absl::Status> WatchNode(absl::Time now, const v1::WatchRequest& request, WatchId watch);
  // The stream broke. Unknown watches are ignored: they were replaced or their member is gone.
  void WatchBroke(absl::Time now, WatchId watch);

  Outcome<absl::Status> AckReservation(absl::Time now, const v1::AckReservationRequest& request);
  // The reports of nodes. A report about a generation that is over is ignored: the node learns of
  // its end by its watch.
  Outcome<absl::Status> Declare(absl::Time now, const v1::DeclareRequest& request);
  Outcome<absl::Status> Undeclare(absl::Time now, const v1::UndeclareRequest& request);
  Outcome<absl::Status> ReportTrainers(absl::Time now, const v1::ReportTrainersRequest& request);
  Outcome<absl::Status> ReportIdle(absl::Time now, const v1::ReportIdleRequest& request);
  Outcome<absl::Status> ReportFailure(absl::Time now, const v1::ReportFailureRequest& request);
  // A node cannot reach a server any more. Its job moves away from a CPU server at once; for other
  // jobs the server is lost with its own connection, or at the end of its lease. A colocated server
  // is judged with its node. Ignored for servers that the node's job does not use.
  Outcome<absl::Status> ReportServerLost(absl::Time now,
                                         const v1::ReportServerLostRequest& request);
  Outcome<absl::Status> AckChange(absl::Time now, const v1::AckChangeRequest& request);

  // Ends the leases that are over. Returns when to call it next at the latest.
  Outcome<absl::Time> Tick(absl::Time now);

  v1::GetStatusResponse GetStatus(absl::Time now, const v1::GetStatusRequest& request) const;
  MembershipSummary Summary() const;
  NetworkFacts Network() const { return network_.Facts(); }

 private:
  JobScope ScopeOf(Job& job, Changes& changes) { return {job, fleet_, changes, jobs_.size()}; }
  Reunion::State StateOf(Changes* changes) { return {fleet_, jobs_, leases_, *changes}; }
  Server* FindServer(const v1::MemberId& member);
  Node* FindNode(absl::Time now, const v1::MemberId& member, Job** job);
  // An event: `body` takes Changes* and returns the answer.
  template <typename Body>
  auto Run(absl::Time now, const Body& body);
  // A report of a node: `body` takes Job*, Node*, Changes* if it is of the current generation.
  template <typename Request, typename Body>
  Outcome<absl::Status> Report(absl::Time now, const Request& request, const Body& body);
  Decision Finish(Changes* changes);
  void TellDrained(Changes* changes);
  absl::Status LeaveServerOrNode(const v1::MemberId& member, Changes* changes);
  absl::Status DrainServer(const v1::DrainRequest& request, Changes* changes);
  using Troubles = google::protobuf::RepeatedPtrField<v1::RelayTrouble>;
  bool TakeTroubles(const Server& server, const Troubles& troubles, Changes* changes);

  const Registration::Rules rules_;
  const StatusView::Process process_;
  const bool react_to_stragglers_;
  const Tokens tokens_;

  Fleet fleet_;
  Jobs jobs_;
  Leases leases_;
  Reunion reunion_;
  const NetworkPlaces places_;
  NetworkMap network_;
  Numbering numbering_;
  bool restored_ = false;  // no tick since
  History history_;
  UpdateNumbers numbers_;
};

}  // namespace addend
