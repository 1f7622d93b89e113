// sent_ counts the bytes of the front of the queue that the kernel has taken; Gather() leaves them
// out. A bundle is decided only between two frames, when its header is composed, and stays the same
// until all of it has left: the peer has its length.

#include "lib/transport/tcp/frame_writer.h"

#include <algorithm>
#include <utility>

#include "lib/transport/link_status.h"

namespace addend::tcp {
namespace {

// Collects vectors, without the bytes that have been written already.
class Vectors {
 public:
  Vectors(iovec* vectors, size_t skip) : vectors_(vectors), skip_(skip) {}
  void Add(Bytes part) {
    const size_t skipped = std::min(skip_, part.size());
    skip_ -= skipped;
    if (skipped == part.size()) return;
    vectors_[count_++] = {const_cast<std::byte*>(part.data()) + skipped, part.size() - skipped};
  }
  int count() const { return count_; }

 private:
  iovec* const vectors_;
  size_t skip_;
  int count_ = 0;
};

}  // namespace

void FrameWriter::Push(const FrameHeader& header, Bytes payload, Done done) {
  Waiting frame;
  EncodeHeader(WithPayload(header, payload), &frame.header);
  frame.type = header.type;
  frame.version = header.version;
  frame.partition = header.partition;
  frame.payload = payload;
  frame.done = std::move(done);
  queue_.push_back(std::move(frame));
}

// Returns how many frames from `first` on may leave in a bundle; 0 if too few.
size_t FrameWriter::BundleFrom(size_t first) const {
  size_t bytes = 0;
  size_t last = first;
  for (; last < queue_.size() && last - first < kMaxBundleFrames; ++last) {
    const Waiting& frame = queue_[last];
    bytes += frame.payload.size();
    if (!MayBeBundled(frame.type, frame.payload.size()) || bytes > kMaxBundlePayloadBytes) break;
    const auto begin = queue_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(last);
    const auto same = [&](const Waiting& other) { return other.partition == frame.partition; };
    if (std::any_of(begin, end, same)) break;
  }
  return last - first < kLeastBundle ? 0 : last - first;
}

void FrameWriter::BeginBundle() {
  bundled_ = BundleFrom(0);
  if (bundled_ == 0) return;
  FrameHeader header;
  header.type = FrameType::kBundle;
  header.version = queue_.front().version;
  header.detail = static_cast<uint32_t>(bundled_);
  size_t bytes = 0;
  for (size_t i = 0; i < bundled_; ++i) bytes += queue_[i].size();
  header.payload_bytes = static_cast<uint32_t>(bytes);
  EncodeHeader(header, &bundle_header_);
  bundle_bytes_ = bundle_header_.size() + bytes;
}

int FrameWriter::Gather(iovec (&vectors)[kVectors]) {
  if (sent_ == 0 && bundled_ == 0) BeginBundle();
  Vectors gathered(vectors, sent_);
  if (bundled_ > 0) {
    gathered.Add(bundle_header_);
    for (size_t i = 0; i < bundled_; ++i) gathered.Add(queue_[i].header);
    for (size_t i = 0; i < bundled_; ++i) gathered.Add(queue_[i].payload);
    return gathered.count();
  }
  for (size_t i = 0; i < queue_.size() && gathered.count() + 2 <= kVectors; ++i) {
    if (i > 0 && BundleFrom(i) > 0) break;
    gathered.Add(queue_[i].header);
    gathered.Add(queue_[i].payload);
  }
  return gathered.count();
}

Done FrameWriter::PopFront() {
  Done done = std::move(queue_.front().done);
  queue_.pop_front();
  return done;
}

size_t FrameWriter::Sent(size_t bytes, std::vector<Done>* completed) {
  size_t frames = 0;
  sent_ += bytes;
  const auto pop = [&] {
    if (Done done = PopFront()) completed->push_back(std::move(done));
    ++frames;
  };
  if (bundled_ > 0) {
    if (sent_ < bundle_bytes_) return 0;
    sent_ -= bundle_bytes_;
    while (bundled_ > 0) {
      pop();
      --bundled_;
    }
  }
  while (!queue_.empty() && sent_ >= queue_.front().size()) {
    sent_ -= queue_.front().size();
    pop();
  }
  return frames;
}

std::vector<Done> FrameWriter::TakeAll() {
  std::vector<Done> dones;
  while (!queue_.empty()) {
    if (Done done = PopFront()) dones.push_back(std::move(done));
  }
  bundled_ = 0;
  sent_ = 0;
  return dones;
}

}  // namespace addend::tcp
