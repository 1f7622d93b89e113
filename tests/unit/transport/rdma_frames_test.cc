// The decisions of both ends of a link over RDMA, without a queue pair: which frames may leave, and
// where payloads may be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "lib/transport/rdma/address.h"
#include "lib/transport/rdma/incoming.h"
#include "lib/transport/rdma/message.h"
#include "lib/transport/rdma/outgoing.h"

namespace addend::rdma {
namespace {

FrameHeader HeaderOf(uint64_t partition, size_t bytes) {
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.partition = PartitionId(partition);
  header.payload_bytes = static_cast<uint32_t>(bytes);
  return header;
}

// ---- messages ----

std::vector<std::byte> Encoded(const MessageHead& head, const FrameHeader* header, Bytes payload) {
  std::vector<std::byte> bytes(kMessageBytesMax);
  bytes.resize(EncodeMessage(head, header, payload, bytes.data()));
  return bytes;
}

TEST(Message, AFrameArrivesAsItWasSent) {
  const std::vector<std::byte> payload(kInlinePayloadMax, std::byte{7});
  const FrameHeader header = HeaderOf(5, payload.size());
  const auto bytes = Encoded({.kind = MessageKind::kFrame, .credits = 3}, &header, payload);
  EXPECT_EQ(bytes.size(), kMessageBytesMax);
  const auto message = DecodeMessage(bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->head.credits, 3);
  EXPECT_EQ(message->header.partition, PartitionId(5));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(message->payload.data()), payload.size()),
            std::string(payload.size(), 7));
}

TEST(Message, AGrantArrivesAsItWasSent) {
  const auto bytes = Encoded({.kind = MessageKind::kGrant,
                              .lane = 2,
                              .credits = 65535,
                              .number = ~0u,
                              .address = 0x123456789abcdef0,
                              .key = 0xfedcba98},
                             nullptr, {});
  const auto message = DecodeMessage(bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->head.kind, MessageKind::kGrant);
  EXPECT_EQ(message->head.lane, 2);
  EXPECT_EQ(message->head.credits, 65535);
  EXPECT_EQ(message->head.number, ~0u);
  EXPECT_EQ(message->head.address, 0x123456789abcdef0u);
  EXPECT_EQ(message->head.key, 0xfedcba98u);
}

TEST(Message, InvalidMessagesAreRefused) {
  const FrameHeader header = HeaderOf(1, 100);
  const std::vector<std::byte> payload(100);
  const auto whole = Encoded({.kind = MessageKind::kFrame}, &header, payload);
  const Bytes bytes(whole);
  EXPECT_TRUE(absl::IsDataLoss(DecodeMessage(bytes.first(kMessageHeadBytes - 1)).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeMessage(bytes.first(kMessageHeadBytes + 95)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeMessage(bytes.first(bytes.size() - 1)).status()));
  auto unknown = whole;
  unknown[0] = std::byte{9};
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeMessage(unknown).status()));
  auto damaged = whole;
  damaged[kMessageHeadBytes + 40] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(DecodeMessage(damaged).status()));
}

TEST(Message, RandomBytesNeverDecodeToMoreThanTheyHold) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const FrameHeader header = HeaderOf(1, 50);
  const auto whole = Encoded({.kind = MessageKind::kFrame}, &header, std::vector<std::byte>(50));
  for (int i = 0; i < 20000; ++i) {
    auto bytes = whole;
    for (int flips = random() % 4; flips >= 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
    }
    bytes.resize(random() % (bytes.size() + 1));
    const auto message = DecodeMessage(bytes);
    if (!message.ok()) continue;
    EXPECT_LE(message->payload.size(), bytes.size());
  }
}

// ---- frames that leave ----

class OutgoingTest : public testing::Test {
 protected:
  void Push(size_t bytes) {
    frames_.Push(HeaderOf(pushed_++, bytes), Bytes(memory_).first(bytes),
                 [this](absl::Status) { ++done_; });
  }
  int LeaveAll() {
    int left = 0;
    while (frames_.Next() != nullptr) ++left;
    return left;
  }
  int Done() {
    std::vector<addend::Done> done;
    frames_.CollectDone(&done);
    for (auto& one : done) one(absl::OkStatus());
    return done_;
  }
  static constexpr size_t kLarge = 100000;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kLarge);
  OutgoingFrames frames_;
  uint64_t pushed_ = 0;
  int done_ = 0;
};

TEST_F(OutgoingTest, NoMoreMessagesLeaveThanThereIsCredit) {
  for (int i = 0; i < 3 * kFrameCredits; ++i) Push(10);
  EXPECT_EQ(LeaveAll(), kFrameCredits);
  EXPECT_EQ(Done(), kFrameCredits) << "a payload inside a message is not needed any more";
  ASSERT_TRUE(frames_.AddCredits(5).ok());
  EXPECT_EQ(LeaveAll(), 5);
  EXPECT_TRUE(absl::IsDataLoss(frames_.AddCredits(kFrameCredits + 1))) << "more than were used";
}

