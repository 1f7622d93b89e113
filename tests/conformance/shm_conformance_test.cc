#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/base/passed_files.h"
#include "lib/memory/segment.h"
#include "lib/transport/shm/factory.h"
#include "lib/transport/shm/record.h"
#include "tests/conformance/conformance.h"

namespace addend {
namespace {

using shm::Kind;
using shm::Record;

class ShmWorld : public World {
 public:
  explicit ShmWorld(std::string folder = "") : folder_(std::move(folder)) {}
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeSharedMemoryTransport(loop, folder_);
  }
  Address ListenAddress() override {
    static int last = 0;
    return {.host = absl::StrFormat("conformance-%d-%d", ::getpid(), ++last)};
  }
  Address NobodyListens() override { return {.host = "nobody"}; }

 private:
  const std::string folder_;
};

std::unique_ptr<World> Abstract() { return std::make_unique<ShmWorld>(); }

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance, testing::Values(Abstract, [] {
                           return std::make_unique<ShmWorld>("/tmp");
                         }));

constexpr size_t kBytes = 1 << 20;

// Links whose accepted end has a group: its peer has proved itself.
class ShmConformance : public TransportConformance {
 protected:
  void Prove() {
    for (bool proved = false; !proved;) {
      there_->Run([&] {
        if (accepted_link_ == nullptr) return;
        accepted_link_->Share(7);
        proved = true;
      });
    }
  }
};

// Frames whose payloads lie in a segment.
class ShmLinks : public ShmConformance {
 protected:
  void Connect() {
    TransportConformance::Connect();
    Prove();
  }
  static std::shared_ptr<Segment> MakeSegment(char fill,
                                              Segment::Peer peer = Segment::Peer::kReadOnly) {
    auto segment = *Segment::Create("t", kBytes, peer);
    std::memset(segment->memory().data(), fill, kBytes);
    segment->Lend();
    return segment;
  }
  void SendFrom(const std::shared_ptr<Segment>& segment, size_t offset, size_t bytes) {
    here_->Run([&] {
      FrameHeader header;
      header.type = FrameType::kContribution;
      link_->Send(header, Bytes(segment->memory()).subspan(offset, bytes),
                  [this, segment](absl::Status status) { connected_.CountDone(status); });
    });
  }
  bool WaitForFrames(size_t count) {
    return accepted_.WaitFor([&] { return accepted_.frames.size() == count + 1; });
  }
  size_t OpenFiles() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
};
INSTANTIATE_TEST_SUITE_P(Shm, ShmLinks, testing::Values(Abstract));

