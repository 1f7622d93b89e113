#include "lib/options/privileges.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/log.h"

namespace addend {
namespace {

constexpr uint64_t Bit(int capability) { return uint64_t{1} << capability; }
constexpr uint64_t kKept =
    Bit(CAP_IPC_LOCK) | Bit(CAP_DAC_OVERRIDE) | Bit(CAP_DAC_READ_SEARCH) | Bit(CAP_FOWNER);

uint32_t HalfOf(uint64_t mask, int half) { return static_cast<uint32_t>(mask >> (32 * half)); }

}  // namespace

void DropPrivileges() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return;  // a kernel without capabilities
  for (int half = 0; half < _LINUX_CAPABILITY_U32S_3; ++half) {
    data[half].permitted &= HalfOf(kKept, half);
    data[half].effective &= HalfOf(kKept, half);
    data[half].inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, data) != 0) {
    spdlog::warn("this process keeps capabilities that it does not need: {}", std::strerror(errno));
  }
}

}  // namespace addend
