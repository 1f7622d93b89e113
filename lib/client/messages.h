// The messages between a trainer and its agent, a struct for each type of ipc.h. Encode() and
// Decode() translate to and from the common fixed part (ipc::Message), whose fields have another
// meaning in each type: no other code needs to know which. Pure.
//
// Decode() takes a message of that type, whose lengths have been checked. Numbers are not checked:
// the receiver does that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types.h"
#include "lib/base/wire_format.h"
#include "lib/client/ipc.h"

namespace addend::ipc {

// A message in the form of the socket. The views are into the struct that was encoded, or into the
// received packet, and live no longer: Encode() copies and allocates nothing. The sender sets the
// lengths in `fixed`.
struct Encoded {
  Message fixed;
  std::span<const int64_t> dims = {};
  std::string_view text = {};
};

inline Encoded EncodedAs(Type type, std::string_view text = {}) {
  Encoded encoded;
  encoded.fixed.type = type;
  encoded.text = text;
  return encoded;
}

// ---- the job ----

// Trainer: opens the connection, with the place in the job that the launcher has given it.
struct InitMessage {
  int32_t rank = 0;
  int32_t size = 0;
  int32_t local_rank = 0;
  int32_t local_size = 0;
  std::string job = {};         // empty: the agent's job
  uint16_t version = kVersion;  // of the protocol
  bool ring = true;             // takes part in ring.h
  bool guard = true;            // sets guards

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kInit, job);
    encoded.fixed.flags = static_cast<uint16_t>((ring ? kFlagRing : 0) | (guard ? kFlagGuard : 0));
    encoded.fixed.rank = rank;
    encoded.fixed.size = size;
    encoded.fixed.local_rank = local_rank;
    encoded.fixed.local_size = local_size;
    encoded.fixed.version = version;
    return encoded;
  }
  static InitMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.rank,
            m.size,
            m.local_rank,
            m.local_size,
            std::string(encoded.text),
            m.version,
            (m.flags & kFlagRing) != 0,
            (m.flags & kFlagGuard) != 0};
  }
};

// Agent: the ranks for which the job waits, in a sentence.
struct ProgressMessage {
  std::string text = {};

  Encoded Encode() const { return EncodedAs(Type::kProgress, text); }
  static ProgressMessage Decode(const Encoded& encoded) { return {std::string(encoded.text)}; }
};

// Agent: the place of this rank in the job, or the reason of the refusal.
struct InitReplyMessage {
  uint32_t code = 0;  // addend_code; 0: accepted
  std::string reason = {};
  int32_t rank = 0;
  int32_t size = 0;
  int32_t local_rank = 0;
  int32_t local_size = 0;
  int32_t node_rank = 0;
  int32_t num_nodes = 0;

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kInitReply, reason);
    encoded.fixed.code = code;
    encoded.fixed.rank = rank;
    encoded.fixed.size = size;
    encoded.fixed.local_rank = local_rank;
    encoded.fixed.local_size = local_size;
    encoded.fixed.node_rank = node_rank;
    encoded.fixed.num_nodes = num_nodes;
    return encoded;
  }
  static InitReplyMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.code,       std::string(encoded.text),
            m.rank,       m.size,
            m.local_rank, m.local_size,
            m.node_rank,  m.num_nodes};
  }
};

// Agent: nodes have been lost, or wait to come back.
struct MembersMessage {
  int32_t nodes = 0;    // in this generation
  int32_t waiting = 0;  // for the next generation

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kMembers);
    encoded.fixed.num_nodes = nodes;
    encoded.fixed.size = waiting;
    return encoded;
  }
  static MembersMessage Decode(const Encoded& encoded) {
    return {encoded.fixed.num_nodes, encoded.fixed.size};
  }
};

// Agent: the job has failed. Nothing follows.
struct FailureMessage {
  uint32_t code = 0;  // addend_code
  std::string reason = {};

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kFailure, reason);
    encoded.fixed.code = code;
    return encoded;
  }
  static FailureMessage Decode(const Encoded& encoded) {
    return {encoded.fixed.code, std::string(encoded.text)};
  }
};

