// Looks names up on threads of their own: getaddrinfo() blocks as long as a name server does not
// answer, and a shard must not stand still for that.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
using SocketAddresses = std::vector<SocketAddress>;  // in the order to try them

// Concurrent lookups of the process, at most. Further lookups wait for an answer to an earlier
// lookup: a thread for each link of a large job would be too many.
inline constexpr size_t kMostLookups = 32;

// Blocks until the resolver answers. `passive`: an address to listen on. UNAVAILABLE: the name has
// no address.
absl::StatusOr<SocketAddresses> Resolve(const Address& address, bool passive);
// Parses a numeric address; nullopt: `address` is a name. Does not block.
std::optional<SocketAddresses> ResolveNumeric(const Address& address);

// The lookup of a name. The owner polls Answer(); destroying the object earlier does not wait for
// the answer.
class NameLookup {
 public:
  // RESOURCE_EXHAUSTED: kMostLookups are under way, or the machine has no thread left. The caller
  // retries a little later.
  static absl::StatusOr<std::unique_ptr<NameLookup>> Start(const Address& address);
  // nullopt: there is no answer yet. Does not block.
  std::optional<absl::StatusOr<SocketAddresses>> Answer();

 private:
  struct State;
  explicit NameLookup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

}  // namespace addend::tcp
