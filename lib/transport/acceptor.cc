// Accepts one connection per event. Errors of a single connection are skipped; if the process is
// out of descriptors, the owner may close a socket, otherwise accepting pauses: the listening
// socket would stay readable and keep the loop busy.

#include "lib/transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(100);

// True for an error of the connection that was being accepted: the next connection may be accepted
// at once (man 2 accept).
bool IsOfOneConnection(int error) {
  switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case ENONET:
      return true;
    default:
      return false;
  }
}

}  // namespace

Acceptor::Acceptor(EventLoop* loop, UniqueFd fd, AcceptedFn accepted, MakeRoomFn make_room)
    : loop_(loop),
      fd_(std::move(fd)),
      accepted_(std::move(accepted)),
      make_room_(std::move(make_room)) {}

Acceptor::~Acceptor() {
  loop_->Cancel(timer_);
  loop_->Unwatch(fd_.get());
}

absl::Status Acceptor::Begin() { return loop_->Watch(fd_.get(), EPOLLIN, this); }

void Acceptor::OnReady(uint32_t) {
  UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return OnError(errno);
  accepted_(std::move(fd));
}

void Acceptor::OnError(int error) {
  if (IsOfOneConnection(error)) return;
  const bool descriptors = error == EMFILE || error == ENFILE;
  if (descriptors && make_room_ != nullptr && make_room_()) return;
  Pause(descriptors ? "out of file descriptors (raise ulimit -n)" : std::strerror(error));
}

void Acceptor::Pause(const std::string& why) {
  if (const auto others = pace_.Next(SteadyNow())) {
    spdlog::warn("not accepting connections for {}: {}{}", absl::FormatDuration(kPause), why,
                 *others);
  }
  loop_->Unwatch(fd_.get());
  timer_ = loop_->RunAfter(kPause, [this] { Resume(); });
}

void Acceptor::Resume() {
  timer_ = 0;
  if (const absl::Status status = Begin(); !status.ok()) Pause(Message(status));
}

}  // namespace addend