// Both ways: the receiver is to look into its queue (ring.h).
struct BellMessage {
  Encoded Encode() const { return EncodedAs(Type::kBell); }
  static BellMessage Decode(const Encoded&) { return {}; }
};

// Trainer: a clean end.
struct ShutdownMessage {
  Encoded Encode() const { return EncodedAs(Type::kShutdown); }
  static ShutdownMessage Decode(const Encoded&) { return {}; }
};

// ---- tensors and rounds ----

// Trainer: declares a tensor. Its dimensions and its name follow the fixed part. With participants
// it is a kDeclareAmong, and they follow the name.
struct DeclareMessage {
  uint64_t request = 0;  // any number, repeated in the answer
  DType dtype{};
  ReduceOp op{};
  std::vector<int64_t> shape = {};
  std::string text = {};                // the name, then Participants::bits()
  uint64_t participants_bytes = 0;      // of the text, at most all
  std::optional<WireFormat> wire = {};  // nullopt: the job's

  std::string name() const { return text.substr(0, text.size() - participants_bytes); }
  std::string participants() const { return text.substr(text.size() - participants_bytes); }

  Encoded Encode() const {
    Encoded encoded =
        EncodedAs(participants_bytes == 0 ? Type::kDeclare : Type::kDeclareAmong, text);
    encoded.fixed.bytes = participants_bytes;
    encoded.fixed.code = CodeOf(wire);
    encoded.fixed.request = request;
    encoded.fixed.dtype = static_cast<uint8_t>(dtype);
    encoded.fixed.op = static_cast<uint8_t>(op);
    encoded.dims = shape;
    return encoded;
  }
  static DeclareMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    const bool some = m.type == Type::kDeclareAmong;
    const uint64_t among = some ? std::min<uint64_t>(m.bytes, encoded.text.size()) : 0;
    return {m.request,
            static_cast<DType>(m.dtype),
            static_cast<ReduceOp>(m.op),
            {encoded.dims.begin(), encoded.dims.end()},
            std::string(encoded.text),
            among,
            WireOf(m.code)};
  }

 private:
  static constexpr uint32_t kStochasticBit = 1 << 8;
  // An unknown number becomes an unknown type, which the agent refuses.
  static uint32_t CodeOf(const std::optional<WireFormat>& wire) {
    if (!wire) return 0;
    return 1 + static_cast<uint32_t>(wire->dtype) + (wire->stochastic ? kStochasticBit : 0);
  }
  static std::optional<WireFormat> WireOf(uint32_t code) {
    if (code == 0) return std::nullopt;
    const bool stochastic = (code & kStochasticBit) != 0;
    const uint32_t number = (code & ~kStochasticBit) - 1;
    return WireFormat{static_cast<WireDType>(std::min<uint32_t>(number, 0xff)), stochastic};
  }
};

// Agent: the tensor's number, with the descriptors of its segments; or the reason of the refusal.
struct DeclaredMessage {
  uint64_t request = 0;
  uint32_t tensor = 0;
  uint32_t code = 0;  // addend_code; 0: declared
  std::string reason = {};

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kDeclared, reason);
    encoded.fixed.request = request;
    encoded.fixed.tensor = tensor;
    encoded.fixed.code = code;
    return encoded;
  }
  static DeclaredMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.request, m.tensor, m.code, std::string(encoded.text)};
  }
};

// Trainer: forgets a tensor. The rank may declare the name again at once.
struct UndeclareMessage {
  uint32_t tensor = 0;

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kUndeclare);
    encoded.fixed.tensor = tensor;
    return encoded;
  }
  static UndeclareMessage Decode(const Encoded& encoded) { return {encoded.fixed.tensor}; }
};

