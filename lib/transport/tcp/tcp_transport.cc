// Connecting: looks up the name in a thread of its own (NameLookup), then tries each address for
// its part of the time limit. Nothing blocks the loop, which polls the lookup's answer.

#include "lib/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/transport/tcp/socket.h"

namespace addend {
namespace {
constexpr uint32_t kInFlightMax = 65536;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(5);
}  // namespace

// A connection attempt.
class TcpTransport::Connecting : public FdHandler {
 public:
  Connecting(TcpTransport* transport, Address peer, Sink* sink, ConnectFn connected)
      : transport_(transport),
        peer_(std::move(peer)),
        sink_(sink),
        connected_(std::move(connected)) {}
  ~Connecting() override {
    transport_->loop_->Cancel(timer_);
    transport_->loop_->Cancel(next_);
    if (fd_.valid()) transport_->loop_->Unwatch(fd_.get());
  }

  void Begin(absl::Duration timeout) {
    deadline_ = SteadyNow() + timeout;
    timer_ = transport_->loop_->RunAfter(timeout, [this, timeout] {
      const std::string waited = absl::FormatDuration(timeout);
      Decide(absl::DeadlineExceededError(
          addresses_.empty() ? absl::StrFormat("the name %s (port %d) has no address after %s",
                                               peer_.host, peer_.port, waited)
                             : absl::StrFormat("%s:%d did not accept a connection within %s",
                                               peer_.host, peer_.port, waited)));
    });
    if (auto numeric = tcp::ResolveNumeric(peer_)) {
      TryAll(*std::move(numeric));
    } else {
      LookUp();
    }
  }
  void OnReady(uint32_t) override { OnTried(tcp::ConnectResult(fd_.get(), peer_)); }

 private:
  void LookUp() {
    auto started = tcp::NameLookup::Start(peer_);
    if (!started.ok()) {
      next_ = transport_->loop_->RunAfter(kBetweenLooks, [this] { LookUp(); });
      return;
    }
    lookup_ = *std::move(started);
    AwaitAnswer();
  }
  void AwaitAnswer() {
    next_ = transport_->loop_->RunAfter(kBetweenLooks, [this] {
      auto answer = lookup_->Answer();
      if (!answer) return AwaitAnswer();
      lookup_ = nullptr;
      if (!answer->ok()) return Decide(answer->status());
      TryAll(**std::move(answer));
    });
  }
  void TryAll(tcp::SocketAddresses addresses) {
    addresses_ = std::move(addresses);
    TryNext();
  }
  // Each address gets an equal part of the remaining time, so that time is left for the last
  // address.
  void TryNext() {
    const size_t left = addresses_.size() - tried_;
    auto fd = tcp::StartConnect(addresses_[tried_++], peer_);
    absl::Status status = fd.status();
    if (fd.ok()) {
      fd_ = *std::move(fd);
      status = transport_->loop_->Watch(fd_.get(), EPOLLOUT, this);
    }
    const absl::Duration patience =
        status.ok() ? (deadline_ - SteadyNow()) / static_cast<int64_t>(left) : absl::ZeroDuration();
    if (status.ok() && left == 1) return;  // the overall timer ends it
    next_ = transport_->loop_->RunAfter(patience, [this, status] {
      OnTried(status.ok() ? absl::DeadlineExceededError("no answer") : status);
    });
  }
  void OnTried(const absl::Status& status) {
    if (status.ok() || tried_ == addresses_.size()) return Decide(status);
    transport_->loop_->Cancel(next_);
    if (fd_.valid()) transport_->loop_->Unwatch(fd_.get());
    fd_.Reset();
    TryNext();
  }
  // Runs the callback and deletes this object.
  void Decide(const absl::Status& status) {
    TcpTransport* const transport = transport_;
    if (fd_.valid()) transport->loop_->Unwatch(fd_.get());
    UniqueFd fd = std::move(fd_);
    ConnectFn connected = std::move(connected_);
    Sink* const sink = sink_;
    transport->connecting_.remove_if([this](const auto& other) { return other.get() == this; });
    if (!status.ok()) return connected(status);
    tcp::TcpLink* link = transport->NewLink(std::move(fd), LinkTurns::kMade);
    connected(link);
    link->Open(sink);
  }

  TcpTransport* const transport_;
  const Address peer_;
  Sink* const sink_;
  ConnectFn connected_;
  absl::Time deadline_;
  std::unique_ptr<tcp::NameLookup> lookup_;  // null: the addresses are known
  tcp::SocketAddresses addresses_;
  size_t tried_ = 0;
  UniqueFd fd_;  // of the address that is being tried
  uint64_t timer_ = 0;
  uint64_t next_ = 0;  // timer: the next poll of the lookup, or the next address
};

TcpTransport::TcpTransport(EventLoop* loop, TcpOptions options)
    : loop_(loop), options_(options), shared_(loop) {
  shared_.traits = {.name = "tcp", .reach = "ip", .in_flight_max = kInFlightMax};
}

TcpTransport::~TcpTransport() {
  listening_.reset();
  connecting_.clear();
  std::list<std::unique_ptr<tcp::TcpLink>> links;
  links.swap(links_);
  for (auto& link : links) link->Abandon(absl::CancelledError("this process is shutting down"));
}

absl::StatusOr<Address> TcpTransport::Listen(const Address& bind, AcceptFn accept) {
  Address bound = bind;
  ADDEND_ASSIGN_OR_RETURN(UniqueFd fd, tcp::ListenOn(bind, &bound.port));
  listening_ = std::make_unique<Acceptor>(
      loop_, std::move(fd),
      [this, accept = std::move(accept)](UniqueFd accepted) mutable {
        Adopt(std::move(accepted), accept);
      },
      /*make_room=*/nullptr);
  ADDEND_RETURN_IF_ERROR(listening_->Begin());
  return bound;
}

// A TCP link names the shard in its HELLO, so `shard` is not needed here.
void TcpTransport::Connect(const Address& peer, uint32_t, Sink* sink, absl::Duration timeout,
                           ConnectFn connected) {
  connecting_.push_back(std::make_unique<Connecting>(this, peer, sink, std::move(connected)));
  connecting_.back()->Begin(timeout);
}

void TcpTransport::Adopt(UniqueFd fd, AcceptFn& accept) {
  tcp::TcpLink* link = NewLink(std::move(fd), LinkTurns::kStrangers);
  link->Open(accept(link));
}

tcp::TcpLink* TcpTransport::NewLink(UniqueFd fd, FairTurns::GroupId group) {
  tcp::Tune(fd.get(), options_.unsent_bytes_max);
  std::string peer = tcp::PeerName(fd.get());
  links_.push_back(std::make_unique<tcp::TcpLink>(
      &shared_, std::move(fd), std::move(peer), group, [this](SocketLink* gone) {
        links_.remove_if([gone](const auto& other) { return other.get() == gone; });
      }));
  return links_.back().get();
}

std::shared_ptr<Transport> MakeTcpTransport(EventLoop* loop, TcpOptions options) {
  return std::make_shared<TcpTransport>(loop, options);
}

}  // namespace addend