TEST_P(ShmLinks, APayloadInASegmentIsCopiedOnceAndLentUntilThen) {
  Connect();
  const auto segment = MakeSegment('s');
  SendFrom(segment, 4096, 100'000);
  SendFrom(segment, 0, kBytes);
  SendFrom(segment, kBytes - 20'000, 20'000);
  ASSERT_TRUE(WaitForFrames(3));
  EXPECT_EQ(accepted_.frames[1].payload, std::string(100'000, 's'));
  EXPECT_EQ(accepted_.frames[2].payload, std::string(kBytes, 's'));
  EXPECT_EQ(accepted_.frames[3].payload, std::string(20'000, 's'));
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.dones == 4; }));
  EXPECT_EQ(connected_.failed_dones, 0);
}

TEST_P(ShmLinks, ASegmentIsPassedOnceAndForgottenWithItsOwner) {
  Connect();
  SendFrom(MakeSegment('a'), 0, kBytes);
  ASSERT_TRUE(WaitForFrames(1));
  const size_t open = OpenFiles();
  for (size_t i = 0; i < 2 * shm::kMostSegments; ++i) {
    SendFrom(MakeSegment(static_cast<char>('a' + i % 26)), 0, shm::kLeastLent);
    ASSERT_TRUE(WaitForFrames(2 + i));
    ASSERT_EQ(accepted_.frames[2 + i].payload[0], static_cast<char>('a' + i % 26));
  }
  ASSERT_TRUE(connected_.WaitFor(
      [&] { return connected_.dones == static_cast<int>(2 * shm::kMostSegments + 2); }));
  EXPECT_LE(OpenFiles(), open + 1);
}

TEST_P(ShmLinks, MoreSegmentsThanALinkKnowsPassThroughTheSocket) {
  Connect();
  std::vector<std::shared_ptr<Segment>> segments;
  for (size_t i = 0; i < shm::kMostSegments + 10; ++i) {
    segments.push_back(MakeSegment(static_cast<char>('a' + i % 26)));
    SendFrom(segments.back(), 0, shm::kLeastLent);
  }
  ASSERT_TRUE(WaitForFrames(segments.size()));
  for (size_t i = 0; i < segments.size(); ++i) {
    EXPECT_EQ(accepted_.frames[1 + i].payload,
              std::string(shm::kLeastLent, static_cast<char>('a' + i % 26)));
  }
}

// A trainer whose agent has died may write its tensor again while frames about it are still unread.
TEST_P(ShmLinks, APayloadWhoseGuardIsSetEndsTheLinkUntaken) {
  Connect();
  const auto segment = MakeSegment('g', Segment::Peer::kMayWriteGuarded);
  SendFrom(segment, 0, kBytes);
  ASSERT_TRUE(WaitForFrames(1));
  UniqueFd file(::dup(segment->fd()));
  const uint32_t set = 1;
  ASSERT_EQ(::pwrite(file.get(), &set, sizeof(set), kBytes), static_cast<ssize_t>(sizeof(set)));
  SendFrom(segment, 0, kBytes);
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(accepted_.frames.size(), 2u);
  EXPECT_EQ(server_->stats().links_malformed, 0u);
}

TEST_P(ShmLinks, NothingIsTakenFromAnEndThatHasClosed) {
  Connect();
  const auto segment = MakeSegment('c');
  std::latch has_closed(1);  // until then the receiver reads nothing
  there_->PostSurely([&has_closed] { has_closed.wait(); });
  SendFrom(segment, 0, kBytes);
  here_->Run([] {});  // it is sent at the end of the turn
  here_->Run([&] { link_->Close(absl::AbortedError("enough")); });
  ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
  std::memset(segment->memory().data(), 'x', kBytes);
  has_closed.count_down();
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.frames.size(), 1u);
}

// A peer that is not a Link: raw records on a socket.
class ShmRawPeer : public ShmConformance {
 protected:
  void SetUp() override {
    TransportConformance::SetUp();
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path + 1, address_.host.data(), address_.host.size());
    ASSERT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                               address_.host.size())),
              0);
    Prove();
  }
  static UniqueFd MakeFile(size_t bytes, int seals = F_SEAL_SHRINK, unsigned flags = 0) {
    UniqueFd file(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    EXPECT_TRUE(!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
    if (file.valid() && seals != 0) {
      EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    }
    return file;
  }
  void Write(const void* bytes, size_t size, int file = -1) {
    iovec part = {const_cast<void*>(bytes), size};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    PassedFiles<1> files;
    if (file >= 0) files.Send({&file, 1}, &message);
    // The other end may have closed the link already for what came before.
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
      ASSERT_TRUE(errno == EPIPE || errno == ECONNRESET) << std::strerror(errno);
    }
  }
  void Say(const Record& record, int file = -1) { Write(&record, sizeof(record), file); }
  void SayPage() { Say({.kind = Kind::kPage}, MakeFile(4096).get()); }
  void SayLent(uint32_t segment, uint64_t offset, uint32_t bytes,
               FrameType type = FrameType::kContribution) {
    FrameHeader header;
    header.type = type;
    header.payload_bytes = bytes;
    EncodedHeader encoded;
    EncodeHeader(header, &encoded);
    Say({.kind = Kind::kLent, .segment = segment, .value = offset});
    Write(encoded.data(), encoded.size());
  }
  void ExpectRefused(const std::string& why) {
    ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
    const std::string reason(accepted_.close_reason.message());
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
    EXPECT_EQ(server_->stats().links_malformed, 1u);
    EXPECT_TRUE(accepted_.frames.empty());
  }
  UniqueFd socket_;
};
INSTANTIATE_TEST_SUITE_P(Shm, ShmRawPeer, testing::Values(Abstract));

TEST_P(ShmRawPeer, UnknownRecordsCloseTheLink) {
  SayPage();
  Say({.kind = static_cast<Kind>(77)});
  ExpectRefused("unknown record");
}

TEST_P(ShmRawPeer, ThePageComesFirstAndOnce) {
  SayPage();
  SayPage();
  ExpectRefused("comes first, and once");
}

TEST_P(ShmRawPeer, NoFrameComesBeforeThePage) {
  SayLent(1, 0, 4096);
  ExpectRefused("comes first, and once");
}

// A peer that has proved nothing.
TEST_P(ShmLinks, AStrangerSharesNoMemory) {
  TransportConformance::Connect();
  SendFrom(MakeSegment('s'), 0, kBytes);
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_NE(accepted_.close_reason.message().find("before the proof"), std::string_view::npos);
}

TEST_P(ShmRawPeer, ASegmentLargerThanAnyTensorIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = (uint64_t{1} << 44) + 1},
      MakeFile(kBytes).get());
  ExpectRefused("impossible bounds");
}

