// Descriptors that pass from process to process with a message over a local socket (SCM_RIGHTS).
//
// Standard library and Linux only: libaddend.so includes it.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <span>

namespace addend {

// The room of a message for at most `kMost` descriptors. Outlives the system call.
template <size_t kMost>
class PassedFiles {
 public:
  // `message` passes these descriptors on: 1 to kMost, which stay open in this process.
  void Send(std::span<const int> files, msghdr* message) {
    message->msg_control = room_;
    message->msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(rights), files.data(), files.size_bytes());
  }

  // `message` is to be received with descriptors. The kernel closes those that find no room, and
  // says so by MSG_CTRUNC.
  void Receive(msghdr* message) {
    message->msg_control = room_;
    message->msg_controllen = sizeof(room_);
  }

  // Calls take(int) for each descriptor that has come with `message`, which the callee owns.
  template <typename TakeFn>
  static void Take(msghdr* message, TakeFn take) {
    for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr;
         part = CMSG_NXTHDR(message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int file = -1;
        std::memcpy(&file, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        take(file);
      }
    }
  }

 private:
  alignas(cmsghdr) char room_[CMSG_SPACE(kMost * sizeof(int))] = {};
};

}  // namespace addend
