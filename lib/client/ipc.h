// The protocol between a trainer and its agent over the Unix socket (SOCK_SEQPACKET: one message
// per packet).
//
//   trainer                       agent
//   kInit ----------------------->            this rank's identity
//         <----------------------- kProgress  the ranks for which the job waits (repeatedly)
//         <----------------------- kInitReply rank, size; or the reason of refusal
//   kDeclare -------------------->            name, shape, dtype, op
//   kDeclareAmong -------------->             the same, for some ranks of the job
//         <----------------------- kDeclared  tensor number and two descriptors:
//                                             [0] this rank's contribution segment,
//                                             [1] the result segment (two slots, mapped read-only)
//   kPush ----------------------->            the contribution segment holds round r
//         <----------------------- kResult    slot r & 1 of the result segment holds the result;
//                                             or the round's error
//   kUndeclare ------------------>            (no answer; the rank may use the name again at once)
//         <----------------------- kMembers   nodes have been lost, or wait to come back
//         <----------------------- kFailure   the job has failed; nothing follows
//   kShutdown ------------------->            a clean end; a socket that closes without it means
//                                             that the trainer died
//
// Tensors of a GPU also need the following messages. The trainer does all work that touches the
// GPU, in the agent's order, which is the same for all ranks of a group:
//   kDevice ---------------------->             once: the PCI bus id of this rank's GPU
//         <----------------------- kGroup       after kDevice of all local ranks: this rank's
//                                               aggregation group
//   kGroupId <-------------------> kGroupId     the id that the group's first rank made for NCCL,
//                                               passed on to the others
//   kAttach ---------------------->             asks for this tensor's contribution of the group
//         <----------------------- kAttached    its descriptor: the first member's segment
//   kPush with kFlagDevice ------->             the data is on the GPU as soon as a stream gets
//                                               there
//         <----------------------- kContribute  aggregate it, and copy your part to the segment
//   kStaged ---------------------->             this rank's part of the first `bytes` is there
//         <----------------------- kArrived     `bytes` of the result from `offset` on are there;
//                                               kResult follows the last
//   kDeviceFailed ---------------->             the GPU cannot be used any more: the reason
//
// The following messages apply if a NIC reads contributions from the GPU instead of from the
// segment (kGroup with kFlagDirect, to the rank whose GPU has all contributions):
//   kDirect ---------------------->             this tensor's contribution lies in this dma-buf
//         <----------------------- kDirect      no NIC reads it: make no further offer
//         <----------------------- kContribute  with kFlagDirect: copy it to the dma-buf
//         <----------------------- kFetch       copy `bytes` of it from `offset` on to the segment
//   kFetched --------------------->             they are there
//
// A trainer that says so in kInit (kFlagRing) may get a descriptor with kInitReply: memory with a
// queue for each direction (ring.h). Messages without dimensions, text and descriptors then may
// pass through these, in the same order:
//   kBell <----------------------> kBell        the receiver sleeps: look into the queue
//
// Other processes of the machine may read a contribution where it lies, also after the agent has
// ended. So a trainer that says so in kInit (kFlagGuard) sets the guard of the tensors that are
// under way before it reports an error that ends the job: a 32-bit word, not 0, at the begin of the
// page behind the contribution (kGuardBytes). It stays set.
//
// Both ends are on one machine, so integers are in its byte order. The agent assigns tensor
// numbers, which belong to this connection's generation; they are not the scheduler's TensorIds.
// Segments start with the first element; a result slot starts at a multiple of 4096. The offsets of
// slots never travel: both sides compute them from the declaration (SlotBytes).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/base/limits.h"
#include "lib/base/version.h"

namespace addend::ipc {

inline constexpr uint32_t kMagic = 0x43444441;  // "ADDC"
// The version of a new trainer; its agent answers in the trainer's version.
inline constexpr uint16_t kVersion = protocol::kTrainers.newest;
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
  kDeclareAmong = 24,
  kBell = 25,
};

inline constexpr uint16_t kFlagEmpty = 1;    // kPush: this rank contributes nothing
inline constexpr uint16_t kFlagDevice = 2;   // kPush: from a GPU
inline constexpr uint16_t kFlagScatter = 4;  // kGroup: as Group::scatter (pieces.h)
inline constexpr uint16_t kFlagOrdered = 8;  // kGroup: sums are in the order of the members
// kGroup: a NIC reads this rank's GPU's contributions. kContribute: a NIC reads it in this round.
inline constexpr uint16_t kFlagDirect = 16;
inline constexpr uint16_t kFlagRing = 32;   // kInit: the trainer takes part in ring.h
inline constexpr uint16_t kFlagGuard = 64;  // kInit: the trainer sets guards
// Smaller tensors always go through host memory: their copies cost less than the bookkeeping.
inline constexpr size_t kDirectBytesMin = 1 << 20;

// The fixed part of every message; unused fields are 0. messages.h has a struct for each type.
// kDeclare: followed by `dims` int64 dimensions, then `text_bytes` bytes of name.
// `code` of both: 0, or the type in which the elements travel: 1 + WireDType, + 256 if it rounds
// stochastically (lib/base/wire_format.h).
// kDeclareAmong: the same; the last `bytes` bytes of the name are the participants, as a bitmap
// (lib/base/participants.h).
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
  uint64_t round = 0;    // kPush to kResult: from 1, without gaps
  uint64_t offset = 0;   // kArrived, kFetch, kFetched
  uint64_t bytes = 0;    // kStaged, kArrived, kFetch, kFetched; kDirect: of the dma-buf;
                         // kDeclareAmong: of the participants
  int32_t priority = 0;
  uint32_t code = 0;  // replies: addend_code, 0 is success
  uint32_t dims = 0;
  uint32_t text_bytes = 0;
  int32_t rank = 0;        // kInit, kInitReply
  int32_t size = 0;        // kMembers: nodes that wait for the next generation
  int32_t local_rank = 0;  // kGroup: this rank's number in the group
  int32_t local_size = 0;  // kGroup: its members
  int32_t node_rank = 0;   // kInitReply
  int32_t num_nodes = 0;   // kMembers: the nodes in this generation
};
static_assert(sizeof(Message) == 88);

// The page with the guard, behind a contribution segment of SlotBytes.
inline constexpr size_t kGuardBytes = 4096;

// Distance of the two slots in a result segment, and the size of a contribution segment; never 0.
inline constexpr size_t SlotBytes(size_t tensor_bytes) {
  return tensor_bytes == 0 ? 4096 : (tensor_bytes + 4095) / 4096 * 4096;
}

}  // namespace addend::ipc