TEST_F(OutgoingTest, ALargePayloadIsNeededUntilItIsWritten) {
  Push(kLarge);
  EXPECT_EQ(LeaveAll(), 1);
  EXPECT_EQ(Done(), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(frames_.Written(0))) << "nothing was granted";
  ASSERT_TRUE(frames_.Granted(0).ok());
  EXPECT_FALSE(frames_.Granted(0).ok()) << "a grant is for one write";
  EXPECT_TRUE(frames_.busy());
  ASSERT_TRUE(frames_.Written(0).ok());
  EXPECT_FALSE(frames_.busy());
  EXPECT_EQ(Done(), 1);
}

TEST_F(OutgoingTest, AnnouncedPayloadsAreLimited) {
  for (int i = 0; i < kAnnouncedMax + 3; ++i) Push(kLarge);
  EXPECT_EQ(LeaveAll(), kAnnouncedMax);
  ASSERT_TRUE(frames_.Dropped(0).ok());
  EXPECT_EQ(LeaveAll(), 1);
}

TEST_F(OutgoingTest, TheByteLimitAlwaysLetsOnePayloadLeave) {
  frames_.LimitAnnounced(kLarge + 1);
  for (int i = 0; i < 3; ++i) Push(kLarge);
  EXPECT_EQ(LeaveAll(), 1);
  frames_.LimitAnnounced(1);
  ASSERT_TRUE(frames_.Dropped(0).ok());
  EXPECT_EQ(LeaveAll(), 1);
}

TEST_F(OutgoingTest, DonesRunInTheOrderOfPushing) {
  Push(kLarge);
  Push(10);
  EXPECT_EQ(LeaveAll(), 2);
  EXPECT_EQ(Done(), 0) << "the second is done, but the first is not";
  ASSERT_TRUE(frames_.Granted(0).ok());
  ASSERT_TRUE(frames_.Written(0).ok());
  EXPECT_EQ(Done(), 2);
}

TEST_F(OutgoingTest, NumbersAreExtendedFromTheirLowBits) {
  for (int i = 0; i < 5; ++i) Push(10);
  LeaveAll();
  Done();
  Push(kLarge);
  LeaveAll();
  EXPECT_EQ(frames_.NumberOf(5), 5u);
}

// ---- frames that come ----

class IncomingTest : public testing::Test, public FrameHost {
 protected:
  absl::Status Grant(uint32_t number, MutableBytes room, Registered*) override {
    (room.empty() ? dropped_ : granted_).push_back(number);
    return absl::OkStatus();
  }
  absl::Status FreeBuffer(int buffer) override {
    freed_.push_back(buffer);
    return absl::OkStatus();
  }
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    placed_.push_back(header.partition.value());
    if (drop_) return MutableBytes();
    return MutableBytes(rooms_.emplace_back(header.payload_bytes));
  }
  absl::Status Take(const FrameHeader& header, Bytes payload) override {
    taken_.push_back(header.partition.value());
    taken_bytes_ += payload.size();
    return absl::OkStatus();
  }
  bool closing() const override { return false; }

  void Announce(uint64_t partition, size_t bytes) {
    ASSERT_TRUE(frames_.Announce(HeaderOf(partition, bytes)).ok());
    ASSERT_TRUE(frames_.Advance().ok());
  }
  void Inline(uint64_t partition, size_t bytes, int buffer) {
    frames_.Add(HeaderOf(partition, bytes), Bytes(memory_).first(bytes), buffer);
    ASSERT_TRUE(frames_.Advance().ok());
  }
  void Written(uint32_t number, size_t bytes) {
    ASSERT_TRUE(frames_.Written(number, bytes).ok());
    ASSERT_TRUE(frames_.Advance().ok());
  }

  using Numbers = std::vector<uint64_t>;
  IncomingFrames frames_{this};
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  std::deque<std::vector<std::byte>> rooms_;
  bool drop_ = false;
  std::vector<uint32_t> granted_, dropped_;
  std::vector<int> freed_;
  Numbers placed_, taken_;
  size_t taken_bytes_ = 0;
};

TEST_F(IncomingTest, APayloadIsTakenWhenItHasBeenWritten) {
  Announce(1, 10000);
  EXPECT_EQ(granted_, std::vector<uint32_t>{0});
  EXPECT_EQ(taken_, Numbers{});
  Written(0, 10000);
  EXPECT_EQ(taken_, Numbers{1});
  EXPECT_EQ(taken_bytes_, 10000u);
}

TEST_F(IncomingTest, FramesAreTakenInTheOrderInWhichTheyWereSent) {
  Announce(1, 10000);
  Inline(2, 10, 7);
  Announce(3, 10000);
  EXPECT_EQ(placed_, (Numbers{1, 2, 3})) << "in the order of sending";
  EXPECT_EQ(freed_, std::vector<int>{7}) << "credit comes back although the frame has to wait";
  Written(2, 10000);
  EXPECT_EQ(taken_, Numbers{});
  Written(0, 10000);
  EXPECT_EQ(taken_, (Numbers{1, 2, 3}));
}

