#include "lib/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/transport/tcp/socket.h"

namespace addend {
namespace {
constexpr uint32_t kInFlightMax = 65536;
}  // namespace

// A connect that is not decided yet.
class TcpTransport::Connecting : public FdHandler {
 public:
  Connecting(TcpTransport* transport, Address peer, Sink* sink, ConnectFn connected)
      : transport_(transport),
        peer_(std::move(peer)),
        sink_(sink),
        connected_(std::move(connected)) {}
  ~Connecting() override {
    transport_->loop_->Cancel(timer_);
    if (fd_.valid()) transport_->loop_->Unwatch(fd_.get());
  }

  void Begin(absl::Duration timeout) {
    timer_ = transport_->loop_->RunAfter(timeout, [this, timeout] {
      Decide(absl::DeadlineExceededError(
          absl::StrFormat("%s:%d did not accept a connection within %s", peer_.host, peer_.port,
                          absl::FormatDuration(timeout))));
    });
    auto fd = tcp::StartConnect(peer_);
    absl::Status status = fd.status();
    if (fd.ok()) {
      fd_ = *std::move(fd);
      status = transport_->loop_->Watch(fd_.get(), EPOLLOUT, this);
    }
    if (!status.ok()) transport_->loop_->Defer([this, status] { Decide(status); });
  }
  void OnReady(uint32_t) override { Decide(tcp::ConnectResult(fd_.get(), peer_)); }
  // Runs the callback and deletes itself.
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

 private:
  TcpTransport* const transport_;
  const Address peer_;
  Sink* const sink_;
  ConnectFn connected_;
  UniqueFd fd_;
  uint64_t timer_ = 0;
};

// A listening socket of this shard alone.
class TcpTransport::Listening : public FdHandler {
 public:
  Listening(TcpTransport* transport, UniqueFd fd, AcceptFn accept)
      : transport_(transport), fd_(std::move(fd)), accept_(std::move(accept)) {}
  ~Listening() override { transport_->loop_->Unwatch(fd_.get()); }
  absl::Status Begin() { return transport_->loop_->Watch(fd_.get(), EPOLLIN, this); }
  void OnReady(uint32_t) override {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) transport_->Adopt(std::move(fd), accept_);
  }

 private:
  TcpTransport* const transport_;
  const UniqueFd fd_;
  AcceptFn accept_;
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
  listening_ = std::make_unique<Listening>(this, std::move(fd), std::move(accept));
  ADDEND_RETURN_IF_ERROR(listening_->Begin());
  return bound;
}

// TCP links name the shard in their HELLO, so `shard` is not needed here.
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
  links_.push_back(
      std::make_unique<tcp::TcpLink>(&shared_, std::move(fd), group, [this](tcp::TcpLink* gone) {
        links_.remove_if([gone](const auto& other) { return other.get() == gone; });
      }));
  return links_.back().get();
}

std::shared_ptr<Transport> MakeTcpTransport(EventLoop* loop, TcpOptions options) {
  return std::make_shared<TcpTransport>(loop, options);
}

}  // namespace addend
