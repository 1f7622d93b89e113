// The summation servers of a generation and the links to them: connects, reconnects, chooses shared
// memory, TCP or RDMA, and tells the scheduler of servers that this node cannot reach. Belongs to
// the agent's core thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/link/server_link.h"
#include "services/worker_agent/generation_state.h"
#include "services/worker_agent/node_context.h"
#include "services/worker_agent/tensor_table.h"

namespace addend {

class Servers {
 public:
  using LinkKey = std::pair<uint32_t, uint32_t>;  // server, shard
  using Links = std::map<LinkKey, std::unique_ptr<ServerLink>>;

  // All pointers outlive this. `events`: of the links.
  Servers(const NodeContext& context, const TensorTable* tensors, GenerationState* state,
          ServerEvents* events)
      : context_(context), tensors_(tensors), state_(state), events_(events) {}

  // Replaces the servers of the plan. Closes links to servers that left the plan: their frames must
  // not arrive after those of the new owners.
  void Learn(const google::protobuf::RepeatedPtrField<v1::ServerInfo>& servers);
  // The same, where only some have changed.
  void LearnChanges(const google::protobuf::RepeatedPtrField<v1::ServerInfo>& servers,
                    const google::protobuf::RepeatedField<uint32_t>& gone);
  // The link to the shard, which is made, or reconnected, if it is not there. INTERNAL: the plan
  // does not name the server. FAILED_PRECONDITION: this machine cannot reach it.
  absl::StatusOr<ServerLink*> LinkTo(uint32_t server, uint32_t shard);
  bool knows(ServerId server) const { return servers().contains(server.value()); }

  // The link is open. False: another process has the server's address; it was reported lost.
  bool OnOpen(ServerLink* link, Incarnation incarnation);
  // The link could not be made, or is lost: reconnects, tries another transport, or reports the
  // server lost. A broken link does not mean that the server died; a disagreement with it is final,
  // and fails the generation. The scheduler alone judges the colocated server of another node: it
  // lives as long as its node.
  void OnLost(ServerLink* link, const absl::Status& why);
  // Connects the lost link again, at once or after a moment, if the plan still has its server.
  void ReconnectLater(const ServerLink& link, bool at_once);

  // A scheduler that was started again does not know of the reports that stand.
  void ReportAgain() const;

  // Partitions have new owners, or tensors were planned: the links' loads change.
  void OnOwnersChanged() {
    loads_changed_ = true;
    owners_changed_at_ = context_.clock->Now();
  }
  // Limits the bytes in flight on each link by its part of the node's load in a round of all
  // tensors: contributions to servers elsewhere, and the results of the colocated server. Does
  // nothing if the loads have not changed. `nodes`: that take part.
  void LimitInFlight(uint32_t nodes);
  // Once a second. Closes open links to servers that own nothing of this node's tensors, a minute
  // after the owners have changed: the links are made again when they are needed.
  void CloseUnused();

  void CloseAll(const absl::Status& why);
  // Closes the links, and keeps them in the directory until they are closed.
  void Retire(const absl::Status& why);

  const Links& links() const { return links_; }
  bool is_colocated(ServerId server) const { return server == context_.directory->colocated; }

 private:
  enum class Use : uint8_t { kNone, kNextOwner, kOwner };
  const std::map<uint32_t, v1::ServerInfo>& servers() const { return context_.directory->servers; }
  void Replace(std::map<uint32_t, v1::ServerInfo> now);
  ServerLink* Make(const LinkKey& key, const std::string& where);
  // FAILED_PRECONDITION: the server advertises a loopback address of another machine.
  absl::Status CheckReachable(const std::string& where, const v1::DataEndpoint& endpoint) const;
  // FAILED_PRECONDITION: no version of the frame protocol in common.
  static absl::Status SettleVersion(ServerLink* link, const v1::ServerInfo& server);
  // Through the best transport of both ends. FAILED_PRECONDITION: there is no such transport.
  absl::Status Connect(ServerLink* link, const v1::ServerInfo& server, absl::Duration timeout);
  void Reconnect(const LinkKey& key);
  bool FallBackFromSharedMemory(ServerLink* link, const absl::Status& why);
  bool FallBackToTcp(ServerLink* link, const absl::Status& why);
  void ReportLost(ServerLink* link, const absl::Status& why);
  void WithdrawReport(ServerId server);
  Use UseOf(const ServerLink* link) const;

  const NodeContext context_;
  const TensorTable* const tensors_;
  GenerationState* const state_;
  ServerEvents* const events_;
  Links links_;
  std::vector<std::unique_ptr<ServerLink>> replaced_;  // by links to servers that have returned
  std::map<uint32_t, std::string> rdma_failures_;      // by server: the first reason
  std::set<uint32_t> without_shared_memory_;           // servers whose links failed there
  std::map<uint32_t, std::string> routes_;             // by server: the last, as it was logged
  std::map<uint32_t, absl::Status> reported_lost_;     // by server: why
  bool loads_changed_ = false;
  absl::Time owners_changed_at_ = absl::InfiniteFuture();  // and unused links were not closed since
};

}  // namespace addend
