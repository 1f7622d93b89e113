// Trainers' connections: the messages of both directions with their descriptors, and the socket
// file. The kernel's sockets are the object of the test; nothing waits for them.
#include "services/worker_agent/trainer_port.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "lib/base/passed_files.h"
#include "tests/unit/shard/fake_event_loop.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Packet = std::vector<std::byte>;

// As the protocol packs it: the fixed part, the dimensions, the text. Its lengths are the sender's.
Packet PacketOf(const ipc::Encoded& message) {
  Packet packet;
  const auto append = [&packet](Bytes bytes) {
    packet.insert(packet.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(&message.fixed, 1)));
  append(std::as_bytes(message.dims));
  append(std::as_bytes(std::span(message.text)));
  return packet;
}

template <typename Typed>
Packet PacketOf(const Typed& message) {
  ipc::Encoded encoded = message.Encode();
  encoded.fixed.dims = static_cast<uint32_t>(encoded.dims.size());
  encoded.fixed.text_bytes = static_cast<uint32_t>(encoded.text.size());
  return PacketOf(encoded);
}

// A trainer's end of the connection.
class TrainerEnd {
 public:
  struct Received {
    ipc::Message fixed;
    std::string text;
    std::vector<UniqueFd> fds;
  };
  explicit TrainerEnd(UniqueFd fd) : fd_(std::move(fd)) {}

  void Send(const Packet& packet, const std::vector<int>& fds = {}) {
    iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    PassedFiles<8> files;
    if (!fds.empty()) files.Send(fds, &header);
    ASSERT_EQ(::sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT),
              static_cast<ssize_t>(packet.size()));
  }
  // The next message; nullopt: none is there, or the agent has closed.
  std::optional<Received> Receive() {
    std::byte packet[ipc::kMaxMessageBytes];
    iovec part{packet, sizeof(packet)};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    PassedFiles<8> files;
    files.Receive(&header);
    const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT);
    closed_ = got == 0;
    if (got < static_cast<ssize_t>(sizeof(ipc::Message))) return std::nullopt;
    Received received;
    std::memcpy(&received.fixed, packet, sizeof(received.fixed));
    received.text.assign(reinterpret_cast<const char*>(packet) + sizeof(received.fixed),
                         static_cast<size_t>(got) - sizeof(received.fixed));
    files.Take(&header, [&received](int fd) { received.fds.emplace_back(fd); });
    return received;
  }
  // The last Receive() found the end of the connection.
  bool closed() const { return closed_; }
  void Close() { fd_.Reset(); }

 private:
  UniqueFd fd_;
  bool closed_ = false;
};

class RecordingEvents final : public TrainerEvents {
 public:
  struct Heard {
    ipc::Message fixed;
    std::vector<int64_t> dims;
    std::string text;
    UniqueFd fd;
  };
  absl::Status OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd) override {
    heard.push_back({message.fixed,
                     {message.dims.begin(), message.dims.end()},
                     std::string(message.text),
                     std::move(fd)});
    if (on_message) on_message();
    if (close_at_once) trainer->Close(absl::CancelledError("enough"));
    return answer;
  }
  void OnTrainerGone(Trainer*, const absl::Status& why) override { gone.push_back(why); }

  std::vector<Heard> heard;
  std::vector<absl::Status> gone;
  absl::Status answer;
  bool close_at_once = false;
  std::function<void()> on_message;
};

