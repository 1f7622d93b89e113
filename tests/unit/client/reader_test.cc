// The meaning of the agent's messages: packets go in, and the callers' calls tell the outcome. The
// test's own thread is the reader's, except where a test says so.
#include "lib/client/reader.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>

#include <deque>

#include "tests/unit/client/parts.h"

namespace addend::client {
namespace {

using testing::Each;
using testing::HasSubstr;

class ReaderTest : public ClientPartsTest {
 protected:
  // Reads these packets. After the last of them the reader is woken.
  void Read(std::vector<Packet> packets) {
    for (Packet& packet : packets) received_.push_back(std::move(packet));
    while (reader_.Deliver() == Reading::Step::kDelivered) {
    }
  }
  template <typename Typed>
  void Read(const Typed& message, std::vector<GuardedFd> fds = {}) {
    std::vector<Packet> packets;
    packets.push_back(PacketOf(message.Encode(), std::move(fds)));
    Read(std::move(packets));
  }

  std::shared_ptr<Tensor> DeclareTensor() {
    std::shared_ptr<Tensor> tensor;
    const auto answer = [&](uint64_t request) {
      Read(ipc::DeclaredMessage{.request = request, .tensor = kNumber}, MakeSegments());
    };
    const Error error = Declare("t", answer, &tensor);
    EXPECT_TRUE(error.ok()) << error.text;
    return tensor;
  }

  // The job's error; fails the test while there is none.
  Error Failure() {
    uint64_t tag = 0;
    return operations_.NextDone(0, &tag);
  }