// Trainer: the contribution to a round is in the segment, or will be on the GPU.
struct PushMessage {
  uint32_t tensor = 0;
  uint64_t round = 0;  // from 1, without gaps
  int32_t priority = 0;
  bool empty = false;         // this rank contributes nothing
  bool on_device = false;     // the data is on the GPU as soon as a stream gets there
  uint64_t copied_in_ns = 0;  // from the caller's call until the segment held the data
  uint32_t spun_us = 0;       // that callers have looked for results, since the push before

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kPush);
    encoded.fixed.tensor = tensor;
    encoded.fixed.round = round;
    encoded.fixed.priority = priority;
    encoded.fixed.flags =
        static_cast<uint16_t>((empty ? kFlagEmpty : 0) | (on_device ? kFlagDevice : 0));
    encoded.fixed.request = copied_in_ns;
    encoded.fixed.code = spun_us;
    return encoded;
  }
  static PushMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {
        m.tensor,  m.round, m.priority, (m.flags & kFlagEmpty) != 0, (m.flags & kFlagDevice) != 0,
        m.request, m.code};
  }
};

// Agent: a slot of the result segment holds the round's result; or the round's error.
struct ResultMessage {
  uint32_t tensor = 0;
  uint64_t round = 0;
  uint32_t code = 0;  // addend_code; 0: a result
  std::string reason = {};

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kResult, reason);
    encoded.fixed.tensor = tensor;
    encoded.fixed.round = round;
    encoded.fixed.code = code;
    return encoded;
  }
  static ResultMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.tensor, m.round, m.code, std::string(encoded.text)};
  }
};

// ---- GPUs ----

// Trainer: this rank's GPU, once.
struct DeviceMessage {
  std::string bus_id = {};  // "0000:3b:00.0"

  Encoded Encode() const { return EncodedAs(Type::kDevice, bus_id); }
  static DeviceMessage Decode(const Encoded& encoded) { return {std::string(encoded.text)}; }
};

// Agent: the group of ranks that aggregate on their GPUs, as ipc::Group (pieces.h).
struct GroupMessage {
  uint32_t member = 0;
  uint32_t members = 1;
  bool scatter = false;
  bool ordered = false;  // sums are in the order of the members
  bool direct = false;   // a NIC reads the contributions of this rank's GPU
  std::vector<uint32_t> roots = {};

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kGroup);
    encoded.fixed.local_rank = static_cast<int32_t>(member);
    encoded.fixed.local_size = static_cast<int32_t>(members);
    encoded.fixed.flags = static_cast<uint16_t>(
        (scatter ? kFlagScatter : 0) | (ordered ? kFlagOrdered : 0) | (direct ? kFlagDirect : 0));
    encoded.text = {reinterpret_cast<const char*>(roots.data()), roots.size() * sizeof(uint32_t)};
    return encoded;
  }
  static GroupMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    GroupMessage group{static_cast<uint32_t>(m.local_rank),
                       static_cast<uint32_t>(m.local_size),
                       (m.flags & kFlagScatter) != 0,
                       (m.flags & kFlagOrdered) != 0,
                       (m.flags & kFlagDirect) != 0,
                       std::vector<uint32_t>(encoded.text.size() / sizeof(uint32_t))};
    if (group.roots.empty()) return group;  // memcpy takes no null pointer
    std::memcpy(group.roots.data(), encoded.text.data(), group.roots.size() * sizeof(uint32_t));
    return group;
  }
};

// Both ways: the id that the group's first rank made for NCCL, passed on to the others.
struct GroupIdMessage {
  std::string id = {};

  Encoded Encode() const { return EncodedAs(Type::kGroupId, id); }
  static GroupIdMessage Decode(const Encoded& encoded) { return {std::string(encoded.text)}; }
};

// Trainer: requests the group's contribution segment of a tensor.
struct AttachMessage {
  uint32_t tensor = 0;

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kAttach);
    encoded.fixed.tensor = tensor;
    return encoded;
  }
  static AttachMessage Decode(const Encoded& encoded) { return {encoded.fixed.tensor}; }
};

