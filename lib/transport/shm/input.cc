#include "lib/transport/shm/input.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "lib/base/passed_files.h"

namespace addend::shm {
namespace {

constexpr size_t kFilesAtOnce = 16;

}  // namespace

absl::StatusOr<UniqueFd> Input::TakeFile() {
  if (files_.empty()) return absl::InvalidArgumentError("a shared segment without its file");
  UniqueFd file = std::move(files_.front());
  files_.erase(files_.begin());
  return file;
}

absl::StatusOr<Input::Received> Input::Read(int socket, MutableBytes room) {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  iovec vectors[] = {{room.data(), room.size()}, {buffer_.data() + end_, buffer_.size() - end_}};
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = 2;
  PassedFiles<kFilesAtOnce> passed;
  passed.Receive(&message);
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && errno == EINTR) return Received{.more = true};
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received{};
  if (got <= 0) {
    return absl::UnavailableError(got == 0 ? "was closed"
                                           : "broke: " + std::string(std::strerror(errno)));
  }
  const size_t files = files_.size();
  passed.Take(&message, [this](int file) { files_.emplace_back(file); });
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError("no file descriptor is left for shared memory");
  }
  if (files_.size() > kFilesAtOnce) {
    return absl::InvalidArgumentError("more file descriptors than shared segments");
  }
  Received received{.bytes = static_cast<size_t>(got)};
  received.into_room = std::min(received.bytes, room.size());
  // A read ends behind a descriptor, too.
  received.more = files_.size() > files || received.bytes == room.size() + (buffer_.size() - end_);
  end_ += received.bytes - received.into_room;
  return received;
}

}  // namespace addend::shm
