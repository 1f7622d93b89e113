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
//
// With tensors of a GPU also these. What touches the GPU is done in the trainer, in the order that
// the agent says, which is the same for all ranks of a group:
//   kDevice ---------------------->           once: the PCI bus id of my GPU
//         <----------------------- kGroup     once all local ranks have said so: with whom I
//         aggregate
//   kGroupId <-------------------> kGroupId   what the first of a group made for NCCL, to the
//   others kAttach ---------------------->           this tensor's contribution of the group
//         <----------------------- kAttached  its descriptor: the first member's segment
//   kPush with kFlagDevice ------->           the data is on the GPU as soon as a stream gets there
//         <----------------------- kContribute  aggregate it, and copy your part to the segment
//   kStaged ---------------------->           my part of the first `bytes` is there
//         <----------------------- kArrived   `bytes` of the result from `offset` on are there;
//         kResult follows the last
//   kDeviceFailed ---------------->           the GPU cannot be used any more: the reason
// Where a NIC reads contributions from the GPU (kGroup with kFlagDirect, to the rank whose GPU has
// all of them), instead of from the segment:
//   kDirect ---------------------->           this tensor's contribution lies in this dma-buf
//         <----------------------- kDirect    no NIC reads it: offer no more
//         <----------------------- kContribute with kFlagDirect: put it there
//         <----------------------- kFetch     copy `bytes` of it from `offset` on to the segment
//   kFetched --------------------->           they are there
//
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
inline constexpr uint16_t kVersion = 4;
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
  kDevice = 12,
  kGroup = 13,
  kGroupId = 14,
  kAttach = 15,
  kAttached = 16,
  kContribute = 17,
  kStaged = 18,
  kArrived = 19,
  kDeviceFailed = 20,
  kDirect = 21,
  kFetch = 22,
  kFetched = 23,
};

inline constexpr uint16_t kFlagEmpty = 1;    // kPush: this rank contributes nothing
inline constexpr uint16_t kFlagDevice = 2;   // kPush: from a GPU
inline constexpr uint16_t kFlagScatter = 4;  // kGroup: as Group::scatter (pieces.h)
inline constexpr uint16_t kFlagOrdered = 8;  // kGroup: sums are in the order of the members
// kGroup: a NIC reads what this rank's GPU contributes. kContribute: it does so in this round.
inline constexpr uint16_t kFlagDirect = 16;
// Smaller tensors always go through host memory: their copies cost less than the bookkeeping.
inline constexpr size_t kDirectBytesMin = 1 << 20;

// The fixed part of every message; fields that a type does not use are 0.
// kDeclare: followed by `dims` int64 dimensions, then `text_bytes` bytes of name.
// All others: followed by `text_bytes` bytes of text (kInit: the job's name or nothing; replies:
// the error or progress; kGroup: the members that are roots in turn, a uint32 each).
struct Message {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Type type{};
  uint32_t tensor = 0;  // agent's number of the tensor
  uint16_t flags = 0;
  uint8_t dtype = 0;     // addend::DType
  uint8_t op = 0;        // addend::ReduceOp
  uint64_t request = 0;  // kDeclare: any number, repeated in kDeclared; kPush: nanoseconds since
                         // the trainer's call, which copying in took; kContribute: a bit for
                         // every member of the group that has data
  uint64_t round = 0;    // kPush, kResult and what is between them: from 1, without gaps
  uint64_t offset = 0;   // kArrived, kFetch, kFetched
  uint64_t bytes = 0;    // kStaged, kArrived, kFetch, kFetched; kDirect: of the dma-buf
  int32_t priority = 0;
  uint32_t code = 0;  // replies: addend_code, 0 is success
  uint32_t dims = 0;
  uint32_t text_bytes = 0;
  int32_t rank = 0;        // kInit, kInitReply
  int32_t size = 0;        // kMembers: nodes that wait for the next generation
  int32_t local_rank = 0;  // kGroup: this rank's number in the group
  int32_t local_size = 0;  // kGroup: its members
  int32_t node_rank = 0;   // kInitReply
  int32_t num_nodes = 0;   // kMembers: those that take part in this one
};
static_assert(sizeof(Message) == 88);

// Distance of the two slots in a result segment, and the size of a contribution segment; never 0.
inline constexpr size_t SlotBytes(size_t tensor_bytes) {
  return tensor_bytes == 0 ? 4096 : (tensor_bytes + 4095) / 4096 * 4096;
}

}  // namespace addend::ipc