TEST_F(IncomingTest, TwoPayloadsOfAPartitionAreNeverUnderWayAtOnce) {
  Announce(1, 10000);
  Announce(1, 10000);
  EXPECT_EQ(granted_, std::vector<uint32_t>{0});
  Written(0, 10000);
  EXPECT_EQ(granted_, (std::vector<uint32_t>{0, 1}));
}

TEST_F(IncomingTest, APayloadWaitsForAFrameOfItsPartitionThatIsStillToBeTaken) {
  Announce(1, 10000);
  Inline(2, 0, 7);
  Announce(2, 10000);
  EXPECT_EQ(placed_, Numbers{1}) << "what the sink makes of the second decides about the third";
  Written(0, 10000);
  EXPECT_EQ(placed_, (Numbers{1, 2}));
}

TEST_F(IncomingTest, NoMoreIsGrantedThanThereAreReceives) {
  for (int i = 0; i < 2 * kAnnouncedMax; ++i) Announce(i, 5000);
  EXPECT_EQ(granted_.size(), static_cast<size_t>(kAnnouncedMax));
  EXPECT_TRUE(absl::IsDataLoss(frames_.Announce(HeaderOf(99, 5000)))) << "more than was agreed";
}

TEST_F(IncomingTest, GrantsAreLimitedButOneMayAlwaysBeLarger) {
  Announce(1, 2 * IncomingFrames::kGrantedBytesMax);
  Announce(2, 10000);
  EXPECT_EQ(granted_, std::vector<uint32_t>{0});
  Written(0, 2 * IncomingFrames::kGrantedBytesMax);
  EXPECT_EQ(granted_, (std::vector<uint32_t>{0, 1}));
}

TEST_F(IncomingTest, AnUnwantedPayloadIsNotWritten) {
  drop_ = true;
  Announce(1, 10000);
  EXPECT_EQ(dropped_, std::vector<uint32_t>{0});
  EXPECT_EQ(taken_, Numbers{1});
  EXPECT_EQ(taken_bytes_, 0u);
}

TEST_F(IncomingTest, AWriteThatWasNotGrantedIsAnError) {
  Announce(1, 10000);
  EXPECT_TRUE(absl::IsDataLoss(frames_.Written(1, 10000)));
  EXPECT_TRUE(absl::IsDataLoss(frames_.Written(0, 9999)));
  Written(0, 10000);
  EXPECT_TRUE(absl::IsDataLoss(frames_.Written(0, 10000)));
}

// ---- addresses ----

PortAddress Port(Fabric fabric, std::initializer_list<uint8_t> start, uint8_t last) {
  PortAddress port{.device = "nic0:1", .fabric = fabric, .gid = {}, .lid = 0, .mtu_bytes = 4096};
  std::copy(start.begin(), start.end(), port.gid.begin());
  port.gid[15] = last;
  return port;
}
const std::initializer_list<uint8_t> kIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0};

TEST(PortAddress, GidsAreFormattedAsAddresses) {
  EXPECT_EQ(FormatGid(Port(Fabric::kRoceV2, kIpv4, 1).gid), "10.77.0.1");
  EXPECT_EQ(FormatGid(Port(Fabric::kRoceV2, {0xfe, 0x80}, 1).gid), "fe80::1");
}

TEST(PortAddress, PortsOfOneKindReachEachOther) {
  const PortAddress v4 = Port(Fabric::kRoceV2, kIpv4, 1);
  EXPECT_TRUE(CheckReaches(v4, Port(Fabric::kRoceV2, kIpv4, 2)).ok());
  EXPECT_FALSE(CheckReaches(v4, Port(Fabric::kRoceV1, kIpv4, 2)).ok());
  EXPECT_FALSE(CheckReaches(v4, Port(Fabric::kRoceV2, {0xfe, 0x80}, 2)).ok());
  EXPECT_FALSE(CheckReaches(v4, Port(Fabric::kInfiniBand, kIpv4, 2)).ok());
  const PortAddress ib = Port(Fabric::kInfiniBand, {0xfe, 0x80}, 1);
  EXPECT_TRUE(CheckReaches(ib, Port(Fabric::kInfiniBand, {0xfe, 0x80}, 2)).ok());
  EXPECT_FALSE(CheckReaches(ib, Port(Fabric::kInfiniBand, {0xfe, 0xc0}, 2)).ok()) << "a subnet";
}

TEST(PortAddress, APortIsItsOwnLoopback) {
  const PortAddress port = Port(Fabric::kRoceV2, kIpv4, 1);
  EXPECT_TRUE(IsLoopback(port, port));
  EXPECT_FALSE(IsLoopback(port, Port(Fabric::kRoceV2, kIpv4, 2)));
}

}  // namespace
}  // namespace addend::rdma
