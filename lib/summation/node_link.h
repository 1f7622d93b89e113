// A summation server's end of a link: the handshake with the Doorkeeper, and then the way of the
// node's frames to its job. Belongs to a shard's thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "lib/auth/link_proof.h"
#include "lib/summation/doorkeeper.h"
#include "lib/summation/job_shard.h"
#include "lib/summation/node_port.h"
#include "lib/transport/transport.h"

namespace addend {

class NodeLink final : public Sink {
 public:
  // The link is closed; the callee destroys it.
  using ClosedFn = absl::AnyInvocable<void(NodeLink*)>;

  // `doorkeeper`, `link` and `traits` outlive this object.
  NodeLink(Doorkeeper* doorkeeper, Link* link, const Traits* traits, const SendLimits& limits,
           ClosedFn on_closed)
      : doorkeeper_(doorkeeper),
        link_(link),
        since_(doorkeeper->now()),
        port_(link, traits, limits),
        on_closed_(std::move(on_closed)) {}

  // Closes the link if its handshake takes too long.
  void CheckPatience();
  // The node is connected to its job.
  bool is_member() const { return port_.is_member(); }
  const std::string& transport() const { return port_.transport(); }
  size_t queued() const { return port_.queued(); }
  // The time that sending took since the last call.
  absl::Duration TakeSendingTime() {
    const absl::Duration now = link_->sending_time();
    return now - std::exchange(sending_, now);
  }

  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status OnFrame(const FrameHeader& header, Payload payload) override;
  void OnClosed(absl::Status why) override;

 private:
  absl::Status CheckExpected(const FrameHeader& header) const;
  absl::Status CheckSender(const FrameHeader& header) const;
  absl::Status OnHello(const FrameHeader& header, Bytes opening);
  absl::Status OnProof(const FrameHeader& header, Bytes proof);
  absl::Status Welcome(const auth::Secret& token);
  absl::Status OnPing(const FrameHeader& header);

  Doorkeeper* const doorkeeper_;
  Link* const link_;
  const absl::Time since_;                // the time of the connection
  bool in_handshake_ = true;              // and the link has not been told to close
  std::optional<auth::LinkTerms> terms_;  // from the HELLO on
  uint16_t version_ = 0;                  // of the frames, from the HELLO on
  std::array<std::byte, auth::kOpeningBytes> handshake_room_;
  absl::Duration sending_;  // at the last TakeSendingTime()
  auth::Secret proof_{};    // of this server, lent to its HELLO
  NodePort port_;
  JobShard* job_ = nullptr;  // valid while the port is a member
  ClosedFn on_closed_;
};

}  // namespace addend
