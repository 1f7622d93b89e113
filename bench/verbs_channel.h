// The TCP connection over which the two ends of addend-verbs tell each other where to write to,
// when to start, and what came of it: one JSON value per line.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/verbs_settings.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"

namespace addend::verbs {

// Listens; port 0 lets the kernel choose.
absl::StatusOr<UniqueFd> Listen(const HostPort& address);
absl::StatusOr<uint16_t> PortOf(const UniqueFd& listener);

// Used by one thread. It ends when it is destroyed, which the other end sees as a failure.
class Channel {
 public:
  static absl::StatusOr<Channel> Accept(const UniqueFd& listener);
  // Tries for a few seconds, since the other end may be about to start.
  static absl::StatusOr<Channel> Connect(const HostPort& peer);

  absl::Status Send(const Json& message);
  // Tells the other end why this one gives up; unheard if it is gone.
  void SendFailure(const absl::Status& why);
  // The next message. If the other end gives up: its reason.
  absl::StatusOr<Json> Receive();

  // Readable when there may be something for PeerFailure().
  int fd() const { return fd_.get(); }
  // Without waiting: whether the other end has given up, or is gone. A message stays for Receive().
  absl::Status PeerFailure();

 private:
  explicit Channel(UniqueFd fd);
  absl::Status ReadSome(int flags);

  UniqueFd fd_;
  std::string received_;  // not yet taken
};

}  // namespace addend::verbs
