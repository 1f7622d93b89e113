#include "lib/transport/outbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace addend {
namespace {

constexpr size_t kFrame = 64 << 10;
constexpr uint64_t kMiB = 1 << 20;

// A link that takes all frames and completes them when a test says so.
class SlowLink final : public Link {
 public:
  void Send(const FrameHeader& header, Bytes, Done done) override {
    sent.push_back(header);
    pending.push_back(std::move(done));
  }
  void Close(absl::Status) override {}
  std::string peer() const override { return "peer"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}
  // So many frames have left.
  void Complete(size_t frames) {
    for (; frames > 0 && !pending.empty(); --frames) {
      Done done = std::move(pending.front());
      pending.erase(pending.begin());
      done(absl::OkStatus());
    }
  }
  std::vector<FrameHeader> sent;
  std::vector<Done> pending;
};

class OutboxTest : public testing::Test {
 protected:
  void Push(Outbox* outbox, uint64_t place, int32_t priority = 0) {
    FrameHeader header;
    header.priority = priority;
    header.round = Round(place);
    outbox->Push(header, payload_, nullptr, place);
  }
  // `frames` that are spread evenly over the first `bytes` of the stream.
  void PushEvenly(Outbox* outbox, uint64_t frames, uint64_t bytes) {
    for (uint64_t i = 0; i < frames; ++i) Push(outbox, 1 + bytes * (2 * i + 1) / (2 * frames));
  }

  const std::vector<std::byte> payload_ = std::vector<std::byte>(kFrame);
  SlowLink much_link_, little_link_;
  Convoy convoy_{SendLimits()};
  int waiting_changes_ = 0;
  Outbox much_{&convoy_, [this](bool) { ++waiting_changes_; }};
  Outbox little_{&convoy_, [](bool) {}};
};

TEST_F(OutboxTest, AWindowOfBytesIsHandedToTheLink) {
  Outbox alone{SendLimits()};
  SlowLink link;
  alone.Attach(&link, Traits());
  for (uint64_t i = 0; i < 10; ++i) Push(&alone, 0);
  EXPECT_EQ(link.sent.size(), SendLimits().window_bytes / kFrame);
  link.Complete(1);
  EXPECT_EQ(link.sent.size(), SendLimits().window_bytes / kFrame + 1);
}

TEST_F(OutboxTest, UrgentFramesOvertake) {
  for (uint64_t i = 1; i <= 3; ++i) Push(&much_, i);
  Push(&much_, 4, /*priority=*/1);
  much_.Attach(&much_link_, Traits());
  EXPECT_EQ(much_link_.sent.front().round, Round(4));
}

TEST_F(OutboxTest, LinksOfAConvoyCarryTheirPartsSideBySide) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  const uint64_t bytes = 100 * kMiB;
  PushEvenly(&much_, 1200, bytes);
  PushEvenly(&little_, 400, bytes);
  // The port gives both links the same bandwidth; the link with little to carry must not use all of
  // it.
  while (much_.queued() > 0) {
    much_link_.Complete(1);
    little_link_.Complete(1);
    const double ahead = static_cast<double>(little_link_.sent.size()) / 400 -
                         static_cast<double>(much_link_.sent.size()) / 1200;
    ASSERT_LT(ahead, static_cast<double>(SendLimits().lead_bytes) / bytes + 2.0 / 400);
  }
  little_link_.Complete(400);
  EXPECT_EQ(little_link_.sent.size(), 400u) << "held by nobody any more";
}

TEST_F(OutboxTest, ALinkWithoutFramesDelaysNoOther) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  Push(&little_, 1);
  for (uint64_t i = 1; i <= 4; ++i) Push(&much_, i * 10 * kMiB);
  EXPECT_EQ(much_link_.sent.size(), 4u);
}

TEST_F(OutboxTest, ALostLinkDelaysNoOther) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  for (uint64_t i = 1; i <= 8; ++i) Push(&little_, i);
  Push(&much_, 10 * kMiB);
  EXPECT_TRUE(much_link_.sent.empty()) << "the window of the other is full";
  little_.Detach();
  EXPECT_EQ(much_link_.sent.size(), 1u);
}

TEST_F(OutboxTest, UrgentFramesDoNotWaitForLessUrgentOnes) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  for (uint64_t i = 1; i <= 8; ++i) Push(&little_, i, /*priority=*/-3);
  Push(&much_, 10 * kMiB, /*priority=*/-3);
  EXPECT_TRUE(much_link_.sent.empty());
  Push(&much_, 11 * kMiB, /*priority=*/-2);
  ASSERT_EQ(much_link_.sent.size(), 1u);
  EXPECT_EQ(much_link_.sent[0].round, Round(11 * kMiB));
}

TEST_F(OutboxTest, FramesWithoutAPlaceNeitherWaitNorDelayOthers) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  for (uint64_t i = 1; i <= 8; ++i) Push(&little_, 0);
  Push(&much_, 10 * kMiB);
  EXPECT_EQ(much_link_.sent.size(), 1u);
  for (uint64_t i = 1; i <= 8; ++i) Push(&little_, i);
  little_link_.Complete(8);
  Push(&much_, 0);
  EXPECT_EQ(much_link_.sent.size(), 2u);
}

TEST_F(OutboxTest, ReportsWhetherFramesWait) {
  Push(&much_, 1);
  EXPECT_EQ(waiting_changes_, 1) << "there is no link";
  much_.Attach(&much_link_, Traits());
  EXPECT_EQ(waiting_changes_, 2);
}

// Whatever is pushed, lost and made anew: as long as links take frames, all leave.
TEST_F(OutboxTest, NothingWaitsForEver) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int run = 0; run < 50; ++run) {
    Convoy convoy{SendLimits()};
    std::vector<std::unique_ptr<Outbox>> outboxes;
    std::vector<std::unique_ptr<SlowLink>> links;
    for (int i = 0; i < 5; ++i) {
      outboxes.push_back(std::make_unique<Outbox>(&convoy, [](bool) {}));
      links.push_back(std::make_unique<SlowLink>());
      outboxes.back()->Attach(links.back().get(), Traits());
    }
    uint64_t place = 1;
    for (int step = 0; step < 400; ++step) {
      const size_t which = random() % outboxes.size();
      Outbox& outbox = *outboxes[which];
      switch (random() % 8) {
        case 0:
          outbox.Detach();
          outbox.Clear(absl::UnavailableError("lost"));
          links[which] = std::make_unique<SlowLink>();
          break;
        case 1:
          outbox.Attach(links[which].get(), Traits());
          break;
        case 2:
        case 3:
          links[which]->Complete(1 + random() % 3);
          break;
        default:
          Push(&outbox, random() % 5 == 0 ? 0 : place += random() % kMiB,
               static_cast<int32_t>(random() % 3));
      }
    }
    size_t queued = 1;
    for (int turn = 0; queued > 0 && turn < 2000; ++turn) {
      queued = 0;
      for (size_t i = 0; i < outboxes.size(); ++i) {
        if (turn == 0) outboxes[i]->Attach(links[i].get(), Traits());
        links[i]->Complete(1);
        queued += outboxes[i]->queued();
      }
    }
    EXPECT_EQ(queued, 0u) << "run " << run;
    outboxes.clear();
  }
}

}  // namespace
}  // namespace addend
