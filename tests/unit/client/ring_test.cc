// The queue in shared memory: order beside a socket, room, bells, and a peer that breaks the rules.
#include "lib/client/ring.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace addend::ipc {
namespace {

using State = RingReader::State;

class RingTest : public testing::Test {
 protected:
  static Message Numbered(uint32_t tensor) {
    Message message;
    message.tensor = tensor;
    return message;
  }

  const std::unique_ptr<RingMemory> memory_ = std::make_unique<RingMemory>();
  RingWriter writer_{memory_.get()};
  RingReader reader_{memory_.get()};
};

TEST_F(RingTest, MessagesArriveInOrder) {
  EXPECT_EQ(reader_.Look(0), State::kEmpty);
  EXPECT_TRUE(reader_.IsEmpty());
  ASSERT_TRUE(writer_.Write(Numbered(1), 0));
  ASSERT_TRUE(writer_.Write(Numbered(2), 0));
  EXPECT_FALSE(reader_.IsEmpty());
  for (const uint32_t tensor : {1u, 2u}) {
    ASSERT_EQ(reader_.Look(0), State::kReady);
    EXPECT_EQ(reader_.Take().tensor, tensor);
  }
  EXPECT_EQ(reader_.Look(0), State::kEmpty);
}

TEST_F(RingTest, EntryAwaitsTheMessagesOfTheSocketBeforeIt) {
  ASSERT_TRUE(writer_.Write(Numbered(1), /*after=*/2));
  EXPECT_EQ(reader_.Look(1), State::kEmpty);
  EXPECT_TRUE(reader_.AwaitsSocket(1));
  EXPECT_FALSE(reader_.IsEmpty());
  EXPECT_EQ(reader_.Look(2), State::kReady);
  EXPECT_FALSE(reader_.AwaitsSocket(2));
}

TEST_F(RingTest, FullQueueTakesNothingUntilAnEntryIsRead) {
  for (uint32_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(writer_.Write(Numbered(i), 0));
  EXPECT_FALSE(writer_.Write(Numbered(0), 0));
  EXPECT_EQ(reader_.Take().tensor, 0u);
  EXPECT_TRUE(writer_.Write(Numbered(kRingEntries), 0));
  for (uint32_t i = 1; i <= kRingEntries; ++i) EXPECT_EQ(reader_.Take().tensor, i);
}

TEST_F(RingTest, SleepingReaderGetsASingleBell) {
  ASSERT_TRUE(writer_.Write(Numbered(1), 0));
  EXPECT_FALSE(writer_.MustRing()) << "the reader is awake";
  reader_.Sleep();
  ASSERT_TRUE(writer_.Write(Numbered(2), 0));
  EXPECT_TRUE(writer_.MustRing());
  ASSERT_TRUE(writer_.Write(Numbered(3), 0));
  EXPECT_FALSE(writer_.MustRing()) << "the first bell has not been read";
  reader_.OnBell();
  EXPECT_TRUE(writer_.MustRing());
  reader_.OnBell();
  reader_.Woke();
  EXPECT_FALSE(writer_.MustRing());
}

TEST_F(RingTest, SleepersAreCounted) {
  reader_.Sleep();
  reader_.Sleep();
  reader_.Woke();
  EXPECT_TRUE(writer_.MustRing()) << "another thread sleeps";
}

TEST_F(RingTest, PeerThatBreaksTheRulesIsNoticed) {
  memory_->written = kRingEntries + 1;
  EXPECT_EQ(reader_.Look(~uint64_t{0}), State::kBroken);
  EXPECT_FALSE(reader_.AwaitsSocket(0));
  memory_->read = 1000;  // of entries that nobody has written
  EXPECT_FALSE(writer_.Write(Numbered(1), 0));
}

// The bell is an eventfd. A lost bell would leave the reader waiting.
TEST_F(RingTest, NoMessageIsLostBetweenThreads) {
  constexpr uint32_t kMessages = 200'000;
  const int bell = ::eventfd(0, EFD_SEMAPHORE);
  ASSERT_GE(bell, 0);
  std::thread writer([&] {
    for (uint32_t i = 0; i < kMessages; ++i) {
      while (!writer_.Write(Numbered(i), 0)) std::this_thread::yield();
      const uint64_t one = 1;
      if (writer_.MustRing()) {
        EXPECT_EQ(::write(bell, &one, sizeof(one)), 8);
      }
    }
  });
  for (uint32_t next = 0; next < kMessages;) {
    if (reader_.Look(0) == State::kReady) {
      ASSERT_EQ(reader_.Take().tensor, next++);
      continue;
    }
    reader_.Sleep();
    uint64_t rung = 0;
    if (reader_.IsEmpty()) {
      EXPECT_EQ(::read(bell, &rung, sizeof(rung)), 8);
    }
    reader_.Woke();
    if (rung != 0) reader_.OnBell();
  }
  writer.join();
  ::close(bell);
}

}  // namespace
}  // namespace addend::ipc