class TrainerLinkTest : public ::testing::Test {
 protected:
  TrainerLinkTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    fd_ = ends[0];
    trainer_.emplace(UniqueFd(ends[1]));
    link_ = std::make_unique<TrainerLink>(&loop_, UniqueFd(ends[0]), &events_,
                                          [this](TrainerLink*) { link_.reset(); });
    EXPECT_TRUE(link_->Open().ok());
  }
  // Sends the packet; expects that the link closes for this reason.
  void ExpectRefusal(const Packet& packet, const std::string& why) {
    trainer_->Send(packet);
    loop_.Turn();
    ASSERT_THAT(events_.gone, SizeIs(1));
    EXPECT_TRUE(absl::IsInvalidArgument(events_.gone[0]));
    EXPECT_THAT(events_.gone[0].message(), HasSubstr(why));
    EXPECT_THAT(events_.heard, IsEmpty());
    EXPECT_EQ(link_, nullptr);
  }
  // Progress messages until the socket is full, and `more` behind them; returns their number.
  int FillSocket(int more) {
    int sent = 0;
    for (int behind = 0; behind < more; ++sent) {
      link_->Send(ipc::ProgressMessage{.text = std::to_string(sent)});
      behind += (loop_.EventsOf(fd_) & EPOLLOUT) != 0;
    }
    return sent;
  }

  FakeEventLoop loop_;
  RecordingEvents events_;
  int fd_ = -1;  // the link's
  std::optional<TrainerEnd> trainer_;
  std::unique_ptr<TrainerLink> link_;
};

TEST_F(TrainerLinkTest, MessageArrivesWithDimensionsTextAndDescriptor) {
  const UniqueFd file(::memfd_create("lent", 0));
  trainer_->Send(PacketOf(ipc::DeclareMessage{
                     .request = 7, .dtype = DType::kFloat32, .shape = {2, 300}, .text = "weights"}),
                 {file.get()});
  loop_.Turn();
  ASSERT_THAT(events_.heard, SizeIs(1));
  EXPECT_EQ(events_.heard[0].fixed.type, ipc::Type::kDeclare);
  EXPECT_EQ(events_.heard[0].fixed.request, 7u);
  EXPECT_THAT(events_.heard[0].dims, ElementsAre(2, 300));
  EXPECT_EQ(events_.heard[0].text, "weights");
  ASSERT_TRUE(events_.heard[0].fd.valid());
  struct stat lent, received;
  EXPECT_EQ(::fstat(file.get(), &lent), 0);
  EXPECT_EQ(::fstat(events_.heard[0].fd.get(), &received), 0);
  EXPECT_EQ(received.st_ino, lent.st_ino);
}

TEST_F(TrainerLinkTest, SecondDescriptorOfAMessageIsClosed) {
  int first[2], second[2];
  ASSERT_EQ(::pipe2(first, O_NONBLOCK) + ::pipe2(second, O_NONBLOCK), 0);
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}), {first[1], second[1]});
  ::close(first[1]);
  ::close(second[1]);
  loop_.Turn();
  char byte;
  EXPECT_EQ(::read(first[0], &byte, 1), -1) << "the message has the other end";
  EXPECT_EQ(::read(second[0], &byte, 1), 0) << "nobody has the other end any more";
  ::close(first[0]);
  ::close(second[0]);
}

TEST_F(TrainerLinkTest, DescriptorsOfAMessageAreClosedOnce) {
  const UniqueFd file(::memfd_create("lent", 0));
  // They get the numbers of those that were closed.
  std::vector<UniqueFd> opened;
  events_.on_message = [&] {
    while (opened.size() < 3) opened.emplace_back(::dup(file.get()));
  };
  const int fd = file.get();
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}), {fd, fd, fd, fd});
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}), {fd});
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(2));
  for (const UniqueFd& one : opened) EXPECT_NE(::fcntl(one.get(), F_GETFD), -1);
}

TEST_F(TrainerLinkTest, TurnReadsALimitedNumberOfMessages) {
  for (int i = 0; i < 65; ++i) trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(64)) << "other trainers have their turns";
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(65));
  loop_.Turn();
  EXPECT_THAT(events_.gone, IsEmpty()) << "an empty socket is no end";
}

TEST_F(TrainerLinkTest, MessageShorterThanItsFixedPartIsRefused) {
  const Packet whole = PacketOf(ipc::ProgressMessage{.text = "abc"});
  ExpectRefusal(Packet(whole.begin(), whole.begin() + sizeof(ipc::Message) - 1),
                "87 bytes is too short");
}

