// The trainer's end of the socket with its queues: the order of messages is the same whichever way
// they take.
#include "lib/client/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

namespace addend::client {
namespace {

using Event = AgentSocket::Event;
using State = ipc::RingReader::State;

class SocketTest : public testing::Test {
 protected:
  SocketTest() {
    std::string folder = (std::filesystem::temp_directory_path() / "addend-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = folder_ / "agent.sock";
    std::memcpy(address.sun_path, path.data(), path.size());
    const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_TRUE(AgentSocket::Connect(path, 1, &socket_).ok());
    agent_ = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int memory = ::memfd_create("queues", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(memory, sizeof(ipc::RingsMemory)), 0);
    rings_ = static_cast<ipc::RingsMemory*>(
        ::mmap(nullptr, sizeof(ipc::RingsMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
    EXPECT_TRUE(socket_->UseRings(memory).ok());
    ::close(memory);
    out_.emplace(&rings_->to_trainer);
    in_.emplace(&rings_->to_agent);
  }
  ~SocketTest() override {
    ::munmap(rings_, sizeof(ipc::RingsMemory));
    if (agent_ >= 0) ::close(agent_);
    std::filesystem::remove_all(folder_);
  }

  // ---- the agent's end ----
  static ipc::Message Result(uint64_t round) {
    return ipc::ResultMessage{.tensor = 1, .round = round}.Encode().fixed;
  }
  template <typename Typed>
  void SendBySocket(const Typed& message) {
    const ipc::Encoded encoded = message.Encode();
    std::string packet(reinterpret_cast<const char*>(&encoded.fixed), sizeof(encoded.fixed));
    const auto text_bytes = static_cast<uint32_t>(encoded.text.size());
    std::memcpy(packet.data() + offsetof(ipc::Message, text_bytes), &text_bytes,
                sizeof(text_bytes));
    packet.append(encoded.text);
    ASSERT_EQ(::send(agent_, packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
  }
  void Write(uint64_t round, uint64_t after) {
    ASSERT_TRUE(out_->Write(Result(round), after));
    if (out_->MustRing()) SendBySocket(ipc::BellMessage{});
  }
  // The type of the next packet; 0: nothing is there.
  int ReceiveBySocket() const {
    ipc::Message message;
    const ssize_t got = ::recv(agent_, &message, sizeof(message), MSG_DONTWAIT);
    return got < static_cast<ssize_t>(sizeof(message)) ? 0 : static_cast<int>(message.type);
  }
  void CloseAgent() { ::close(std::exchange(agent_, -1)); }

  // ---- the trainer's ----
  // Rounds of results, or texts of progress, until nothing is there.
  std::vector<std::string> ReceiveAll() {
    std::vector<std::string> received;
    for (;;) {
      Packet packet;
      EXPECT_TRUE(socket_->TryReceive(&packet, &event_).ok());
      if (event_ != Event::kPacket) return received;
      const bool result = packet.message.type == ipc::Type::kResult;
      received.push_back(result ? std::to_string(packet.message.round) : packet.text);
    }
  }

  std::filesystem::path folder_;
  int agent_ = -1;
  ipc::RingsMemory* rings_ = nullptr;
  std::optional<ipc::RingWriter> out_;
  std::optional<ipc::RingReader> in_;
  std::unique_ptr<AgentSocket> socket_;
  Event event_{};
};

TEST_F(SocketTest, MessagesOfBothWaysArriveInTheOrderInWhichTheyWereSent) {
  Write(1, /*after=*/0);
  SendBySocket(ipc::ProgressMessage{.text = "a"});
  Write(2, /*after=*/1);
  Write(3, /*after=*/1);
  SendBySocket(ipc::ProgressMessage{.text = "b"});
  EXPECT_THAT(ReceiveAll(), testing::ElementsAre("1", "a", "2", "3", "b"));
  EXPECT_EQ(event_, Event::kTimeout);
}

TEST_F(SocketTest, EntriesBeforeTheEndArrive) {
  Write(1, /*after=*/0);
  SendBySocket(ipc::ProgressMessage{.text = "a"});
  Write(2, /*after=*/1);
  CloseAgent();
  EXPECT_THAT(ReceiveAll(), testing::ElementsAre("1", "a", "2"));
  EXPECT_EQ(event_, Event::kClosed);
  EXPECT_THAT(ReceiveAll(), testing::IsEmpty());
  EXPECT_EQ(event_, Event::kClosed);
}

TEST_F(SocketTest, MessageOfTheSocketIsFoundWithoutWaiting) {
  EXPECT_THAT(ReceiveAll(), testing::IsEmpty());
  SendBySocket(ipc::ProgressMessage{.text = "a"});
  std::vector<std::string> received;
  for (int looks = 0; received.empty() && looks < 100; ++looks) received = ReceiveAll();
  EXPECT_THAT(received, testing::ElementsAre("a"));
}

TEST_F(SocketTest, FixedMessagesPassThroughTheQueueAndOthersThroughTheSocket) {
  socket_->Send(ipc::PushMessage{.tensor = 1, .round = 1}.Encode());
  EXPECT_EQ(ReceiveBySocket(), 0) << "the agent is awake";
  socket_->Send(ipc::DeclareMessage{.shape = {1}, .text = "w"}.Encode());
  socket_->Send(ipc::PushMessage{.tensor = 1, .round = 2}.Encode());
  ASSERT_EQ(in_->Look(0), State::kReady);
  EXPECT_EQ(in_->Take().round, 1u);
  EXPECT_EQ(in_->Look(0), State::kEmpty) << "the declaration comes before";
  EXPECT_EQ(ReceiveBySocket(), static_cast<int>(ipc::Type::kDeclare));
  ASSERT_EQ(in_->Look(1), State::kReady);
  EXPECT_EQ(in_->Take().round, 2u);
}

TEST_F(SocketTest, SleepingAgentGetsABell) {
  in_->Sleep();
  for (const uint64_t round : {1, 2}) {
    socket_->Send(ipc::PushMessage{.tensor = 1, .round = round}.Encode());
  }
  EXPECT_EQ(ReceiveBySocket(), static_cast<int>(ipc::Type::kBell));
  EXPECT_EQ(ReceiveBySocket(), 0);
}

TEST_F(SocketTest, WaitingTrainerWakesForAnEntry) {
  EXPECT_THAT(ReceiveAll(), testing::IsEmpty());
  std::thread agent([this] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (rings_->to_trainer.sleepers == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(out_->Write(Result(1), /*after=*/0));
    ASSERT_TRUE(out_->MustRing()) << "the trainer sleeps";
    SendBySocket(ipc::BellMessage{});
  });
  Packet packet;
  EXPECT_TRUE(socket_->Receive(10'000, &packet, &event_).ok());
  agent.join();
  EXPECT_EQ(event_, Event::kPacket);
  EXPECT_EQ(packet.message.round, 1u);
  EXPECT_EQ(rings_->to_trainer.sleepers, 0u);
  EXPECT_THAT(ReceiveAll(), testing::IsEmpty()) << "the bell is no message";
}

TEST_F(SocketTest, QueueThatTheAgentHasBrokenEndsTheJob) {
  rings_->to_trainer.written = ipc::kRingEntries + 1;
  Packet packet;
  const Error error = socket_->TryReceive(&packet, &event_);
  EXPECT_EQ(error.code, ADDEND_ERROR_INTERNAL);
  EXPECT_THAT(error.text, testing::HasSubstr("has broken the queue"));
}

TEST_F(SocketTest, MemoryThatIsTooSmallIsRefused) {
  const int memory = ::memfd_create("small", MFD_CLOEXEC);
  EXPECT_EQ(socket_->UseRings(memory).code, ADDEND_ERROR_INTERNAL);
  ::close(memory);
}

}  // namespace
}  // namespace addend::client
