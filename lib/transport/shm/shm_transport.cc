// Connecting to a local socket succeeds or fails at once. Everything else is the links'.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/version.h"
#include "lib/memory/mappings.h"
#include "lib/transport/acceptor.h"
#include "lib/transport/shm/factory.h"
#include "lib/transport/shm/shm_link.h"

namespace addend {
namespace {

constexpr uint32_t kInFlightMax = 65536;
// Makes up for the time until the peer has copied.
constexpr size_t kWindow = 4 << 20;
constexpr int kBacklog = 1024;
// Accepted links whose peers have proved nothing yet. More are closed.
constexpr ptrdiff_t kMostStrangers = 256;

// Of the socket of this name: in the folder, or an abstract address.
absl::StatusOr<socklen_t> SocketAddress(const std::string& folder, const std::string& name,
                                        sockaddr_un* address) {
  *address = {.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = folder.empty() ? std::string(1, '\0') + name : folder + "/" + name;
  if (path.size() >= sizeof(address->sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shared-memory=%s is too long a name for a folder of sockets", folder));
  }
  std::memcpy(address->sun_path, path.data(), path.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
}

std::string PeerName(int fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return "a local process";
  return absl::StrFormat("process %d of this machine", peer.pid);
}

class ShmTransport;

// Mappings end on any thread, also after the transport.
class Unmapped final : public UnmapObserver {
 public:
  Unmapped(std::shared_ptr<Mailbox> mailbox, ShmTransport* transport)
      : mailbox_(std::move(mailbox)), transport_(std::make_shared<ShmTransport*>(transport)) {}
  void BeforeUnmap(const Mapping& mapping) override;
  // On the loop's thread.
  void End() { *transport_ = nullptr; }
  bool ended() const { return *transport_ == nullptr; }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<ShmTransport*> transport_;  // read and cleared on the loop
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(EventLoop* loop, std::string folder)
      : loop_(loop),
        folder_(std::move(folder)),
        shared_(loop),
        unmapped_(std::make_shared<Unmapped>(loop->mailbox(), this)) {
    shared_.traits = {.name = "shm",
                      .reach = "machine",
                      .in_flight_max = kInFlightMax,
                      .window_bytes = kWindow,
                      .same_machine = true};
    ObserveUnmapping(unmapped_);
  }
  ~ShmTransport() override;

  const Traits& traits() const override { return shared_.traits; }
  const TransportStats& stats() const override { return shared_.stats; }
  absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) override;
  void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
               ConnectFn connected) override;
  void Forget(uint64_t mapping) {
    for (auto& link : links_) link->Forget(mapping);
  }

 private:
  absl::StatusOr<shm::ShmLink*> Dial(const std::string& name);
  shm::ShmLink* NewLink(UniqueFd fd, FairTurns::GroupId group);
  void OnAccepted(UniqueFd fd);

  EventLoop* const loop_;
  const std::string folder_;
  shm::ShmLink::Shared shared_;
  const std::shared_ptr<Unmapped> unmapped_;
  std::list<std::unique_ptr<shm::ShmLink>> links_;
  AcceptFn accept_;
  std::string path_;  // of the listening socket; empty: an abstract address, or none
  std::unique_ptr<Acceptor> listening_;
};

void Unmapped::BeforeUnmap(const Mapping& mapping) {
  if (mapping.file < 0) return;
  mailbox_->PostSurely([transport = transport_, number = mapping.number] {
    if (*transport != nullptr) (*transport)->Forget(number);
  });
}

ShmTransport::~ShmTransport() {
  unmapped_->End();
  listening_.reset();
  if (!path_.empty()) ::unlink(path_.c_str());
  std::list<std::unique_ptr<shm::ShmLink>> links;
  links.swap(links_);
  for (auto& link : links) link->Abandon(absl::CancelledError("this process is shutting down"));
}

absl::StatusOr<Address> ShmTransport::Listen(const Address& bind, AcceptFn accept) {
  sockaddr_un address;
  ADDEND_ASSIGN_OR_RETURN(const socklen_t bytes, SocketAddress(folder_, bind.host, &address));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot listen on the local socket %s%s%s (--shared-memory): %s", folder_,
                        folder_.empty() ? "" : "/", bind.host, std::strerror(errno)));
  }
  if (!folder_.empty()) path_ = folder_ + "/" + bind.host;
  accept_ = std::move(accept);
  listening_ = std::make_unique<Acceptor>(
      loop_, std::move(fd), [this](UniqueFd accepted) { OnAccepted(std::move(accepted)); },
      /*make_room=*/nullptr);
  ADDEND_RETURN_IF_ERROR(listening_->Begin());
  return bind;
}

void ShmTransport::OnAccepted(UniqueFd fd) {
  const ptrdiff_t strangers = std::count_if(links_.begin(), links_.end(),
                                            [](const auto& link) { return link->is_stranger(); });
  if (strangers >= kMostStrangers) return;
  shm::ShmLink* const link = NewLink(std::move(fd), LinkTurns::kStrangers);
  link->Open(accept_(link));
}

absl::StatusOr<shm::ShmLink*> ShmTransport::Dial(const std::string& name) {
  sockaddr_un address;
  ADDEND_ASSIGN_OR_RETURN(const socklen_t bytes, SocketAddress(folder_, name, &address));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
    return absl::UnavailableError(absl::StrFormat("no process of this machine listens on %s: %s",
                                                  name, std::strerror(errno)));
  }
  ADDEND_ASSIGN_OR_RETURN(shm::LinkPage page, shm::LinkPage::Create());
  shm::ShmLink* const link = NewLink(std::move(fd), LinkTurns::kMade);
  link->SetPage(std::move(page));
  return link;
}

void ShmTransport::Connect(const Address& peer, uint32_t, Sink* sink, absl::Duration,
                           ConnectFn connected) {
  absl::StatusOr<shm::ShmLink*> link = Dial(peer.host);
  loop_->Defer([unmapped = unmapped_, link, sink, connected = std::move(connected)]() mutable {
    if (unmapped->ended()) return;
    if (!link.ok()) return connected(link.status());
    connected(*link);
    (*link)->Open(sink);
  });
}

shm::ShmLink* ShmTransport::NewLink(UniqueFd fd, FairTurns::GroupId group) {
  std::string peer = PeerName(fd.get());
  links_.push_back(std::make_unique<shm::ShmLink>(
      &shared_, std::move(fd), std::move(peer), group, [this](SocketLink* gone) {
        links_.remove_if([gone](const auto& other) { return other.get() == gone; });
      }));
  return links_.back().get();
}

}  // namespace

std::shared_ptr<Transport> MakeSharedMemoryTransport(EventLoop* loop, std::string folder) {
  return std::make_shared<ShmTransport>(loop, std::move(folder));
}

std::string SharedMemoryName(Incarnation server, uint32_t shard) {
  return absl::StrFormat("addend-shm%d-%016x-%d", protocol::kSharedMemory.newest, server.value(),
                         shard);
}

}  // namespace addend