TEST_F(TrainerLinkTest, MessageThatFillsTheRoomIsRead) {
  ExpectRefusal(Packet(ipc::kMaxMessageBytes), "a bad magic number");
}

TEST_F(TrainerLinkTest, MessageLongerThanAnyIsRefused) {
  ExpectRefusal(Packet(ipc::kMaxMessageBytes + 1), "16385 bytes is too long");
}

TEST_F(TrainerLinkTest, MessageWithoutTheMagicNumberIsRefused) {
  ipc::Encoded message = ipc::ShutdownMessage{}.Encode();
  message.fixed.magic = 1;
  ExpectRefusal(PacketOf(message), "bad magic number");
}

TEST_F(TrainerLinkTest, MessageShorterThanItsTextIsRefused) {
  ipc::Encoded message = ipc::EncodedAs(ipc::Type::kInit, "abc");
  message.fixed.text_bytes = 4;
  ExpectRefusal(PacketOf(message), "do not add up");
}

TEST_F(TrainerLinkTest, MessageLongerThanItsPartsIsRefused) {
  ipc::Encoded message = ipc::EncodedAs(ipc::Type::kInit, "abc");
  message.fixed.text_bytes = 2;
  ExpectRefusal(PacketOf(message), "do not add up");
}

TEST_F(TrainerLinkTest, MessageWithTooManyDimensionsIsRefused) {
  const std::vector<int64_t> dims(ipc::kMaxDims + 1);
  ipc::Encoded message = ipc::EncodedAs(ipc::Type::kDeclare);
  message.dims = dims;
  message.fixed.dims = ipc::kMaxDims + 1;
  ExpectRefusal(PacketOf(message), "do not add up");
}

TEST_F(TrainerLinkTest, MessageWithTooLongATextIsRefused) {
  const std::string name(ipc::kMaxNameBytes + 1, 'n');
  ExpectRefusal(PacketOf(ipc::DeclareMessage{.shape = {}, .text = name}), "do not add up");
}

TEST_F(TrainerLinkTest, LargestMessageIsTaken) {
  const std::string name(ipc::kMaxNameBytes, 'n');
  trainer_->Send(
      PacketOf(ipc::DeclareMessage{.shape = std::vector<int64_t>(ipc::kMaxDims, 1), .text = name}));
  loop_.Turn();
  ASSERT_THAT(events_.heard, SizeIs(1));
  EXPECT_THAT(events_.heard[0].dims, SizeIs(ipc::kMaxDims));
  EXPECT_EQ(events_.heard[0].text, name);
}

TEST_F(TrainerLinkTest, ConnectionKeepsTheVersionOfItsFirstMessage) {
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  ipc::Encoded other = ipc::ShutdownMessage{}.Encode();
  other.fixed.version = ipc::kVersion + 1;
  trainer_->Send(PacketOf(other));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(1));
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_THAT(events_.gone[0].message(), HasSubstr("on a connection of version"));
}

TEST_F(TrainerLinkTest, UnknownVersionIsForTheAgentToRefuse) {
  ipc::Encoded other = ipc::ShutdownMessage{}.Encode();
  other.fixed.version = ipc::kVersion + 1;
  trainer_->Send(PacketOf(other));
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(2));
  link_->Send(ipc::ProgressMessage{.text = "t"});
  EXPECT_EQ(trainer_->Receive()->fixed.version, ipc::kVersion);
}

TEST_F(TrainerLinkTest, RefusedMessageClosesTheLink) {
  events_.answer = absl::FailedPreconditionError("no kPush before kInit");
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(1));
  EXPECT_THAT(events_.gone, ElementsAre(events_.answer));
}

TEST_F(TrainerLinkTest, LinkThatIsClosedHearsNoFurtherMessage) {
  events_.close_at_once = true;
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(1));
  EXPECT_THAT(events_.gone, ElementsAre(absl::CancelledError("enough")));
}