// Agent: the descriptor of that segment.
struct AttachedMessage {
  uint32_t tensor = 0;

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kAttached);
    encoded.fixed.tensor = tensor;
    return encoded;
  }
  static AttachedMessage Decode(const Encoded& encoded) { return {encoded.fixed.tensor}; }
};

// Agent: aggregate a round, and copy this rank's part.
struct ContributeMessage {
  uint32_t tensor = 0;
  uint64_t round = 0;
  uint64_t with_data = 0;  // a bit for every member of the group that has data
  bool direct = false;     // to the dma-buf, else to the segment

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kContribute);
    encoded.fixed.tensor = tensor;
    encoded.fixed.round = round;
    encoded.fixed.request = with_data;
    encoded.fixed.flags = direct ? kFlagDirect : 0;
    return encoded;
  }
  static ContributeMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.tensor, m.round, m.request, (m.flags & kFlagDirect) != 0};
  }
};

// Trainer: this rank's part of the first `bytes` of a contribution is in the segment.
struct StagedMessage {
  uint32_t tensor = 0;
  uint64_t round = 0;
  uint64_t bytes = 0;

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kStaged);
    encoded.fixed.tensor = tensor;
    encoded.fixed.round = round;
    encoded.fixed.bytes = bytes;
    return encoded;
  }
  static StagedMessage Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.tensor, m.round, m.bytes};
  }
};

// A range of a tensor in a round, from the byte `offset` on.
struct Range {
  uint32_t tensor = 0;
  uint64_t round = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  Encoded EncodeAs(Type type) const {
    Encoded encoded = EncodedAs(type);
    encoded.fixed.tensor = tensor;
    encoded.fixed.round = round;
    encoded.fixed.offset = offset;
    encoded.fixed.bytes = bytes;
    return encoded;
  }
  static Range Decode(const Encoded& encoded) {
    const Message& m = encoded.fixed;
    return {m.tensor, m.round, m.offset, m.bytes};
  }
};

// Agent: a range of the result is in the segment.
struct ArrivedMessage {
  Range range;
  Encoded Encode() const { return range.EncodeAs(Type::kArrived); }
  static ArrivedMessage Decode(const Encoded& encoded) { return {Range::Decode(encoded)}; }
};

// Agent: copy a range of the contribution from the dma-buf to the segment.
struct FetchMessage {
  Range range;
  Encoded Encode() const { return range.EncodeAs(Type::kFetch); }
  static FetchMessage Decode(const Encoded& encoded) { return {Range::Decode(encoded)}; }
};

// Trainer: the range of a FetchMessage is in the segment.
struct FetchedMessage {
  Range range;
  Encoded Encode() const { return range.EncodeAs(Type::kFetched); }
  static FetchedMessage Decode(const Encoded& encoded) { return {Range::Decode(encoded)}; }
};

// Trainer: offers the dma-buf with the tensor's contribution. Agent: no NIC reads it; the trainer
// makes no further offer.
struct DirectMessage {
  uint32_t tensor = 0;
  uint64_t bytes = 0;  // of the dma-buf

  Encoded Encode() const {
    Encoded encoded = EncodedAs(Type::kDirect);
    encoded.fixed.tensor = tensor;
    encoded.fixed.bytes = bytes;
    return encoded;
  }
  static DirectMessage Decode(const Encoded& encoded) {
    return {encoded.fixed.tensor, encoded.fixed.bytes};
  }
};

// Trainer: the GPU cannot be used any more.
struct DeviceFailedMessage {
  std::string reason = {};

  Encoded Encode() const {
    return EncodedAs(Type::kDeviceFailed, std::string_view(reason).substr(0, kMaxTextBytes));
  }
  static DeviceFailedMessage Decode(const Encoded& encoded) { return {std::string(encoded.text)}; }
};

}  // namespace addend::ipc
