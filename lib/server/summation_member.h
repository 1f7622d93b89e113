// A summation engine as a member of the scheduler: registers it, carries out the scheduler's
// reservations and releases, and reports its traffic. Used by addend-summation and, for the
// colocated server, by the agent.
#pragma once

#include <memory>
#include <set>

#include "absl/status/statusor.h"
#include "lib/base/ids.h"
#include "lib/base/mutex.h"
#include "lib/member/member.h"
#include "lib/summation/engine.h"
#include "proto/addend/v1/common.pb.h"

namespace addend {

v1::Traffic ToProto(const EngineStats& stats);

// Carries out the reservations and releases of an update. The caller fills in the member of the
// answer.
v1::AckReservationRequest CarryOut(const v1::ServerUpdate& update, Engine* engine);

// The servers that the engine's relays cannot reach.
void AddTroubles(const Engine& engine, v1::HeartbeatRequest* beat);

class SummationMember {
 public:
  // `request` lacks only the engine's own fields (incarnation, shards). `engine` must outlive the
  // member. Blocks as ServerMember::Join does.
  static absl::StatusOr<std::unique_ptr<SummationMember>> Join(const MemberOptions& options,
                                                               v1::RegisterServerRequest request,
                                                               Engine* engine);
  uint32_t server_id() const { return member_->server_id(); }
  // As ServerMember::Drain.
  bool Drain(absl::Duration timeout) {
    return member_->Drain(timeout, [this] { return SumsForSomebody(); });
  }
  void Leave() { member_->Leave(); }
  ServerMember* member() const { return member_.get(); }

 private:
  explicit SummationMember(Engine* engine) : engine_(engine) {}
  v1::AckReservationRequest OnUpdate(const v1::ServerUpdate& update);
  void Remember(const v1::ServerUpdate& update);
  void OnBeat(v1::HeartbeatRequest* beat) const;

  bool SumsForSomebody() const {
    MutexLock lock(&mu_);
    return !jobs_.empty();
  }

  Engine* const engine_;
  mutable Mutex mu_;
  std::set<JobId> jobs_ ABSL_GUARDED_BY(mu_);  // the jobs that may have partitions here
  std::unique_ptr<ServerMember> member_;
};

}  // namespace addend