TEST_F(TrainerLinkTest, EndOfTheTrainerIsNoticed) {
  trainer_->Send(PacketOf(ipc::ShutdownMessage{}));
  trainer_->Close();
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(1));
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(events_.gone[0]));
  EXPECT_EQ(link_, nullptr);
  EXPECT_EQ(loop_.watched(), 0u);
}

TEST_F(TrainerLinkTest, ProcessOfTheTrainerIsKnownIfTheKernelKnowsIt) {
  EXPECT_EQ(link_->pid(), ::getpid());
  EXPECT_EQ(TrainerLink(&loop_, UniqueFd(), &events_, nullptr).pid(), 0);
}

TEST_F(TrainerLinkTest, SentMessageIsThereAtOnceWithItsDescriptors) {
  const auto contribution = *Segment::Create("contribution", 4096, Segment::Peer::kMayWrite);
  const auto result = *Segment::Create("result", 8192, Segment::Peer::kReadOnly);
  link_->Send(ipc::DeclaredMessage{.request = 7, .tensor = 9, .reason = "why"},
              {contribution, result});
  const auto received = trainer_->Receive();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->fixed.type, ipc::Type::kDeclared);
  EXPECT_EQ(received->fixed.request, 7u);
  EXPECT_EQ(received->fixed.text_bytes, 3u);
  EXPECT_EQ(received->text, "why");
  ASSERT_THAT(received->fds, SizeIs(2));
  std::vector<off_t> sizes;
  for (const UniqueFd& fd : received->fds) {
    struct stat info;
    EXPECT_EQ(::fstat(fd.get(), &info), 0);
    sizes.push_back(info.st_size);
  }
  EXPECT_THAT(sizes, ElementsAre(4096, 8192));
}

TEST_F(TrainerLinkTest, LongTextsAreCut) {
  link_->Send(ipc::ProgressMessage{.text = std::string(ipc::kMaxTextBytes + 1, 't')});
  const auto received = trainer_->Receive();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->text, std::string(ipc::kMaxTextBytes, 't'));
  EXPECT_EQ(received->fixed.text_bytes, ipc::kMaxTextBytes);
}

