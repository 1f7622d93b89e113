// The TCP connection over which the two ends of addend-verbs exchange addresses, start signals and
// results: one JSON value per line.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/verbs_settings.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"

namespace addend::verbs {

// Listens; port 0 lets the kernel choose a port.
absl::StatusOr<UniqueFd> Listen(const HostPort& address);
absl::StatusOr<uint16_t> PortOf(const UniqueFd& listener);

// Used by a single thread. The destructor closes the connection, which the other end sees as a
// failure.
class Channel {
 public:
  static absl::StatusOr<Channel> Accept(const UniqueFd& listener);
  // Retries for a few seconds, since the other end may still be starting.
  static absl::StatusOr<Channel> Connect(const HostPort& peer);

  absl::Status Send(const Json& message);
  // Sends the other end the reason of this end's failure; ignored if the other end is gone.
  void SendFailure(const absl::Status& why);
  // Returns the next message, or the other end's reason if it has failed.
  absl::StatusOr<Json> Receive();

  // Readable when PeerFailure() may have news.
  int fd() const { return fd_.get(); }
  // Checks without waiting whether the other end has failed, or is gone. A message stays for
  // Receive().
  absl::Status PeerFailure();

 private:
  explicit Channel(UniqueFd fd);
  absl::Status ReadSome(int flags);

  UniqueFd fd_;
  std::string received_;  // not yet returned by Receive()
};

}  // namespace addend::verbs
