// The listening port that all shards of a server share.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/line_pace.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/transport/acceptor.h"
#include "lib/transport/tcp/socket.h"
#include "lib/transport/tcp/tcp_transport.h"

namespace addend {
namespace {

// The largest number of sockets whose first header has not come. Above it the oldest socket is
// closed: an honest client sends its header at once.
constexpr size_t kPendingMax = 1024;

class TcpPort final : public DataPort {
 public:
  TcpPort(UniqueFd fd, uint16_t port, std::vector<ShardEnd> shards, TcpOptions options)
      : fd_(std::move(fd)),
        port_(port),
        shards_(std::make_shared<std::vector<ShardEnd>>(std::move(shards))),
        options_(options) {}

  ~TcpPort() override {
    if (loop_ == nullptr) return;
    loop_->Run([this] {
      pending_.clear();
      acceptor_.reset();
    });
    loop_->Stop();
  }

  absl::Status Begin() {
    ADDEND_ASSIGN_OR_RETURN(loop_, EventLoop::Start("accept"));
    absl::Status status;
    loop_->Run([&] {
      acceptor_ = std::make_unique<Acceptor>(
          loop_.get(), std::move(fd_), [this](UniqueFd fd) { OnAccepted(std::move(fd)); },
          [this] { return EndOldest(); });
      status = acceptor_->Begin();
    });
    return status;
  }

  uint16_t port() const override { return port_; }

 private:
  // A socket whose first header has not come yet.
  struct Pending : public FdHandler {
    Pending(TcpPort* port, UniqueFd fd) : port(port), fd(std::move(fd)) {}
    ~Pending() override {
      port->loop_->Cancel(timer);
      if (fd.valid()) port->loop_->Unwatch(fd.get());
    }
    void OnReady(uint32_t) override { port->Peek(this); }
    TcpPort* const port;
    UniqueFd fd;
    uint64_t number = 0;
    uint64_t timer = 0;
  };

  void OnAccepted(UniqueFd fd) {
    if (pending_.size() >= kPendingMax) pending_.erase(pending_.begin());
    // The socket wakes the loop when a whole header is there, not for every byte.
    const int low = kFrameHeaderBytes;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    auto pending = std::make_unique<Pending>(this, std::move(fd));
    if (!loop_->Watch(pending->fd.get(), EPOLLIN | EPOLLRDHUP, pending.get()).ok()) return;
    const uint64_t number = pending->number = ++last_number_;
    pending->timer =
        loop_->RunAfter(options_.hello_timeout, [this, number] { pending_.erase(number); });
    pending_[number] = std::move(pending);
  }

  // Closes the socket that has been silent for longest, to free its descriptor.
  bool EndOldest() {
    if (pending_.empty()) return false;
    pending_.erase(pending_.begin());
    return true;
  }

  // Reads the HELLO without consuming it: the shard that it names reads it again from the socket.
  void Peek(Pending* pending) {
    const int fd_number = pending->fd.get();
    EncodedHeader bytes;
    const ssize_t got = ::recv(fd_number, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < static_cast<ssize_t>(bytes.size())) {
      pending_.erase(pending->number);  // closed, or ended within the header
      return;
    }
    // A header that cannot be decoded goes to shard 0, which closes the link with the reason.
    auto header = DecodeHeader(bytes);
    const uint64_t wanted = header.ok() ? header->partition.value() : 0;
    const size_t shard = wanted < shards_->size() ? wanted : 0;
    loop_->Unwatch(fd_number);
    const int one = 1;
    ::setsockopt(fd_number, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    auto fd = std::make_shared<UniqueFd>(std::move(pending->fd));
    pending_.erase(pending->number);
    const absl::Status posted = (*shards_)[shard].loop->Post([fd, shards = shards_, shard] {
      ShardEnd& end = (*shards)[shard];
      static_cast<TcpTransport*>(end.transport.get())->Adopt(std::move(*fd), end.accept);
    });
    // The socket closes, and the client connects again.
    if (absl::IsResourceExhausted(posted)) {
      if (const auto others = refused_.Next(SteadyNow())) {
        spdlog::warn("closed a new connection: {}{}", Message(posted), *others);
      }
    }
  }

  UniqueFd fd_;  // until the acceptor takes it
  const uint16_t port_;
  // Shared with the tasks that hand a socket over.
  const std::shared_ptr<std::vector<ShardEnd>> shards_;
  const TcpOptions options_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Acceptor> acceptor_;
  LinePace refused_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Pending>> pending_;  // in the order of arrival
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataPort>> OpenTcpPort(const Address& bind,
                                                      std::vector<ShardEnd> shards,
                                                      TcpOptions options) {
  uint16_t port = 0;
  ADDEND_ASSIGN_OR_RETURN(UniqueFd fd, tcp::ListenOn(bind, &port));
  auto opened = std::make_unique<TcpPort>(std::move(fd), port, std::move(shards), options);
  ADDEND_RETURN_IF_ERROR(opened->Begin());
  return std::unique_ptr<DataPort>(std::move(opened));
}

}  // namespace addend