TEST_F(TrainerLinkTest, MessagesThatTheSocketDoesNotTakeFollowInOrder) {
  const int sent = FillSocket(10);
  EXPECT_EQ(loop_.EventsOf(fd_), EPOLLIN | EPOLLOUT);
  int received = 0;
  for (int turns = 0; received < sent && turns < sent; ++turns) {
    while (const auto message = trainer_->Receive()) {
      EXPECT_EQ(message->text, std::to_string(received++));
    }
    loop_.Turn();
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(loop_.EventsOf(fd_), EPOLLIN) << "nothing waits for the socket any more";
}

TEST_F(TrainerLinkTest, TrainerThatDoesNotReadIsCutOff) {
  const ipc::ProgressMessage message{.text = std::string(ipc::kMaxTextBytes, 't')};
  const size_t bytes = sizeof(ipc::Message) + ipc::kMaxTextBytes;
  while (loop_.EventsOf(fd_) != 0) link_->Send(message);
  loop_.Settle();
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_TRUE(absl::IsResourceExhausted(events_.gone[0]));
  EXPECT_THAT(events_.gone[0].message(),
              HasSubstr(std::to_string(kMaxUnreadTrainerBytes / bytes + 1) + " messages wait"));
}

TEST_F(TrainerLinkTest, QueueMayBeAsLongAsItsLimit) {
  const auto send = [this](size_t bytes) {
    link_->Send(ipc::ProgressMessage{.text = std::string(bytes - sizeof(ipc::Message), 't')});
    return bytes;
  };
  const int sent = FillSocket(1);
  size_t queued = sizeof(ipc::Message) + std::to_string(sent - 1).size();
  const size_t most = sizeof(ipc::Message) + ipc::kMaxTextBytes;
  while (kMaxUnreadTrainerBytes - queued > 2 * most) queued += send(most);
  queued += send((kMaxUnreadTrainerBytes - queued) / 2);
  send(kMaxUnreadTrainerBytes - queued);
  EXPECT_NE(loop_.EventsOf(fd_), 0u);
  link_->Send(ipc::ProgressMessage{});
  EXPECT_EQ(loop_.EventsOf(fd_), 0u) << "it is closed";
}

TEST_F(TrainerLinkTest, TrainerThatReadsMayGetAnyNumberOfBytes) {
  const ipc::ProgressMessage message{.text = std::string(ipc::kMaxTextBytes, 't')};
  for (size_t bytes = 0; bytes <= kMaxUnreadTrainerBytes; bytes += ipc::kMaxTextBytes) {
    link_->Send(message);
    ASSERT_TRUE(trainer_->Receive().has_value());
  }
  loop_.Settle();
  EXPECT_THAT(events_.gone, IsEmpty());
}

TEST_F(TrainerLinkTest, CloseSendsTheQueuedMessagesAndTellsTheAgentLater) {
  const int sent = FillSocket(1);
  while (trainer_->Receive().has_value()) {
  }
  link_->Close(absl::CancelledError("first"));
  link_->Close(absl::CancelledError("second"));
  link_->Send(ipc::ProgressMessage{.text = "too late"});
  EXPECT_THAT(events_.gone, IsEmpty()) << "not from within the call";
  EXPECT_EQ(trainer_->Receive()->text, std::to_string(sent - 1));
  EXPECT_FALSE(trainer_->Receive().has_value());
  EXPECT_TRUE(trainer_->closed());
  loop_.Settle();
  EXPECT_THAT(events_.gone, ElementsAre(absl::CancelledError("first")));
  EXPECT_EQ(link_, nullptr);
}

TEST_F(TrainerLinkTest, LinkThatIsDestroyedWhileItClosesHasNoEvent) {
  link_->Close(absl::CancelledError("why"));
  link_.reset();
  loop_.Settle();
  EXPECT_THAT(events_.gone, IsEmpty());
}

// A trainer that has been admitted, with its ends of the queues.
class TrainerRingsTest : public TrainerLinkTest {
 protected:
  // The descriptors that came with the reply.
  size_t Init(bool ring, uint32_t code = 0) {
    trainer_->Send(PacketOf(ipc::InitMessage{.size = 1, .local_size = 1, .ring = ring}));
    loop_.Turn();
    link_->Send(ipc::InitReplyMessage{.code = code, .size = 1, .num_nodes = 1});
    loop_.Settle();
    auto reply = trainer_->Receive();
    EXPECT_TRUE(reply.has_value());
    events_.heard.clear();
    if (!reply || reply->fds.size() != 1) return reply ? reply->fds.size() : 0;
    void* const memory = ::mmap(nullptr, sizeof(ipc::RingsMemory), PROT_READ | PROT_WRITE,
                                MAP_SHARED, reply->fds[0].get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    rings_ = static_cast<ipc::RingsMemory*>(memory);
    in_.emplace(&rings_->to_trainer);
    out_.emplace(&rings_->to_agent);
    return 1;
  }
  void Admit() { ASSERT_EQ(Init(/*ring=*/true), 1u); }
  void TearDown() override {
    if (rings_ != nullptr) ::munmap(rings_, sizeof(ipc::RingsMemory));
  }
  static ipc::Message Push(uint64_t round) {
    return ipc::PushMessage{.tensor = 1, .round = round}.Encode().fixed;
  }
  void Write(const ipc::Message& message, uint64_t after = 0) {
    ASSERT_TRUE(out_->Write(message, after));
    if (out_->MustRing()) trainer_->Send(PacketOf(ipc::BellMessage{}));
  }
  std::vector<ipc::Type> Heard() const {
    std::vector<ipc::Type> types;
    for (const auto& heard : events_.heard) types.push_back(heard.fixed.type);
    return types;
  }

  ipc::RingsMemory* rings_ = nullptr;
  std::optional<ipc::RingReader> in_;
  std::optional<ipc::RingWriter> out_;
};

constexpr auto kReady = ipc::RingReader::State::kReady;
constexpr auto kEmpty = ipc::RingReader::State::kEmpty;

TEST_F(TrainerRingsTest, TrainerWithoutThemGetsNone) { EXPECT_EQ(Init(/*ring=*/false), 0u); }

TEST_F(TrainerRingsTest, RefusedTrainerGetsNone) { EXPECT_EQ(Init(/*ring=*/true, 64), 0u); }

TEST_F(TrainerRingsTest, MessageArrivesWithASingleBell) {
  Admit();
  ASSERT_TRUE(out_->Write(Push(1), 0));
  EXPECT_TRUE(out_->MustRing()) << "the agent sleeps";
  trainer_->Send(PacketOf(ipc::BellMessage{}));
  events_.on_message = [this] {
    if (events_.heard.size() > 1) return;
    ASSERT_TRUE(out_->Write(Push(2), 0));
    EXPECT_FALSE(out_->MustRing()) << "the agent looks by itself";
  };
  loop_.Turn();
  ASSERT_THAT(events_.heard, SizeIs(2));
  EXPECT_EQ(events_.heard[0].fixed.type, ipc::Type::kPush);
  EXPECT_EQ(events_.heard[0].fixed.round, 1u);
  EXPECT_EQ(events_.heard[1].fixed.round, 2u);
  ASSERT_TRUE(out_->Write(Push(3), 0));
  EXPECT_TRUE(out_->MustRing()) << "it sleeps again";
}

TEST_F(TrainerRingsTest, EntryFollowsTheMessagesThatWereSentBeforeIt) {
  Admit();
  Write(Push(1), /*after=*/1);
  loop_.Turn();
  EXPECT_THAT(events_.heard, IsEmpty());
  trainer_->Send(PacketOf(ipc::DeclareMessage{.shape = {1}, .text = "w"}));
  loop_.Turn();
  EXPECT_THAT(Heard(), ElementsAre(ipc::Type::kDeclare, ipc::Type::kPush));
}

TEST_F(TrainerRingsTest, EntryPrecedesTheMessagesThatWereSentAfterIt) {
  Admit();
  // It comes when the agent has received the message already, and looks into the queue again.
  trainer_->Send(PacketOf(ipc::BellMessage{}));
  ASSERT_TRUE(out_->Write(Push(1), 0));
  trainer_->Send(PacketOf(ipc::DeclareMessage{.shape = {1}, .text = "w"}));
  loop_.Turn();
  EXPECT_THAT(Heard(), ElementsAre(ipc::Type::kPush, ipc::Type::kDeclare));
  EXPECT_EQ(events_.heard[1].text, "w");
}

TEST_F(TrainerRingsTest, LastMessageOfATrainerThatEndsIsHeard) {
  Admit();
  Write(ipc::ShutdownMessage{}.Encode().fixed);
  trainer_->Close();
  loop_.Turn();
  EXPECT_THAT(Heard(), ElementsAre(ipc::Type::kShutdown));
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(events_.gone[0]));
}

TEST_F(TrainerRingsTest, ResultsPassThroughTheQueueAndErrorsThroughTheSocket) {
  Admit();
  link_->Send(ipc::ResultMessage{.tensor = 1, .round = 1});
  EXPECT_FALSE(trainer_->Receive().has_value()) << "the trainer is awake";
  link_->Send(ipc::ResultMessage{.tensor = 1, .round = 2, .code = 70, .reason = "why"});
  link_->Send(ipc::ResultMessage{.tensor = 1, .round = 3});
  ASSERT_EQ(in_->Look(0), kReady);
  EXPECT_EQ(in_->Take().round, 1u);
  EXPECT_EQ(in_->Look(0), kEmpty) << "the error comes before";
  EXPECT_EQ(trainer_->Receive()->text, "why");
  ASSERT_EQ(in_->Look(1), kReady);
  EXPECT_EQ(in_->Take().round, 3u);
}

TEST_F(TrainerRingsTest, SleepingTrainerGetsABell) {
  Admit();
  in_->Sleep();
  for (const uint64_t round : {1, 2}) link_->Send(ipc::ResultMessage{.tensor = 1, .round = round});
  const auto bell = trainer_->Receive();
  ASSERT_TRUE(bell.has_value());
  EXPECT_EQ(bell->fixed.type, ipc::Type::kBell);
  EXPECT_FALSE(trainer_->Receive().has_value());
}

TEST_F(TrainerRingsTest, BellThatTheSocketDoesNotTakeFollows) {
  Admit();
  in_->Sleep();
  const int sent = FillSocket(1);
  link_->Send(ipc::ResultMessage{.tensor = 1, .round = 1});
  bool rung = false;
  for (int turns = 0; !rung && turns < sent; ++turns) {
    while (const auto message = trainer_->Receive()) {
      rung = rung || message->fixed.type == ipc::Type::kBell;
    }
    loop_.Turn();
  }
  EXPECT_TRUE(rung);
}

TEST_F(TrainerRingsTest, EndOfATrainerIsNoticedThoughItsQueueGoesOn) {
  Admit();
  ASSERT_TRUE(out_->Write(Push(1), 0));
  // As a child process of the trainer that has its memory.
  events_.on_message = [this] { ASSERT_TRUE(out_->Write(Push(events_.heard.size() + 1), 0)); };
  trainer_->Close();
  loop_.Turn();
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(events_.gone[0]));
}

