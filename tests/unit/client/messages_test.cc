// The structs of the trainers' messages: the fields of ipc::Message that each uses, and the way
// back.
#include "lib/client/messages.h"

#include <gtest/gtest.h>

#include <cstring>

namespace addend::ipc {
namespace {

// Encodes and decodes a message.
template <typename Typed>
Typed Copy(const Typed& message) {
  return Typed::Decode(message.Encode());
}

// The fixed part differs from an empty message of this type in the given fields only.
void ExpectFixed(const Encoded& encoded, Message expected, Type type) {
  expected.type = type;
  EXPECT_EQ(std::memcmp(&encoded.fixed, &expected, sizeof(expected)), 0);
}

TEST(MessagesTest, InitHasTheTrainersPlaceAndTheJobsName) {
  const InitMessage message{3, 8, 1, 2, "job", /*version=*/7};
  Message fixed;
  fixed.version = 7;
  fixed.rank = 3;
  fixed.size = 8;
  fixed.local_rank = 1;
  fixed.local_size = 2;
  fixed.flags = kFlagRing | kFlagGuard;
  ExpectFixed(message.Encode(), fixed, Type::kInit);
  const InitMessage copy = Copy(message);
  EXPECT_EQ(copy.rank, 3);
  EXPECT_EQ(copy.size, 8);
  EXPECT_EQ(copy.local_rank, 1);
  EXPECT_EQ(copy.local_size, 2);
  EXPECT_EQ(copy.job, "job");
  EXPECT_EQ(copy.version, 7u);
  EXPECT_TRUE(copy.ring);
  EXPECT_TRUE(copy.guard);
  EXPECT_FALSE(Copy(InitMessage{.ring = false}).ring) << "as of older trainers";
  EXPECT_FALSE(Copy(InitMessage{.guard = false}).guard) << "as of older trainers";
}

TEST(MessagesTest, ProgressIsText) {
  ExpectFixed(ProgressMessage{"waiting"}.Encode(), {}, Type::kProgress);
  EXPECT_EQ(Copy(ProgressMessage{"waiting"}).text, "waiting");
}

TEST(MessagesTest, InitReplyHasThePlaceOrTheReasonOfTheRefusal) {
  const InitReplyMessage message{7, "why", 3, 8, 1, 2, 4, 5};
  Message fixed;
  fixed.code = 7;
  fixed.rank = 3;
  fixed.size = 8;
  fixed.local_rank = 1;
  fixed.local_size = 2;
  fixed.node_rank = 4;
  fixed.num_nodes = 5;
  ExpectFixed(message.Encode(), fixed, Type::kInitReply);
  const InitReplyMessage copy = Copy(message);
  EXPECT_EQ(copy.code, 7u);
  EXPECT_EQ(copy.reason, "why");
  EXPECT_EQ(copy.rank, 3);
  EXPECT_EQ(copy.size, 8);
  EXPECT_EQ(copy.local_rank, 1);
  EXPECT_EQ(copy.local_size, 2);
  EXPECT_EQ(copy.node_rank, 4);
  EXPECT_EQ(copy.num_nodes, 5);
}

TEST(MessagesTest, MembersCountsThePresentAndTheWaitingNodes) {
  Message fixed;
  fixed.num_nodes = 6;
  fixed.size = 2;
  ExpectFixed(MembersMessage{6, 2}.Encode(), fixed, Type::kMembers);
  EXPECT_EQ(Copy(MembersMessage{6, 2}).nodes, 6);
  EXPECT_EQ(Copy(MembersMessage{6, 2}).waiting, 2);
}

TEST(MessagesTest, FailureHasACodeAndAReason) {
  Message fixed;
  fixed.code = 5;
  ExpectFixed(FailureMessage{5, "why"}.Encode(), fixed, Type::kFailure);
  EXPECT_EQ(Copy(FailureMessage{5, "why"}).code, 5u);
  EXPECT_EQ(Copy(FailureMessage{5, "why"}).reason, "why");
}

TEST(MessagesTest, ShutdownIsEmpty) {
  ExpectFixed(ShutdownMessage().Encode(), {}, Type::kShutdown);
}

TEST(MessagesTest, DeclareHasTheShapeBehindTheFixedPart) {
  const DeclareMessage message{9, DType::kFloat64, ReduceOp::kMax, {2, 3}, "t"};
  Message fixed;
  fixed.request = 9;
  fixed.dtype = static_cast<uint8_t>(DType::kFloat64);
  fixed.op = static_cast<uint8_t>(ReduceOp::kMax);
  const Encoded encoded = message.Encode();
  ExpectFixed(encoded, fixed, Type::kDeclare);
  EXPECT_EQ(std::vector<int64_t>(encoded.dims.begin(), encoded.dims.end()), message.shape);
  const DeclareMessage copy = Copy(message);
  EXPECT_EQ(copy.request, 9u);
  EXPECT_EQ(copy.dtype, DType::kFloat64);
  EXPECT_EQ(copy.op, ReduceOp::kMax);
  EXPECT_EQ(copy.shape, message.shape);
  EXPECT_EQ(copy.name(), "t");
  EXPECT_EQ(copy.participants(), "");
}

TEST(MessagesTest, DeclarationOfSomeRanksHasThemBehindTheName) {
  const DeclareMessage message{.shape = {2}, .text = "t\x05", .participants_bytes = 1};
  const Encoded encoded = message.Encode();
  EXPECT_EQ(encoded.fixed.type, Type::kDeclareAmong);
  const auto copy = DeclareMessage::Decode(encoded);
  EXPECT_EQ(copy.name(), "t");
  EXPECT_EQ(copy.participants(), "\x05");
  Encoded wrong = encoded;
  wrong.fixed.bytes = 7;
  EXPECT_EQ(DeclareMessage::Decode(wrong).name(), "") << "which no tensor has";
}

TEST(MessagesTest, DeclaredRepeatsTheRequest) {
  const DeclaredMessage message{9, 4, 2, "why"};
  Message fixed;
  fixed.request = 9;
  fixed.tensor = 4;
  fixed.code = 2;
  ExpectFixed(message.Encode(), fixed, Type::kDeclared);
  const DeclaredMessage copy = Copy(message);
  EXPECT_EQ(copy.request, 9u);
  EXPECT_EQ(copy.tensor, 4u);
  EXPECT_EQ(copy.code, 2u);
  EXPECT_EQ(copy.reason, "why");
}

TEST(MessagesTest, UndeclareAttachAndAttachedNameATensor) {
  Message fixed;
  fixed.tensor = 4;
  ExpectFixed(UndeclareMessage{4}.Encode(), fixed, Type::kUndeclare);
  ExpectFixed(AttachMessage{4}.Encode(), fixed, Type::kAttach);
  ExpectFixed(AttachedMessage{4}.Encode(), fixed, Type::kAttached);
  EXPECT_EQ(Copy(UndeclareMessage{4}).tensor, 4u);
  EXPECT_EQ(Copy(AttachMessage{4}).tensor, 4u);
  EXPECT_EQ(Copy(AttachedMessage{4}).tensor, 4u);
}

TEST(MessagesTest, PushHasTheTimeOfCopyingInAsItsRequest) {
  const PushMessage message{4, 11, -3, true, false, 1234, 56};
  Message fixed;
  fixed.tensor = 4;
  fixed.round = 11;
  fixed.priority = -3;
  fixed.flags = kFlagEmpty;
  fixed.request = 1234;
  fixed.code = 56;
  ExpectFixed(message.Encode(), fixed, Type::kPush);
  const PushMessage copy = Copy(message);
  EXPECT_EQ(copy.tensor, 4u);
  EXPECT_EQ(copy.round, 11u);
  EXPECT_EQ(copy.priority, -3);
  EXPECT_TRUE(copy.empty);
  EXPECT_FALSE(copy.on_device);
  EXPECT_EQ(copy.copied_in_ns, 1234u);
  EXPECT_EQ(copy.spun_us, 56u);
  const PushMessage on_device = Copy(PushMessage{.tensor = 4, .round = 1, .on_device = true});
  EXPECT_TRUE(on_device.on_device);
  EXPECT_FALSE(on_device.empty);
}

TEST(MessagesTest, ResultHasARoundOrItsError) {
  const ResultMessage message{4, 11, 3, "why"};
  Message fixed;
  fixed.tensor = 4;
  fixed.round = 11;
  fixed.code = 3;
  ExpectFixed(message.Encode(), fixed, Type::kResult);
  const ResultMessage copy = Copy(message);
  EXPECT_EQ(copy.tensor, 4u);
  EXPECT_EQ(copy.round, 11u);
  EXPECT_EQ(copy.code, 3u);
  EXPECT_EQ(copy.reason, "why");
}

TEST(MessagesTest, EncodingCopiesNoText) {
  const ResultMessage message{.reason = std::string(1000, 'x')};
  EXPECT_EQ(message.Encode().text.data(), message.reason.data());
}

TEST(MessagesTest, DeviceGroupIdAndDeviceFailedAreText) {
  ExpectFixed(DeviceMessage{"0000:3b:00.0"}.Encode(), {}, Type::kDevice);
  EXPECT_EQ(Copy(DeviceMessage{"0000:3b:00.0"}).bus_id, "0000:3b:00.0");
  const std::string id("a\0b", 3);
  ExpectFixed(GroupIdMessage{id}.Encode(), {}, Type::kGroupId);
  EXPECT_EQ(Copy(GroupIdMessage{id}).id, id);
  ExpectFixed(DeviceFailedMessage{"why"}.Encode(), {}, Type::kDeviceFailed);
  const std::string longest(kMaxTextBytes + 1, 'x');
  EXPECT_EQ(Copy(DeviceFailedMessage{longest}).reason.size(), kMaxTextBytes);
}

TEST(MessagesTest, GroupHasItsMembersFlagsAndRoots) {
  const GroupMessage message{1, 4, false, true, true, {3, 0}};
  Message fixed;
  fixed.local_rank = 1;
  fixed.local_size = 4;
  fixed.flags = kFlagOrdered | kFlagDirect;
  ExpectFixed(message.Encode(), fixed, Type::kGroup);
  const GroupMessage copy = Copy(message);
  EXPECT_EQ(copy.member, 1u);
  EXPECT_EQ(copy.members, 4u);
  EXPECT_FALSE(copy.scatter);
  EXPECT_TRUE(copy.ordered);
  EXPECT_TRUE(copy.direct);
  EXPECT_EQ(copy.roots, (std::vector<uint32_t>{3, 0}));
  EXPECT_TRUE(Copy(GroupMessage{.scatter = true}).scatter);
}

TEST(MessagesTest, ContributeHasABitForEachMemberWithData) {
  const ContributeMessage message{4, 11, 0b101, true};
  Message fixed;
  fixed.tensor = 4;
  fixed.round = 11;
  fixed.request = 0b101;
  fixed.flags = kFlagDirect;
  ExpectFixed(message.Encode(), fixed, Type::kContribute);
  const ContributeMessage copy = Copy(message);
  EXPECT_EQ(copy.tensor, 4u);
  EXPECT_EQ(copy.round, 11u);
  EXPECT_EQ(copy.with_data, 0b101u);
  EXPECT_TRUE(copy.direct);
}

TEST(MessagesTest, StagedCountsBytesFromTheBeginning) {
  Message fixed;
  fixed.tensor = 4;
  fixed.round = 11;
  fixed.bytes = 64;
  ExpectFixed(StagedMessage{4, 11, 64}.Encode(), fixed, Type::kStaged);
  EXPECT_EQ(Copy(StagedMessage{4, 11, 64}).bytes, 64u);
  EXPECT_EQ(Copy(StagedMessage{4, 11, 64}).round, 11u);
}

TEST(MessagesTest, ArrivedFetchAndFetchedNameARange) {
  const Range range{4, 11, 32, 64};
  Message fixed;
  fixed.tensor = 4;
  fixed.round = 11;
  fixed.offset = 32;
  fixed.bytes = 64;
  ExpectFixed(ArrivedMessage{range}.Encode(), fixed, Type::kArrived);
  ExpectFixed(FetchMessage{range}.Encode(), fixed, Type::kFetch);
  ExpectFixed(FetchedMessage{range}.Encode(), fixed, Type::kFetched);
  const Range copy = Copy(FetchMessage{range}).range;
  EXPECT_EQ(copy.tensor, 4u);
  EXPECT_EQ(copy.round, 11u);
  EXPECT_EQ(copy.offset, 32u);
  EXPECT_EQ(copy.bytes, 64u);
  EXPECT_EQ(Copy(ArrivedMessage{range}).range.offset, 32u);
  EXPECT_EQ(Copy(FetchedMessage{range}).range.bytes, 64u);
}

TEST(MessagesTest, DirectNamesTheTensorAndTheSizeOfTheDmaBuf) {
  Message fixed;
  fixed.tensor = 4;
  fixed.bytes = 1 << 20;
  ExpectFixed(DirectMessage{4, 1 << 20}.Encode(), fixed, Type::kDirect);
  EXPECT_EQ(Copy(DirectMessage{4, 1 << 20}).tensor, 4u);
  EXPECT_EQ(Copy(DirectMessage{4, 1 << 20}).bytes, 1u << 20);
}

}  // namespace
}  // namespace addend::ipc
