// What an end of a link sends: records, frames, and the Dones of frames whose payloads are in use.
// No I/O. Belongs to the link's thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "lib/transport/shm/record.h"
#include "lib/transport/transport.h"
#include "lib/wire/frame.h"

namespace addend::shm {

class Outgoing {
 public:
  static constexpr int kVectors = 2 * kMaxBundleFrames + 1;  // as of SocketLink

  // `file`: a descriptor to send with the record, which stays open until it is sent; -1: none.
  void Push(const Record& record, int file = -1);
  // `record`: kFrame or kLent. `payload` is lent until `done` runs.
  void Push(const Record& record, const FrameHeader& header, Bytes payload, Done done);
  bool empty() const { return queue_.empty(); }
  // The frames whose Dones have not run.
  size_t in_use() const { return in_use_.size(); }

  // Fills `vectors` with the next bytes to write, which stay valid until Sent(), and returns their
  // number. `*file`: the descriptor that goes with them; -1: none.
  int Gather(iovec (&vectors)[kVectors], int* file) const;
  // Records that the first `bytes` of the gathered bytes have been written. Returns the number of
  // frames completed.
  size_t Sent(size_t bytes);
  // The peer has copied the oldest `count` lent payloads. INVALID_ARGUMENT: there are fewer.
  absl::Status Release(uint64_t count);
  // Removes and returns the Dones that are due, in the order of sending.
  std::vector<Done> TakeDue();
  // Empties the queue; returns all Dones, in the order of sending.
  std::vector<Done> TakeAll();

 private:
  struct Item {
    std::array<std::byte, sizeof(Record) + kFrameHeaderBytes> head;
    size_t head_bytes = 0;
    int file = -1;
    Bytes payload;       // to be written behind the head
    uint64_t frame = 0;  // number of the frame; 0: none
    bool lent = false;
    size_t size() const { return head_bytes + payload.size(); }
  };
  struct InUse {
    Done done;
    bool over = false;
  };
  InUse& At(uint64_t frame) { return in_use_[frame - first_]; }

  std::deque<Item> queue_;
  size_t sent_ = 0;           // bytes of the first item
  std::deque<InUse> in_use_;  // by number of the frame, from first_ on
  uint64_t first_ = 1;
  std::deque<uint64_t> lent_;  // written lent frames that the peer has not released
};

}  // namespace addend::shm