TEST_F(TrainerRingsTest, SocketTakesWhatTheQueueHasNoRoomFor) {
  Admit();
  for (uint64_t round = 1; round <= ipc::kRingEntries + 1; ++round) {
    link_->Send(ipc::ResultMessage{.tensor = 1, .round = round});
  }
  EXPECT_EQ(in_->Take().round, 1u);
  link_->Send(ipc::ResultMessage{.tensor = 1, .round = ipc::kRingEntries + 2});
  for (uint64_t round = 2; round <= ipc::kRingEntries; ++round) {
    ASSERT_EQ(in_->Look(0), kReady);
    EXPECT_EQ(in_->Take().round, round);
  }
  EXPECT_EQ(in_->Look(0), kEmpty);
  EXPECT_EQ(trainer_->Receive()->fixed.round, ipc::kRingEntries + 1);
  ASSERT_EQ(in_->Look(1), kReady);
  EXPECT_EQ(in_->Take().round, ipc::kRingEntries + 2);
}

TEST_F(TrainerRingsTest, TrainerThatBreaksItsQueueIsCutOff) {
  Admit();
  rings_->to_agent.written = ipc::kRingEntries + 1;
  trainer_->Send(PacketOf(ipc::BellMessage{}));
  loop_.Turn();
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_TRUE(absl::IsInvalidArgument(events_.gone[0]));
  EXPECT_THAT(events_.gone[0].message(), HasSubstr("has broken the queue"));
}

