#include "lib/transport/outbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/shard/fake_loop.h"

namespace addend {
namespace {

constexpr size_t kFrame = 64 << 10;
constexpr uint64_t kMiB = 1 << 20;

EncodedPayload HalfOf(Bytes payload, std::shared_ptr<const void> keep) {
  return {.content = {.bytes = payload.first(payload.size() / 2), .encoding = Encoding::kBlocks},
          .keep = std::move(keep)};
}

// A link that takes all frames and completes them when a test says so.
class SlowLink final : public Link {
 public:
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    sent.push_back(header);
    sizes.push_back(payload.size());
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
  std::vector<size_t> sizes;  // of their payloads
  std::vector<Done> pending;
};

class OutboxTest : public testing::Test {
 protected:
  void Push(Outbox* outbox, uint64_t place, int32_t priority = 0) {
    FrameHeader header;
    header.partition = PartitionId(static_cast<uint32_t>(place % 32));
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

TEST_F(OutboxTest, LessUrgentFramesDoNotRunAhead) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  for (uint64_t i = 1; i <= 30; ++i) Push(&much_, 10 * kMiB + i, /*priority=*/-2);
  Push(&little_, 1, /*priority=*/-3);  // pushed before, as by a backward pass
  while (much_.queued() * (kFrame + kFrameHeaderBytes) > SendLimits().lead_bytes) {
    EXPECT_TRUE(little_link_.sent.empty());
    much_link_.Complete(1);
  }
  EXPECT_EQ(little_link_.sent.size(), 1u) << "few bytes that are more urgent wait";
}

TEST_F(OutboxTest, UrgentFramesOfALostLinkDelayNoOther) {
  much_.Attach(&much_link_, Traits());
  little_.Attach(&little_link_, Traits());
  for (uint64_t i = 1; i <= 30; ++i) Push(&much_, 10 * kMiB + i, /*priority=*/-2);
  Push(&little_, 1, /*priority=*/-3);
  EXPECT_TRUE(little_link_.sent.empty());
  much_.Detach();
  EXPECT_EQ(little_link_.sent.size(), 1u);
  Push(&little_, 2, /*priority=*/-3);
  EXPECT_EQ(little_link_.sent.size(), 2u);
  SlowLink again;
  much_.Attach(&again, Traits());
  Push(&little_, 3, /*priority=*/-3);
  EXPECT_EQ(little_link_.sent.size(), 2u) << "the link is open again";
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

// A backward pass pushes tensors 7 to 0, of which the next forward pass needs 0 first.
TEST_F(OutboxTest, ASweepIsSentInTheOrderOfThePushesWithinAClassUntilItsEnd) {
  Outbox outbox{&convoy_, [](bool) {}};
  const auto sweep = [&](int from, int to) {
    for (int tensor = from; tensor >= to; --tensor) {
      convoy_.OnPush(-tensor, kFrame);
      Push(&outbox, 0, -tensor);
    }
  };
  const auto sent = [&] {
    SlowLink link;
    outbox.Attach(&link, Traits());
    while (outbox.queued() > 0) link.Complete(1);
    outbox.Detach();
    std::vector<int> tensors;
    for (const FrameHeader& header : link.sent) tensors.push_back(-header.priority);
    return tensors;
  };
  sweep(7, 0);
  EXPECT_EQ(sent(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  sweep(7, 1);
  EXPECT_EQ(sent(), (std::vector<int>{1, 3, 2, 5, 4, 7, 6})) << "four classes of two tensors";
  sweep(0, 0);
  sweep(7, 1);
  sweep(0, 0);
  EXPECT_EQ(sent(), (std::vector<int>{0, 0, 1, 2, 3, 4, 5, 6, 7})) << "the forward pass waits";
}

// ---- the pace of results ----

class PacedOutboxTest : public OutboxTest {
 protected:
  static SendLimits Limits() {
    SendLimits limits;
    limits.contributions_awaited = 4 * kFrame;
    limits.awaited_for_each_link = kFrame;
    return limits;
  }
  void PushTo(Outbox* outbox, uint32_t partition, uint64_t place, int32_t priority = 0) {
    FrameHeader header;
    header.partition = PartitionId(partition);
    header.round = Round(partition);
    header.priority = priority;
    outbox->Push(header, payload_, nullptr, place);
  }

  FakeLoop loop_;
  Convoy paced_{Limits()};
  Outbox first_{&paced_, [](bool) {}}, second_{&paced_, [](bool) {}};
};

TEST_F(PacedOutboxTest, ContributionsOfAllLinksTogetherWaitForResults) {
  paced_.PaceBy(&loop_);
  first_.Attach(&much_link_, Traits());
  second_.Attach(&little_link_, Traits());
  for (uint32_t i = 1; i <= 8; ++i) PushTo(i % 2 == 1 ? &first_ : &second_, i, i);
  EXPECT_EQ(much_link_.sent.size() + little_link_.sent.size(), 4u);
  much_link_.Complete(4);
  little_link_.Complete(4);
  EXPECT_EQ(much_link_.sent.size() + little_link_.sent.size(), 4u) << "they have left, no more";
  second_.Arrived(PartitionId(2));
  ASSERT_EQ(much_link_.sent.size(), 3u) << "the frame that is furthest behind";
  EXPECT_EQ(much_link_.sent.back().round, Round(5));
  PushTo(&second_, 9, 0, /*priority=*/INT32_MAX);
  EXPECT_EQ(little_link_.sent.back().round, Round(9)) << "an answer is not part of the stream";
}

TEST_F(PacedOutboxTest, WithoutAResultTheyGoOnAfterAMoment) {
  paced_.PaceBy(&loop_);
  first_.Attach(&much_link_, Traits());
  for (uint32_t i = 1; i <= 40; ++i) PushTo(&first_, i, i);
  absl::Duration passed;
  for (; first_.queued() > 0 && passed < absl::Seconds(2); passed += ContributionPace::kSilence) {
    much_link_.Complete(40);
    loop_.Pass(ContributionPace::kSilence);
  }
  EXPECT_EQ(first_.queued(), 0u);
  EXPECT_GT(passed, 10 * ContributionPace::kSilence);
}

TEST_F(PacedOutboxTest, ALostLinkLeavesItsRoomToOthers) {
  paced_.PaceBy(&loop_);
  first_.Attach(&much_link_, Traits());
  second_.Attach(&little_link_, Traits());
  for (uint32_t i = 1; i <= 4; ++i) PushTo(&first_, i, i);
  for (uint32_t i = 5; i <= 8; ++i) PushTo(&second_, i, i);
  EXPECT_TRUE(little_link_.sent.empty());
  first_.Detach();
  EXPECT_EQ(little_link_.sent.size(), 4u);
}

// Its results need no network, and say nothing of it.
TEST_F(PacedOutboxTest, ResultsOfTheColocatedServerDelayNoForgiveness) {
  SlowLink here;
  Outbox colocated(&paced_, [](bool) {});
  paced_.PaceBy(&loop_);
  first_.Attach(&much_link_, Traits());
  colocated.Attach(&here, Traits{.name = "here", .reach = "here", .by_reference = true});
  for (uint32_t i = 1; i <= 8; ++i) {
    PushTo(&first_, i, i);
    much_link_.Complete(1);
  }
  ASSERT_EQ(much_link_.sent.size(), 4u);
  PushTo(&colocated, 9, 9);
  loop_.Pass(ContributionPace::kSilence * 0.9);
  colocated.Arrived(PartitionId(9));
  loop_.Pass(ContributionPace::kSilence * 0.1);
  EXPECT_EQ(much_link_.sent.size(), 6u);
}

TEST_F(PacedOutboxTest, WithoutALoopNoPaceIsKept) {
  first_.Attach(&much_link_, Traits());
  for (uint32_t i = 1; i <= 8; ++i) {
    PushTo(&first_, i, i);
    much_link_.Complete(1);
  }
  EXPECT_EQ(much_link_.sent.size(), 8u);
}

// Whatever is pushed, lost and made anew: as long as links take frames, all leave.
TEST_F(OutboxTest, NothingWaitsForEver) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int run = 0; run < 50; ++run) {
    FakeLoop loop;
    SendLimits limits;
    if (run % 2 == 1) limits.contributions_awaited = 4 * kFrame;
    Convoy convoy{limits};
    convoy.PaceBy(&loop);
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
      switch (random() % 10) {
        case 8:
          outbox.Arrived(PartitionId(random() % 32));
          break;
        case 9:
          loop.Pass(absl::Milliseconds(random() % 10));
          break;
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
        default: {
          const auto priority = static_cast<int32_t>(random() % 20);
          if (random() % 2 == 0) convoy.OnPush(priority, kFrame);
          Push(&outbox, random() % 5 == 0 ? 0 : place += random() % kMiB, priority);
        }
      }
    }
    size_t queued = 1;
    for (int turn = 0; queued > 0 && turn < 2000; ++turn) {
      queued = 0;
      loop.Pass(ContributionPace::kSilence);
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

// ---- encodings ----

TEST_F(OutboxTest, EncodesAPayloadWhenItIsHandedToTheLink) {
  Outbox outbox(SendLimits{.window_bytes = 1});
  const auto memory = std::make_shared<int>();
  int encoded = 0;
  const auto encode = [&] {
    ++encoded;
    return HalfOf(payload_, memory);
  };
  outbox.Push({}, payload_, nullptr, 0, nullptr, encode);
  outbox.Push({}, payload_, nullptr, 0, nullptr, encode);
  EXPECT_EQ(encoded, 0);
  outbox.Attach(&much_link_, Traits(), /*encodes=*/true);
  EXPECT_EQ(encoded, 1) << "the window has room for a frame";
  ASSERT_EQ(much_link_.sizes, std::vector<size_t>{kFrame / 2});
  EXPECT_EQ(much_link_.sent[0].encoding, Encoding::kBlocks);
  EXPECT_EQ(much_link_.sent[0].uncompressed_bytes, kFrame);
  EXPECT_EQ(memory.use_count(), 2) << "the encoding is kept until it is sent";
  much_link_.Complete(2);
  EXPECT_EQ(encoded, 2);
  much_link_.Complete(2);
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(OutboxTest, WithoutGainThePayloadTravelsAsItIs) {
  Outbox outbox(SendLimits{});
  outbox.Attach(&much_link_, Traits(), /*encodes=*/true);
  outbox.Push({}, payload_, nullptr, 0, nullptr, [] { return EncodedPayload(); });
  EXPECT_EQ(much_link_.sizes, std::vector<size_t>{kFrame});
  EXPECT_EQ(much_link_.sent[0].encoding, Encoding::kRaw);
}

TEST_F(OutboxTest, NothingIsEncodedForAPeerOfAnOlderVersionNorByReference) {
  const auto encode = [&] { return HalfOf(payload_, nullptr); };
  Outbox older(SendLimits{});
  older.Attach(&much_link_, Traits(), /*encodes=*/false);
  older.Push({}, payload_, nullptr, 0, nullptr, encode);
  EXPECT_EQ(much_link_.sent[0].encoding, Encoding::kRaw);
  Outbox here(SendLimits{});
  here.Attach(&little_link_, Traits{.name = "here", .reach = "here", .by_reference = true},
              /*encodes=*/true);
  here.Push({}, payload_, nullptr, 0, nullptr, encode);
  EXPECT_EQ(little_link_.sent[0].encoding, Encoding::kRaw);
}

}  // namespace
}  // namespace addend
