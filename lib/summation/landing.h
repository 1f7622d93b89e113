// The receive buffers of a link: where the payloads of its frames land, in the order of the frames.
// Belongs to a shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/base/ids.h"
#include "lib/memory/arena.h"
#include "lib/summation/early_buffers.h"
#include "lib/summation/latest_partition.h"
#include "lib/summation/partition.h"
#include "lib/summation/relayed_partition.h"

namespace addend {

class Landing {
 public:
  // A payload that is being received. Every member may be null.
  struct Placed {
    std::shared_ptr<Partition> partition;       // keeps the accumulator that is received into
    std::shared_ptr<LatestPartition> latest;    // in place of `partition` in asynchronous mode
    std::shared_ptr<RelayedPartition> relayed;  // in place of `partition` of another owner
    std::unique_ptr<EarlyContribution> early;   // the buffer of an early contribution
    std::shared_ptr<Arena> own;                 // a buffer beside the scratch memory
    int64_t began = 0;                          // TraceNow() of the first byte

    // The payload that has arrived, in one of its places; raw and empty if it was dropped.
    EncodedBytes ContentOf(const FrameHeader& header, const Payload& payload) const {
      const Bytes bytes = early != nullptr ? early->bytes() : payload.bytes();
      if (bytes.size() != header.payload_bytes) return {};
      return {bytes, header.encoding};
    }
  };

  // Adds the payload of the next frame. Valid until the next call of a method of this class.
  Placed& Begin() { return placed_.emplace_back(); }
  // Memory for the payload of `placed`, which is summed as soon as it is complete.
  absl::StatusOr<MutableBytes> ScratchFor(size_t bytes, Placed* placed);
  // The same for a payload that comes before its turn, in a buffer for `job`. Empty without a
  // buffer: the payload is dropped.
  static MutableBytes EarlyRoomFor(size_t bytes, EarlyBuffers* buffers,
                                   const std::shared_ptr<JobMemory>& job, Placed* placed) {
    placed->early = EarlyContribution::TakeBuffer(buffers, bytes, job);
    return placed->early ? placed->early->room() : MutableBytes();
  }
  // Removes the payload that is complete: the first.
  Placed Take();
  // Keeps the buffer that `placed` had from ScratchFor() for later payloads.
  void Reuse(Placed* placed);

  bool IsReceiving(const Partition& partition) const;
  bool IsReceiving(TensorId tensor, const std::set<uint32_t>& partitions) const;
  // The link is closed: drops all payloads. Returns the partitions that were received into.
  std::vector<std::shared_ptr<Partition>> Abandon();

 private:
  absl::StatusOr<std::shared_ptr<Arena>> TakeSpare(size_t bytes);

  std::deque<Placed> placed_;       // several while a transport receives a bundle of frames
  std::shared_ptr<Arena> scratch_;  // shared by the payloads of a bundle
  size_t scratch_used_ = 0;
  std::vector<std::shared_ptr<Arena>> spare_;
};

}  // namespace addend