TEST_F(TrainerRingsTest, EntryWithLengthsIsRefused) {
  Admit();
  ipc::Message message = Push(1);
  message.text_bytes = 1;
  Write(message);
  loop_.Turn();
  ASSERT_THAT(events_.gone, SizeIs(1));
  EXPECT_THAT(events_.gone[0].message(), HasSubstr("do not add up"));
}

TEST_F(TrainerRingsTest, EntryThatNeverComesKeepsNobodyBusy) {
  Admit();
  Write(Push(1), /*after=*/~uint64_t{0});
  loop_.Turn();
  EXPECT_THAT(events_.heard, IsEmpty());
  ASSERT_TRUE(out_->Write(Push(2), 0));
  EXPECT_TRUE(out_->MustRing()) << "the agent sleeps";
}

class TrainerPortTest : public ::testing::Test {
 protected:
  TrainerPortTest() {
    std::string name = (std::filesystem::temp_directory_path() / "addend-port-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TrainerPortTest() override { std::filesystem::remove_all(folder_); }
  std::string Path() const { return (folder_ / "socket").string(); }
  // A path of so many bytes.
  std::string PathOf(size_t bytes) const {
    const std::string folder = folder_.string() + "/";
    return folder + std::string(bytes - folder.size(), 's');
  }
  absl::StatusOr<std::unique_ptr<TrainerPort>> Listen(const std::string& path) {
    return TrainerPort::Listen(&loop_, path, 0620, &events_);
  }
  TrainerEnd Connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Path().c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return TrainerEnd(std::move(fd));
  }

  std::filesystem::path folder_;
  FakeEventLoop loop_;
  RecordingEvents events_;
};

TEST_F(TrainerPortTest, TrainersConnectTalkAndLeave) {
  const auto port = *Listen(Path());
  TrainerEnd first = Connect();
  loop_.Turn();
  TrainerEnd second = Connect();
  loop_.Turn();
  EXPECT_THAT(port->links(), SizeIs(2));
  first.Send(PacketOf(ipc::ShutdownMessage{}));
  loop_.Turn();
  EXPECT_THAT(events_.heard, SizeIs(1));
  TrainerLink* const stays = port->links().back().get();
  first.Close();
  loop_.Turn();
  EXPECT_THAT(events_.gone, SizeIs(1));
  ASSERT_THAT(port->links(), SizeIs(1));
  EXPECT_EQ(port->links().front().get(), stays);
}

TEST_F(TrainerPortTest, SocketFileHasThePermissionsAsked) {
  const mode_t mask = ::umask(077);
  const auto port = *Listen(Path());
  struct stat info;
  ASSERT_EQ(::stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0620u);
  EXPECT_EQ(::umask(mask), 077u) << "the process's own mask is back";
}

TEST_F(TrainerPortTest, EndOfThePortClosesItsConnectionsWithoutAnEvent) {
  auto port = *Listen(Path());
  TrainerEnd trainer = Connect();
  loop_.Turn();
  port.reset();
  loop_.Settle();
  EXPECT_FALSE(trainer.Receive().has_value());
  EXPECT_TRUE(trainer.closed());
  EXPECT_THAT(events_.gone, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Path()));
  EXPECT_EQ(loop_.watched(), 0u);
}

