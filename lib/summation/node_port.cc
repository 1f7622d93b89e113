// The send queue of a node's link, and its bounds.
#include "lib/summation/node_port.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// A round begins when the node has the result of the round before, so two frames of each kind about
// a partition wait at most, and a few more after a change of the owner.
constexpr int kUnsentOfKind = 4;
constexpr int kRepeatedMost = 8;  // requests for a frame that waits already
constexpr size_t kQueuedMost = 4096;
constexpr size_t kQueuedForEach = 8;  // partition of the job

}  // namespace

std::string Describe(NodeId sender) {
  return IsRelay(sender) ? absl::StrFormat("summation server %d", ServerOf(sender).value())
                         : absl::StrFormat("node %d", sender.value());
}

void NodePort::Push(const FrameHeader& header, Bytes payload, Done done, int64_t* handed_at,
                    EncodeFn encode) {
  outbox_.Push(header, payload, std::move(done), /*place=*/0, handed_at, std::move(encode));
  if (outbox_.queued() > kQueuedMost + kQueuedForEach * job_->partitions) CloseUnread();
}

NodePort::Kind NodePort::KindOf(const FrameHeader& header) {
  const uint32_t wanted = header.flags & kFlagResult;  // of a SEND_AGAIN
  return {header.partition, wanted << 8 | static_cast<uint32_t>(header.type)};
}

bool NodePort::StillWaits(const FrameHeader& header) {
  const auto unsent = unsent_.find(KindOf(header));
  if (unsent == unsent_.end() || *unsent->second.handed_at != 0 ||
      unsent->second.round != header.round || unsent->second.version != header.plan_version) {
    return false;
  }
  if (++unsent->second.repeated > kRepeatedMost && !traits_->by_reference) CloseUnread();
  return true;
}

void NodePort::PushOnce(const FrameHeader& header, Bytes payload, Done done, EncodeFn encode) {
  if (StillWaits(header)) return;
  const Kind kind = KindOf(header);
  const auto handed_at = std::make_shared<int64_t>(0);
  Unsent& unsent = unsent_[kind];
  unsent.round = header.round;
  unsent.version = header.plan_version;
  unsent.handed_at = handed_at;
  unsent.repeated = 0;
  if (++unsent.frames > kUnsentOfKind && !traits_->by_reference) CloseUnread();
  auto sent = [this, kind, handed_at, done = std::move(done)](absl::Status status) mutable {
    const auto frames = unsent_.find(kind);
    if (--frames->second.frames == 0) unsent_.erase(frames);
    if (done) done(status);
  };
  Push(header, payload, std::move(sent), handed_at.get(), std::move(encode));
}

void NodePort::CloseUnread() {
  link_->Close(absl::ResourceExhaustedError(
      absl::StrFormat("%s asks for more than it reads: %d frames wait for it", Name(), queued())));
}

}  // namespace addend
