// The version of this build, as CMakeLists.txt states it, and the versions of every protocol that
// it speaks. All code takes protocol versions from here; docs/releasing.md has the table of
// releases, and tests/data/protocol the bytes of every version.
//
// Standard library only: libaddend.so includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace addend {

std::string_view Version();

// The versions of a protocol that a binary speaks, from the oldest to the newest.
struct VersionRange {
  uint32_t oldest = 0;
  uint32_t newest = 0;  // at least `oldest`

  constexpr bool Contains(uint32_t version) const { return oldest <= version && version <= newest; }
  friend constexpr bool operator==(const VersionRange&, const VersionRange&) = default;
};

// The versions that both ends speak; they use the newest. nullopt: no version in common.
constexpr std::optional<VersionRange> Common(const VersionRange& a, const VersionRange& b) {
  const VersionRange common{std::max(a.oldest, b.oldest), std::min(a.newest, b.newest)};
  return common.oldest <= common.newest ? std::optional(common) : std::nullopt;
}

// "version 5", "versions 4 to 6".
std::string Describe(const VersionRange& range);

namespace protocol {

// proto/addend/v1, between members and scheduler. A member outside the range is refused when it
// registers (exit status 66). A field that an older member does not send has a default meaning; the
// number grows only where that is impossible.
inline constexpr VersionRange kControl{1, 1};
// lib/wire/frame.h, between agents and summation servers. The scheduler plans only over servers
// that all nodes of a job can speak with; HELLO settles the version of a link.
inline constexpr VersionRange kFrame{5, 7};
// lib/transport/rdma/message.h, the conversation around frames over RDMA. Ends without a common
// version connect over TCP.
inline constexpr VersionRange kRdma{1, 1};
// lib/transport/shm/record.h, the conversation around frames in shared memory. The name of a
// server's socket has the newest version: a peer of another version does not find it, and takes the
// network.
inline constexpr VersionRange kSharedMemory{1, 1};
// lib/client/ipc.h, between trainers and their agent.
inline constexpr VersionRange kTrainers{4, 4};
// proto/addend/v1/scheduler_store.proto and services/scheduler/records.h, the state that a
// scheduler leaves to its successor. A newer store is refused.
inline constexpr VersionRange kStore{1, 1};

// The ranges of members that send no ranges, because they are older than the ranges.
inline constexpr VersionRange kFrameUnnamed{5, 5};
inline constexpr VersionRange kRdmaUnnamed{1, 1};

}  // namespace protocol

// The version that a member sends when it registers.
inline constexpr uint32_t kProtocolVersion = 1;
static_assert(kProtocolVersion == protocol::kControl.newest);

}  // namespace addend
