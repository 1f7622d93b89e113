// The conversation of two processes of the same machine over a local stream socket: records, some
// of which are followed by a frame or come with a descriptor (SCM_RIGHTS). A payload that lies in
// memory that can be lent stays there: the frame names its place, and the receiver copies it.
//
//   connecting end                 listening end
//   kPage, descriptor ------------>               first, once: the page of the link (link_page.h)
//   kSegment, descriptor <-------->               this memory may be named from now on
//   kFrame <---------------------->               a frame; its payload follows
//   kLent <----------------------->               a frame; its payload lies in a segment
//   kRelease <-------------------->               the oldest `value` lent payloads are copied
//   kForget <--------------------->               this memory is not named any more
//
// Integers are in the machine's byte order. The version of the conversation is in the name of the
// listening socket (factory.h).
#pragma once

#include <cstdint>

namespace addend::shm {

enum class Kind : uint32_t {
  kPage = 1,
  kSegment = 2,
  kForget = 3,
  kFrame = 4,
  kLent = 5,
  kRelease = 6,
};

struct Record {
  Kind kind{};
  uint32_t segment = 0;  // the sender's number of a segment: kSegment, kForget, kLent
  // kSegment: its bytes; kLent: the payload's first byte in the segment; kRelease: payloads.
  uint64_t value = 0;
  uint64_t guard = 0;  // kSegment: the position of the guard (segment.h); 0: it has none
};
static_assert(sizeof(Record) == 24);

// The segments of a direction of a link. Payloads in further memory travel through the socket.
inline constexpr size_t kMostSegments = 1024;
// A smaller payload travels through the socket.
inline constexpr size_t kLeastLent = 16 << 10;

}  // namespace addend::shm