TEST_F(TrainerPortTest, PathOfAnotherAgentIsRefused) {
  const auto port = *Listen(Path());
  const absl::Status second = Listen(Path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(second));
  EXPECT_THAT(second.message(), HasSubstr("is in use by another agent"));
  Connect();
  EXPECT_TRUE(std::filesystem::exists(Path()));
}

TEST_F(TrainerPortTest, SocketFileThatNobodyListensOnIsReplaced) {
  const UniqueFd stale(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, Path().c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(stale.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(Listen(Path()).ok());
}

TEST_F(TrainerPortTest, PathsHaveALimitedLength) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  EXPECT_TRUE(Listen(PathOf(kMost)).ok());
  for (const std::string& path : {PathOf(kMost + 1), std::string()}) {
    const absl::Status refused = Listen(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(refused.message(), HasSubstr("has 1 to 107 bytes"));
  }
}

TEST_F(TrainerPortTest, PathInNoFolderIsRefused) {
  const absl::Status refused = Listen((folder_ / "missing" / "socket").string()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(refused.message(), HasSubstr("No such file or directory"));
}

TEST_F(TrainerPortTest, ConnectionThatTheLoopCannotWatchIsClosed) {
  const auto port = *Listen(Path());
  TrainerEnd trainer = Connect();
  loop_.refusal = absl::ResourceExhaustedError("no more descriptors");
  loop_.Turn();
  EXPECT_THAT(events_.gone, ElementsAre(loop_.refusal));
  EXPECT_THAT(port->links(), IsEmpty());
  EXPECT_FALSE(trainer.Receive().has_value());
}

}  // namespace
}  // namespace addend
