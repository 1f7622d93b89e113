// Decides which links a shard admits. A peer claims to be a node of a job (HELLO), and proves that
// it has the token of that node (PROOF); until then the claim is unauthenticated, and nothing is
// allocated for the peer. Counts and logs every refusal. Belongs to the shard's thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/base/clock.h"
#include "lib/base/line_pace.h"
#include "lib/summation/job_shard.h"
#include "lib/summation/node_port.h"
#include "lib/summation/server_identity.h"
#include "lib/summation/shard_stats.h"
#include "lib/wire/frame.h"

namespace addend {

class Doorkeeper {
 public:
  // The time from the first byte of a HELLO to the last byte of the proof, at most.
  static constexpr absl::Duration kHandshakePatience = absl::Seconds(10);

  // Null if the shard does not know the job.
  using FindJobFn = std::function<JobShard*(JobId)>;
  struct Clocks {
    std::function<absl::Time()> steady = SteadyNow;
    std::function<absl::Time()> cluster = ClusterNow;  // of the scheduler, which sets expiries
  };
  // `server` and `stats` outlive this object.
  Doorkeeper(const ServerIdentity* server, ShardStats* stats, FindJobFn find_job)
      : Doorkeeper(server, stats, std::move(find_job), Clocks()) {}
  Doorkeeper(const ServerIdentity* server, ShardStats* stats, FindJobFn find_job, Clocks clocks)
      : server_(server),
        stats_(stats),
        find_job_(std::move(find_job)),
        clocks_(std::move(clocks)) {}

  // The terms that a peer with this HELLO has to prove. INVALID_ARGUMENT: not an opening;
  // UNAUTHENTICATED: the job is not known.
  absl::StatusOr<auth::LinkTerms> TermsFor(const std::string& peer, const FrameHeader& hello,
                                           Bytes opening);
  // The token with which the peer has made the proof. UNAUTHENTICATED: the job is not known, or the
  // token is wrong or has expired.
  absl::StatusOr<auth::Secret> TokenOf(const std::string& peer, const auth::LinkTerms& terms,
                                       Bytes proof);
  // Connects a peer that has proved the claim to its job. PERMISSION_DENIED: the node takes no part
  // in the job's generation.
  absl::StatusOr<JobShard*> Admit(NodePort* node, const auth::LinkTerms& terms);
  // A frame that came before the handshake was complete. UNAUTHENTICATED.
  absl::Status RefuseUnproved(const std::string& peer);
  // OK unless the handshake of a link that came at `since` takes too long.
  absl::Status CheckPatience(const std::string& peer, absl::Time since);
  absl::Time now() const { return clocks_.steady(); }
  // Makes this server the sender of the frame.
  void Sign(FrameHeader* header) const { server_->Sign(header); }

 private:
  // Counts and logs that the peer is refused, before the peer is told. Returns `why`.
  absl::Status Refuse(const std::string& peer, Refusal reason, absl::Status why);
  absl::Status RefuseUnknown(const std::string& peer, JobId job);

  const ServerIdentity* const server_;
  ShardStats* const stats_;
  const FindJobFn find_job_;
  const Clocks clocks_;
  LinePace refusals_;  // of the log
};

}  // namespace addend
