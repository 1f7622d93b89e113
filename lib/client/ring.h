// A queue in shared memory, beside the socket of trainer and agent: messages that are a fixed part
// alone (pushes, results) pass through it without a system call. The socket carries all others, and
// is the proof of life. A single process writes, and another reads.
//
// Order: each entry has the number of messages that the writer had sent by the socket before it.
// The reader delivers an entry when it has received so many, and before a message of the socket all
// entries that the writer wrote before that. A full queue is no error: the socket takes the
// message.
//
// Waking: a reader that is about to sleep says so (Sleep), and the writer then sends a bell by the
// socket, or queues it there. While a bell has not been read, no second is sent. The order of
// `written` and `sleepers` is sequentially consistent, as in Dekker's algorithm: either the writer
// sees that the reader sleeps, or the reader sees the entry.
//
// Nothing in the memory is believed: the other process may write anything at any time. Indexes are
// checked and an entry is copied before it is read. A process that breaks the rules harms itself:
// it misses its own messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/client/ipc.h"

namespace addend::ipc {

// More than the rounds that a rank has under way at a time, as a rule.
inline constexpr uint64_t kRingEntries = 256;

struct RingMemory {
  struct alignas(128) Entry {
    Message message;
    uint64_t after;  // messages of the socket before it
  };
  alignas(128) std::atomic<uint64_t> written;
  alignas(128) std::atomic<uint64_t> read;
  alignas(128) std::atomic<uint32_t> sleepers;  // threads of the reader that sleep, or are about to
  std::atomic<uint32_t> rung;                   // a bell has been sent that nobody has read
  Entry entries[kRingEntries];
};

// The memory that comes with kInitReply: zeros at first, which are empty queues.
struct RingsMemory {
  RingMemory to_agent;
  RingMemory to_trainer;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// For a single thread at a time.
class RingWriter {
 public:
  explicit RingWriter(RingMemory* memory) : memory_(memory) {}

  // `after`: the messages that have been sent by the socket. False: no room.
  bool Write(const Message& message, uint64_t after) {
    if (written_ - memory_->read.load(std::memory_order_acquire) >= kRingEntries) return false;
    RingMemory::Entry& entry = memory_->entries[written_ % kRingEntries];
    std::memcpy(&entry.message, &message, sizeof(message));
    entry.after = after;
    memory_->written.store(++written_);
    return true;
  }
  // After Write(): the reader sleeps, and a bell has to be sent.
  bool MustRing() {
    return memory_->sleepers.load() != 0 &&
           memory_->rung.exchange(1, std::memory_order_acq_rel) == 0;
  }

 private:
  RingMemory* const memory_;
  uint64_t written_ = 0;
};

// For a single thread at a time, but for the last methods.
class RingReader {
 public:
  enum class State {
    kEmpty,  // or the next entry comes after messages of the socket
    kReady,
    kBroken,  // the writer has broken the rules
  };
  explicit RingReader(RingMemory* memory) : memory_(memory) {}

  // `received`: the messages that have been received by the socket.
  State Look(uint64_t received) const {
    const uint64_t there = memory_->written.load() - read_;
    if (there > kRingEntries) return State::kBroken;
    return there > 0 && Next().after <= received ? State::kReady : State::kEmpty;
  }
  // An entry waits for messages of the socket.
  bool AwaitsSocket(uint64_t received) const {
    const uint64_t there = memory_->written.load() - read_;
    return there > 0 && there <= kRingEntries && Next().after > received;
  }
  // After kReady.
  Message Take() {
    Message message;
    std::memcpy(&message, &Next().message, sizeof(message));
    memory_->read.store(++read_, std::memory_order_release);
    return message;
  }
  // A bell has been read from the socket.
  void OnBell() { memory_->rung.exchange(0, std::memory_order_acq_rel); }

  // ---- any thread ----
  // Nothing is there, not even an entry that comes after messages of the socket.
  bool IsEmpty() const {
    return memory_->written.load() == memory_->read.load(std::memory_order_relaxed);
  }
  // From now on the writer sends a bell, until Woke(). Look again before sleeping.
  void Sleep() { memory_->sleepers.fetch_add(1); }
  void Woke() { memory_->sleepers.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const RingMemory::Entry& Next() const { return memory_->entries[read_ % kRingEntries]; }

  RingMemory* const memory_;
  uint64_t read_ = 0;
};

}  // namespace addend::ipc