// Other memory of the process needs addresses, too.
TEST_P(ShmRawPeer, NotAllAddressesAreMapped) {
  SayPage();
  const uint64_t bytes = uint64_t{1} << 44;
  const UniqueFd file = MakeFile(bytes);
  for (uint32_t i = 1; i <= 3; ++i) {
    Say({.kind = Kind::kSegment, .segment = i, .value = bytes}, file.get());
  }
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  EXPECT_EQ(accepted_.close_reason.code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(ShmRawPeer, ARecordWithoutItsFileIsRefused) {
  Say({.kind = Kind::kPage});
  ExpectRefused("without its file");
}

TEST_P(ShmRawPeer, AFileThatItsOwnerCanShortenIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(kBytes, 0).get());
  ExpectRefused("can shorten");
}

TEST_P(ShmRawPeer, AFileOfADiskIsRefused) {
  SayPage();
  UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  Say({.kind = Kind::kSegment, .segment = 1, .value = 4096}, file.get());
  ExpectRefused("no plain file in memory");
}

// A page of such a file that was never touched may be missing: to read it would end this process.
TEST_P(ShmRawPeer, AFileOfHugePagesIsRefused) {
  UniqueFd file = MakeFile(2 << 20, F_SEAL_SHRINK, MFD_HUGETLB);
  if (!file.valid()) GTEST_SKIP() << "the kernel has no huge pages";
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = 2 << 20}, file.get());
  ExpectRefused("no plain file in memory");
}

TEST_P(ShmRawPeer, AFileThatIsShorterThanAnnouncedIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = 2 * kBytes}, MakeFile(kBytes).get());
  ExpectRefused("that is announced as");
}

TEST_P(ShmRawPeer, AGuardOutsideOfTheFileIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes, .guard = kBytes},
      MakeFile(kBytes).get());
  ExpectRefused("that is announced as");
}

TEST_P(ShmRawPeer, AGuardWithinThePayloadsIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes, .guard = 8}, MakeFile(kBytes).get());
  ExpectRefused("impossible bounds");
}

TEST_P(ShmRawPeer, APayloadInASegmentThatWasNotAnnouncedIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(kBytes).get());
  SayLent(2, 0, 4096);
  ExpectRefused("outside of the shared segments");
}

TEST_P(ShmRawPeer, APayloadBeyondTheEndOfItsSegmentIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(2 * kBytes).get());
  SayLent(1, kBytes - 4096, 4097);
  ExpectRefused("outside of the shared segments");
}

TEST_P(ShmRawPeer, AnOffsetThatWrapsAroundIsRefused) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(kBytes).get());
  SayLent(1, ~uint64_t{0} - 10, 4096);
  ExpectRefused("outside of the shared segments");
}

TEST_P(ShmRawPeer, AForgottenSegmentHasNoPayloads) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(kBytes).get());
  Say({.kind = Kind::kForget, .segment = 1});
  SayLent(1, 0, 4096);
  ExpectRefused("outside of the shared segments");
}

TEST_P(ShmRawPeer, AReleaseOfWhatWasNotLentIsRefused) {
  SayPage();
  Say({.kind = Kind::kRelease, .value = 1});
  ExpectRefused("were not lent");
}

TEST_P(ShmRawPeer, FilesWithoutRecordsAreRefused) {
  SayPage();
  const UniqueFd file = MakeFile(4096);
  for (int i = 0; i < 20; ++i) Say({.kind = Kind::kForget, .segment = 1}, file.get());
  ExpectRefused("more file descriptors");
}

TEST_P(ShmRawPeer, NoGoodbyeIsLent) {
  SayPage();
  Say({.kind = Kind::kSegment, .segment = 1, .value = kBytes}, MakeFile(kBytes).get());
  SayLent(1, 0, 100, FrameType::kGoaway);
  ExpectRefused("where there can be none");
}

TEST_P(ShmRawPeer, RecordsInPiecesAreUnderstood) {
  SayPage();
  const UniqueFd file = MakeFile(kBytes);
  std::vector<char> bytes;
  const auto add = [&bytes](const void* part, size_t size) {
    bytes.insert(bytes.end(), static_cast<const char*>(part),
                 static_cast<const char*>(part) + size);
  };
  const Record segment{.kind = Kind::kSegment, .segment = 1, .value = kBytes};
  Say(segment, file.get());
  FrameHeader header;
  header.type = FrameType::kContribution;
  header.payload_bytes = 5;
  EncodedHeader encoded;
  EncodeHeader(header, &encoded);
  const Record inline_frame{.kind = Kind::kFrame};
  const Record lent{.kind = Kind::kLent, .segment = 1, .value = 100};
  add(&inline_frame, sizeof(inline_frame));
  add(encoded.data(), encoded.size());
  add("hello", 5);
  add(&lent, sizeof(lent));
  add(encoded.data(), encoded.size());
  for (const char byte : bytes) Write(&byte, 1);
  ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.frames.size() == 2; }));
  EXPECT_EQ(accepted_.frames[0].payload, "hello");
  EXPECT_EQ(accepted_.frames[1].payload, std::string(5, '\0'));
}

}  // namespace
}  // namespace addend
