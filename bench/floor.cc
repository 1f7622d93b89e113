#include "bench/floor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/process_cpu.h"
#include "bench/reduce.h"
#include "bench/report.h"
#include "bench/tcp_pair.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr size_t kCallBytes = 1 << 20;
constexpr size_t kInCache = kCallBytes, kInMemory = 256 * kCallBytes;
constexpr uint64_t kWireBytes = uint64_t{1} << 30;
constexpr int kRepeats = 5;

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrFormat("%s: %s", what, std::strerror(errno)));
}

// Sends `from_bytes` of memory repeatedly, and receives into `to_bytes` of memory.
absl::StatusOr<double> WireSecondsPerByte(size_t from_bytes, size_t to_bytes) {
  ADDEND_ASSIGN_OR_RETURN(const auto ends, ConnectTcpPair());
  std::vector<char> from(from_bytes, 1), to(to_bytes, 1);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double before = ProcessCpuSeconds(::getpid()).value_or(0);
    std::thread reader([&] {
      uint64_t received = 0;
      ssize_t size = 1;
      while (received < kWireBytes && size > 0) {
        const size_t place = received % to_bytes;
        size =
            ::recv(ends.second.get(), to.data() + place, std::min(kCallBytes, to_bytes - place), 0);
        received += static_cast<uint64_t>(size > 0 ? size : 0);
      }
    });
    uint64_t sent = 0;
    ssize_t size = 1;
    while (sent < kWireBytes && size > 0) {
      const size_t place = sent % from_bytes;
      size = ::send(ends.first.get(), from.data() + place, std::min(kCallBytes, from_bytes - place),
                    0);
      sent += static_cast<uint64_t>(size > 0 ? size : 0);
    }
    if (size <= 0) ::shutdown(ends.first.get(), SHUT_WR);
    reader.join();
    if (size <= 0) return Failed("sending over 127.0.0.1");
    seconds.push_back(ProcessCpuSeconds(::getpid()).value_or(0) - before);
  }
  return Percentile(seconds, 0.5) / static_cast<double>(kWireBytes);
}

}  // namespace

absl::Status RunFloor(const BenchOptions& options) {
  ADDEND_ASSIGN_OR_RETURN(const double wire, WireSecondsPerByte(kInCache, kInCache));
  ADDEND_ASSIGN_OR_RETURN(const double from_memory, WireSecondsPerByte(kInMemory, kInCache));
  ADDEND_ASSIGN_OR_RETURN(const double to_memory, WireSecondsPerByte(kInCache, kInMemory));
  const double sum = SecondsPerSummedByte(options.nodes);
  if (options.json) {
    nlohmann::ordered_json object = {{"inputs", options.nodes},
                                     {"wire_s_per_byte", wire},
                                     {"wire_from_memory_s_per_byte", from_memory},
                                     {"wire_to_memory_s_per_byte", to_memory},
                                     {"sum_s_per_byte", sum}};
    std::puts(object.dump(2).c_str());
  } else {
    std::printf(
        "wire: %.3f ns per byte, both ends (%.3f out of memory, %.3f into memory); sum of %u "
        "contributions in cache: %.3f ns per byte\n",
        wire * 1e9, from_memory * 1e9, to_memory * 1e9, options.nodes, sum * 1e9);
  }
  return absl::OkStatus();
}

}  // namespace addend
