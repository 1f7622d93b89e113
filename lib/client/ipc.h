// What a trainer and its agent say to each other over the Unix socket (SOCK_SEQPACKET: one message
// per packet).
//
//   trainer                       agent
//   kInit ----------------------->            who I am
//         <----------------------- kProgress  whom the job waits for (any number of times)
//         <----------------------- kInitReply rank, size; or the reason of refusal
//   kDeclare -------------------->            name, shape, dtype, op
//         <----------------------- kDeclared  tensor number and two descriptors: [0] this rank's
//         contribution segment,
//                                             [1] the result segment (two slots, mapped read-only)
//   kPush ----------------------->            the contribution segment holds round r
//         <----------------------- kResult    slot r & 1 of the result segment holds the result; or
//         the round's error
//   kUndeclare ------------------>            (no answer; the name is free for this rank at once)
//         <----------------------- kMembers   nodes have been lost, or wait to come back
//         <----------------------- kFailure   the job has failed; nothing follows
//   kShutdown ------------------->            a clean end; without it a closed socket means that
//   the trainer died
//
// Both ends are on one machine, so integers are in its byte order. A tensor number is the agent's
// own and belongs to this connection's generation; it is not the scheduler's TensorId. Segments
// start with the first element; a result slot starts at a multiple of 4096. Offsets never travel:
// both sides compute them from the declaration (SlotBytes).
#pragma once

#include <cstddef>
#include <cstdint>

namespace addend::ipc {

inline constexpr uint32_t kMagic = 0x43444441;  // "ADDC"
inline constexpr uint16_t kVersion = 2;
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxDims = 64;
inline constexpr size_t kMaxTextBytes = 4096;
inline constexpr size_t kMaxMessageBytes = 16384;

enum class Type : uint16_t {
  kInit = 1,
  kProgress = 2,
  kInitReply = 3,
  kDeclare = 4,
  kDeclared = 5,
  kPush = 6,
  kResult = 7,
  kUndeclare = 8,
  kFailure = 9,
  kShutdown = 10,
  kMembers = 11,
};

inline constexpr uint16_t kFlagEmpty = 1;  // kPush: this rank contributes nothing

// The fixed part of every message; fields that a type does not use are 0.
// kDeclare: followed by `dims` int64 dimensions, then `text_bytes` bytes of name.
// All others: followed by `text_bytes` bytes of text (kInit: the job's name or nothing; replies:
// the error or progress).
struct Message {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Type type{};
  uint32_t tensor = 0;  // agent's number of the tensor
  uint16_t flags = 0;
  uint8_t dtype = 0;     // addend::DType
  uint8_t op = 0;        // addend::ReduceOp
  uint64_t request = 0;  // kDeclare: any number, repeated in kDeclared
  uint64_t round = 0;    // kPush, kResult: from 1, without gaps
  int32_t priority = 0;
  uint32_t code = 0;  // replies: addend_code, 0 is success
  uint32_t dims = 0;
  uint32_t text_bytes = 0;
  int32_t rank = 0;  // kInit, kInitReply
  int32_t size = 0;  // kMembers: nodes that wait for the next generation
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t node_rank = 0;  // kInitReply
  int32_t num_nodes = 0;  // kMembers: those that take part in this one
};
static_assert(sizeof(Message) == 72);

// Distance of the two slots in a result segment, and the size of a contribution segment; never 0.
inline constexpr size_t SlotBytes(size_t tensor_bytes) {
  return tensor_bytes == 0 ? 4096 : (tensor_bytes + 4095) / 4096 * 4096;
}

}  // namespace addend::ipc
