#include "lib/transport/shm/outgoing.h"

#include <cstring>
#include <utility>

#include "lib/transport/link_status.h"

namespace addend::shm {

void Outgoing::Push(const Record& record, int file) {
  Item& item = queue_.emplace_back();
  std::memcpy(item.head.data(), &record, sizeof(record));
  item.head_bytes = sizeof(record);
  item.file = file;
}

void Outgoing::Push(const Record& record, const FrameHeader& header, Bytes payload, Done done) {
  EncodedHeader encoded;
  EncodeHeader(WithPayload(header, payload), &encoded);
  Item& item = queue_.emplace_back();
  std::memcpy(item.head.data(), &record, sizeof(record));
  std::memcpy(item.head.data() + sizeof(record), encoded.data(), encoded.size());
  item.head_bytes = item.head.size();
  item.lent = record.kind == Kind::kLent;
  if (!item.lent) item.payload = payload;
  in_use_.push_back({std::move(done)});
  item.frame = first_ + in_use_.size() - 1;
}

int Outgoing::Gather(iovec (&vectors)[kVectors], int* file) const {
  *file = -1;
  int count = 0;
  size_t skip = sent_;
  const auto add = [&](const std::byte* data, size_t bytes) {
    if (skip >= bytes) {
      skip -= bytes;
      return;
    }
    vectors[count++] = {const_cast<std::byte*>(data + skip), bytes - skip};
    skip = 0;
  };
  for (const Item& item : queue_) {
    // A descriptor travels with the first byte of its record, and with nothing else.
    const bool with_file = item.file >= 0 && !(count == 0 && sent_ > 0);
    if (count + 2 > kVectors || (with_file && count > 0)) break;
    add(item.head.data(), item.head_bytes);
    add(item.payload.data(), item.payload.size());
    if (with_file) {
      *file = item.file;
      break;
    }
  }
  return count;
}

size_t Outgoing::Sent(size_t bytes) {
  size_t frames = 0;
  sent_ += bytes;
  while (!queue_.empty() && sent_ >= queue_.front().size()) {
    const Item& item = queue_.front();
    sent_ -= item.size();
    if (item.frame != 0) {
      ++frames;
      if (item.lent) {
        lent_.push_back(item.frame);
      } else {
        At(item.frame).over = true;
      }
    }
    queue_.pop_front();
  }
  return frames;
}

absl::Status Outgoing::Release(uint64_t count) {
  if (count > lent_.size()) {
    return absl::InvalidArgumentError("the peer has released payloads that were not lent to it");
  }
  for (; count > 0; --count) {
    At(lent_.front()).over = true;
    lent_.pop_front();
  }
  return absl::OkStatus();
}

std::vector<Done> Outgoing::TakeDue() {
  std::vector<Done> due;
  while (!in_use_.empty() && in_use_.front().over) {
    due.push_back(std::move(in_use_.front().done));
    in_use_.pop_front();
    ++first_;
  }
  return due;
}

std::vector<Done> Outgoing::TakeAll() {
  queue_.clear();
  lent_.clear();
  std::vector<Done> dones;
  for (InUse& frame : in_use_) dones.push_back(std::move(frame.done));
  first_ += in_use_.size();
  in_use_.clear();
  return dones;
}

}  // namespace addend::shm
