#include "lib/transport/tcp/name_lookup.h"

#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/mutex.h"

namespace addend::tcp {
namespace {

absl::StatusOr<SocketAddresses> Ask(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrFormat("cannot resolve '%s': %s", address.host, ::gai_strerror(error)));
  }
  SocketAddresses addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& next = addresses.emplace_back();
    next.length = std::min<socklen_t>(one->ai_addrlen, sizeof(next.storage));
    std::memcpy(&next.storage, one->ai_addr, next.length);
  }
  ::freeaddrinfo(found);
  return addresses;
}

}  // namespace

struct NameLookup::State {
  Mutex mu;
  std::optional<absl::StatusOr<SocketAddresses>> answer ABSL_GUARDED_BY(mu);

  bool Answered() {
    MutexLock lock(&mu);
    return answer.has_value();
  }
};

namespace {

// The threads of all lookups, including lookups whose owner is gone. Start() joins the threads that
// have answered.
template <typename State>
class Threads {
 public:
  absl::Status Start(std::shared_ptr<State> state, const Address& address) {
    MutexLock lock(&mu_);
    JoinAnswered();
    if (threads_.size() >= kMostLookups) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "cannot resolve '%s': the name server has yet to answer for %d other names", address.host,
          threads_.size()));
    }
    const auto run = [state, address] {
      auto answer = Resolve(address, /*passive=*/false);
      MutexLock lock(&state->mu);
      state->answer = std::move(answer);
    };
    try {
      threads_.emplace_back(std::move(state), std::thread(run));
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("cannot resolve '%s': no thread for it: %s", address.host, error.what()));
    }
    return absl::OkStatus();
  }

 private:
  void JoinAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto it = threads_.begin(); it != threads_.end();) {
      if (!it->first->Answered()) {
        ++it;
        continue;
      }
      it->second.join();
      it = threads_.erase(it);
    }
  }

  Mutex mu_;
  std::list<std::pair<std::shared_ptr<State>, std::thread>> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<SocketAddresses> Resolve(const Address& address, bool passive) {
  return Ask(address, passive ? AI_PASSIVE : 0);
}

std::optional<SocketAddresses> ResolveNumeric(const Address& address) {
  auto addresses = Ask(address, AI_NUMERICHOST);
  if (!addresses.ok()) return std::nullopt;
  return *std::move(addresses);
}

absl::StatusOr<std::unique_ptr<NameLookup>> NameLookup::Start(const Address& address) {
  // Never destroyed: a name without an answer must not hold up the end of the process.
  static auto& threads = *new Threads<State>;
  auto state = std::make_shared<State>();
  const absl::Status status = threads.Start(state, address);
  if (!status.ok()) return status;
  return std::unique_ptr<NameLookup>(new NameLookup(std::move(state)));
}

std::optional<absl::StatusOr<SocketAddresses>> NameLookup::Answer() {
  MutexLock lock(&state_->mu);
  return state_->answer;
}

}  // namespace addend::tcp
