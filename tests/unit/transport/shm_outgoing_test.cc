// What an end of a link in shared memory sends.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lib/transport/shm/outgoing.h"

namespace addend::shm {
namespace {

constexpr size_t kHead = sizeof(Record) + kFrameHeaderBytes;

class OutgoingTest : public ::testing::Test {
 protected:
  void PushFrame(const std::string& name, Kind kind = Kind::kFrame) {
    outgoing_.Push({.kind = kind}, FrameHeader{}, std::as_bytes(std::span<const char>(payload_)),
                   [this, name](absl::Status) { done_ += name; });
  }
  // The bytes that would be written next; `file_` is the descriptor that goes with them.
  size_t Gathered() {
    iovec vectors[Outgoing::kVectors];
    const int count = outgoing_.Gather(vectors, &file_);
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += vectors[i].iov_len;
    return bytes;
  }
  void WriteAll() {
    while (!outgoing_.empty()) outgoing_.Sent(Gathered());
  }
  std::string Due() {
    done_.clear();
    for (Done& done : outgoing_.TakeDue()) done(absl::OkStatus());
    return done_;
  }

  Outgoing outgoing_;
  std::string payload_ = "payload";
  std::string done_;
  int file_ = -1;
};

TEST_F(OutgoingTest, APayloadInTheSocketIsInUseUntilItIsWritten) {
  PushFrame("a");
  EXPECT_EQ(Gathered(), kHead + payload_.size());
  EXPECT_EQ(outgoing_.Sent(kHead + 3), 0u);
  EXPECT_EQ(Due(), "");
  EXPECT_EQ(Gathered(), payload_.size() - 3);
  EXPECT_EQ(outgoing_.Sent(payload_.size() - 3), 1u);
  EXPECT_EQ(Due(), "a");
  EXPECT_TRUE(outgoing_.empty());
}

TEST_F(OutgoingTest, ALentPayloadIsInUseUntilItIsReleased) {
  PushFrame("a", Kind::kLent);
  EXPECT_EQ(Gathered(), kHead) << "its bytes stay where they are";
  WriteAll();
  EXPECT_EQ(Due(), "");
  EXPECT_TRUE(outgoing_.Release(1).ok());
  EXPECT_EQ(Due(), "a");
}

TEST_F(OutgoingTest, DonesAreDueInTheOrderOfSending) {
  PushFrame("a", Kind::kLent);
  PushFrame("b");
  PushFrame("c", Kind::kLent);
  WriteAll();
  EXPECT_EQ(Due(), "") << "b is written, but a is not released";
  EXPECT_TRUE(outgoing_.Release(1).ok());
  EXPECT_EQ(Due(), "ab");
  EXPECT_TRUE(outgoing_.Release(1).ok());
  EXPECT_EQ(Due(), "c");
  EXPECT_EQ(outgoing_.in_use(), 0u);
}

TEST_F(OutgoingTest, NothingIsReleasedThatWasNotWritten) {
  PushFrame("a", Kind::kLent);
  EXPECT_FALSE(outgoing_.Release(1).ok());
  WriteAll();
  EXPECT_FALSE(outgoing_.Release(2).ok());
  EXPECT_TRUE(outgoing_.Release(1).ok());
  EXPECT_FALSE(outgoing_.Release(1).ok());
}

TEST_F(OutgoingTest, ADescriptorTravelsWithItsRecordAlone) {
  PushFrame("a");
  outgoing_.Push({.kind = Kind::kSegment}, 7);
  PushFrame("b");
  EXPECT_EQ(Gathered(), kHead + payload_.size());
  EXPECT_EQ(file_, -1);
  outgoing_.Sent(Gathered());
  EXPECT_EQ(Gathered(), sizeof(Record));
  EXPECT_EQ(file_, 7);
  outgoing_.Sent(5);
  EXPECT_EQ(Gathered(), sizeof(Record) - 5 + kHead + payload_.size());
  EXPECT_EQ(file_, -1) << "it went with the first byte";
}

TEST_F(OutgoingTest, WhatIsLeftAtTheEndIsReturnedInOrder) {
  PushFrame("a", Kind::kLent);
  PushFrame("b");
  WriteAll();
  PushFrame("c");
  for (Done& done : outgoing_.TakeAll()) done(absl::CancelledError("the end"));
  EXPECT_EQ(done_, "abc");
  EXPECT_TRUE(outgoing_.empty());
}

}  // namespace
}  // namespace addend::shm