  std::deque<Packet> received_;
  Error broken_;         // of the connection, after the packets
  bool closed_ = false;  // the connection, after the packets
  AgentReader reader_{"/agent", /*nodes=*/3,
                      [this](Packet* packet, AgentSocket::Event* event) {
                        *event =
                            closed_ ? AgentSocket::Event::kClosed : AgentSocket::Event::kTimeout;
                        if (received_.empty()) return broken_;
                        *packet = std::move(received_.front());
                        received_.pop_front();
                        *event = AgentSocket::Event::kPacket;
                        return Error{};
                      },
                      &operations_, &device_rounds_};
};

TEST_F(ReaderTest, DeclarationIsAnsweredWithItsSegments) {
  const auto tensor = DeclareTensor();
  EXPECT_EQ(tensor->number, kNumber);
  EXPECT_EQ(tensor->contribution->bytes(), ipc::SlotBytes(tensor->bytes));
  EXPECT_EQ(tensor->results->bytes(), 2 * ipc::SlotBytes(tensor->bytes));
}

TEST_F(ReaderTest, RefusalIsTheAgentsSentence) {
  std::shared_ptr<Tensor> tensor;
  const auto refuse = [&](uint64_t request) {
    Read(ipc::DeclaredMessage{request, 0, ADDEND_ERROR_MISMATCH, "rank 1 declares float16"});
  };
  const Error error = Declare("t", refuse, &tensor);
  EXPECT_EQ(error.code, ADDEND_ERROR_MISMATCH);
  EXPECT_EQ(error.text, "rank 1 declares float16");
  EXPECT_EQ(Failure().code, ADDEND_ERROR_TIMEOUT) << "the job goes on";
}

TEST_F(ReaderTest, LostDescriptorsRefuseTheTensorAlone) {
  std::shared_ptr<Tensor> tensor;
  const auto answer = [&](uint64_t request) { Read(ipc::DeclaredMessage{request, kNumber}); };
  const Error error = Declare("t", answer, &tensor);
  EXPECT_EQ(error.code, ADDEND_ERROR_RESOURCES);
  EXPECT_THAT(error.text, HasSubstr("0 of the 2 descriptors of tensor \"t\""));
  EXPECT_EQ(Failure().code, ADDEND_ERROR_TIMEOUT) << "the job goes on";
}

TEST_F(ReaderTest, ResultsEndTheRoundsInTheirOrder) {
  const auto tensor = DeclareTensor();
  const std::vector<float> in(kElements, 1);
  std::vector<float> out(kElements);
  const auto first = Push(tensor, in.data(), out.data());
  const auto second = Push(tensor, in.data(), nullptr);
  WriteResult(1, 6);
  std::vector<Packet> packets;
  packets.push_back(PacketOf(ipc::ResultMessage{kNumber, 1}.Encode()));
  packets.push_back(
      PacketOf(ipc::ResultMessage{kNumber, 2, ADDEND_ERROR_RESOURCES, "no memory"}.Encode()));
  Read(std::move(packets));
  EXPECT_TRUE(operations_.Wait(first, 0).ok());
  EXPECT_THAT(out, Each(6));
  EXPECT_EQ(operations_.Wait(second, 0).code, ADDEND_ERROR_RESOURCES);
  EXPECT_EQ(operations_.Wait(second, 0).text, "no memory");
  EXPECT_EQ(Failure().code, ADDEND_ERROR_TIMEOUT) << "the job goes on";
}

TEST_F(ReaderTest, MembersAreCounted) {
  EXPECT_EQ(reader_.nodes_present(), 3);
  EXPECT_EQ(reader_.nodes_waiting(), 0);
  Read(ipc::MembersMessage{.nodes = 2, .waiting = 1});
  EXPECT_EQ(reader_.nodes_present(), 2);
  EXPECT_EQ(reader_.nodes_waiting(), 1);
}

TEST_F(ReaderTest, ProgressIsPrinted) {
  testing::internal::CaptureStderr();
  Read(ipc::ProgressMessage{"waiting for node 1"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "addend: waiting for node 1\n");
}

TEST_F(ReaderTest, NothingIsReadAfterTheFailureOfTheJob) {
  const auto operation = Push(DeclareTensor(), nullptr, nullptr);
  std::vector<Packet> packets;
  packets.push_back(
      PacketOf(ipc::FailureMessage{ADDEND_ERROR_STALLED, "rank 1 has not pushed"}.Encode()));
  packets.push_back(PacketOf(ipc::MembersMessage{.nodes = 1}.Encode()));
  Read(std::move(packets));
  EXPECT_EQ(operations_.Wait(operation, 0).code, ADDEND_ERROR_STALLED);
  EXPECT_EQ(Failure().text, "rank 1 has not pushed");
  EXPECT_EQ(received_.size(), 1u);
}

TEST_F(ReaderTest, ClosedConnectionIsALostAgent) {
  closed_ = true;
  Read(std::vector<Packet>{});
  EXPECT_EQ(Failure().code, ADDEND_ERROR_PEER_LOST);
  EXPECT_THAT(Failure().text, HasSubstr("/agent closed the connection"));
}

TEST_F(ReaderTest, ErrorOfTheConnectionIsTheJobs) {
  broken_ = {ADDEND_ERROR_VERSION, "version 9"};
  Read(std::vector<Packet>{});
  EXPECT_EQ(Failure().text, "version 9");
}

class ImpossibleMessage : public ReaderTest, public testing::WithParamInterface<Packet (*)()> {};

TEST_P(ImpossibleMessage, FailsTheJob) {
  const auto operation = Push(DeclareTensor(), nullptr, nullptr);
  std::vector<Packet> packets;
  packets.push_back(GetParam()());
  Read(std::move(packets));
  EXPECT_EQ(Failure().code, ADDEND_ERROR_INTERNAL);
  EXPECT_THAT(Failure().text, HasSubstr("the agent at /agent"));
  EXPECT_EQ(operations_.Wait(operation, 0).text, Failure().text);
}

INSTANTIATE_TEST_SUITE_P(
    All, ImpossibleMessage,
    testing::Values(
        [] { return PacketOf(ipc::EncodedAs(static_cast<ipc::Type>(77))); },
        [] { return PacketOf(ipc::EncodedAs(ipc::Type::kPush)); },  // a trainer's
        [] { return PacketOf(ipc::DeclaredMessage{.request = 0, .tensor = 9}.Encode()); },
        [] { return PacketOf(ipc::ResultMessage{.tensor = 9, .round = 1}.Encode()); },
        [] { return PacketOf(ipc::ResultMessage{.tensor = 4, .round = 2}.Encode()); },
        [] { return PacketOf(ipc::GroupMessage{.members = 0}.Encode()); },
        // The round is under way, but not on the GPU.
        [] { return PacketOf(ipc::ContributeMessage{.tensor = 4, .round = 1}.Encode()); },
        [] { return PacketOf(ipc::FetchMessage{{.tensor = 4, .round = 1}}.Encode()); },
        [] { return PacketOf(ipc::ArrivedMessage{{.tensor = 4, .round = 1}}.Encode()); }));

TEST_F(ReaderTest, GpuRoundFollowsTheAgentsMessages) {
  Read(ipc::GroupMessage{.scatter = true});
  const auto tensor = DeclareTensor();
  auto operation = std::make_shared<Operation>();
  operation->tensor = tensor;
  ASSERT_TRUE(device_rounds_.Begin(tensor, {.dtype = DType::kFloat32}, 70, operation.get()).ok());
  ASSERT_TRUE(operations_.Enqueue(operation).ok());
  record_.calls.clear();
  std::vector<Packet> packets;
  packets.push_back(PacketOf(ipc::ContributeMessage{.tensor = kNumber, .round = 1}.Encode()));
  packets.push_back(PacketOf(ipc::ArrivedMessage{{kNumber, 1, 0, tensor->bytes}}.Encode()));
  packets.push_back(PacketOf(ipc::ResultMessage{kNumber, 1}.Encode()));
  Read(std::move(packets));
  EXPECT_TRUE(operations_.Wait(operation, 0).ok());
  EXPECT_EQ(record_.calls, (std::vector<std::string>{"contribute", "arrived"}));
}

TEST_F(ReaderTest, SegmentOfTheGroupNeedsItsDescriptorUnlessTheTensorIsUndeclared) {
  const auto tensor = DeclareTensor();
  std::vector<GuardedFd> fds;
  fds.push_back(SegmentMemory(ipc::SlotBytes(tensor->bytes)));
  Read(ipc::AttachedMessage{kNumber}, std::move(fds));
  EXPECT_NE(tensor->group_contribution, nullptr);
  ASSERT_TRUE(operations_.Undeclare(tensor).ok());
  Read(ipc::AttachedMessage{kNumber});
  EXPECT_EQ(Failure().code, ADDEND_ERROR_TIMEOUT) << "the job goes on";
  DeclareTensor();
  Read(ipc::AttachedMessage{kNumber});
  EXPECT_EQ(Failure().code, ADDEND_ERROR_RESOURCES);
}

TEST_F(ReaderTest, SaysWhetherThereWasAMessage) {
  EXPECT_EQ(reader_.Deliver(), Reading::Step::kNothing);
  closed_ = true;
  EXPECT_EQ(reader_.Deliver(), Reading::Step::kOver);
  EXPECT_EQ(Failure().code, ADDEND_ERROR_PEER_LOST);
}

}  // namespace
}  // namespace addend::client
