// FrameWriter and FrameReader, which write and read the frames of a TCP link: bundles of small
// frames, partial writes and partial reads.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/fd.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"

namespace addend::tcp {
namespace {

struct Frame {
  uint64_t partition = 0;
  std::string payload;
  bool operator==(const Frame&) const = default;
};

FrameHeader HeaderOf(uint64_t partition, FrameType type = FrameType::kContribution) {
  FrameHeader header;
  header.type = type;
  header.partition = PartitionId(partition);
  return header;
}

Bytes BytesOf(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

// The bytes that the writer offers to a system call, cut to these numbers of bytes.
std::string WriteAll(FrameWriter* writer, auto take) {
  std::string wire;
  std::vector<Done> dones;
  while (!writer->empty()) {
    iovec vectors[FrameWriter::kVectors];
    const int count = writer->Gather(vectors);
    std::string gathered;
    for (int i = 0; i < count; ++i) {
      gathered.append(static_cast<const char*>(vectors[i].iov_base), vectors[i].iov_len);
    }
    gathered.resize(take(gathered.size()));
    wire += gathered;
    writer->Sent(gathered.size(), &dones);
  }
  for (Done& done : dones) done(absl::OkStatus());
  return wire;
}

std::string WriteAll(FrameWriter* writer) {
  return WriteAll(writer, [](size_t bytes) { return bytes; });
}

FrameType TypeAt(const std::string& wire, size_t offset = 0) {
  return static_cast<FrameType>(wire.at(offset + 6));
}

class Recorder final : public FrameTaker {
 public:
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    if (drop) return MutableBytes();
    rooms_.emplace_back(header.payload_bytes, '.');
    return std::as_writable_bytes(std::span<char>(rooms_.back()));
  }
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override {
    Frame frame{header.partition.value(), {}};
    if (!payload.empty()) {
      frame.payload = rooms_.front();
      rooms_.pop_front();
    }
    frames.push_back(std::move(frame));
    closed = closed || frames.size() == close_after;
    return absl::OkStatus();
  }
  bool closing() const override { return closed; }

  bool drop = false, closed = false;
  size_t close_after = 0;
  std::vector<Frame> frames;

 private:
  std::deque<std::string> rooms_;
};

class FrameStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ours_ = UniqueFd(fds[0]);
    theirs_ = UniqueFd(fds[1]);
    reader_ = std::make_unique<FrameReader>(ours_.get(), "peer", &recorder_);
  }
  // Arrives in pieces of `piece(rest)` bytes.
  absl::Status Feed(const std::string& wire, auto piece) {
    for (size_t at = 0; at < wire.size() && !recorder_.closed;) {
      const size_t bytes = std::min(wire.size() - at, piece());
      const ssize_t written = ::write(theirs_.get(), wire.data() + at, bytes);
      if (written < 0) return absl::InternalError("the test's socket is full");
      at += static_cast<size_t>(written);
      FrameReader::Progress progress;
      if (absl::Status status = reader_->Read(1 << 30, &progress); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Feed(const std::string& wire) {
    return Feed(wire, [] { return size_t{50000}; });
  }
  // A frame of bytes that no writer of ours would write.
  static std::string Raw(const FrameHeader& header) {
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static std::string RawBundle(const std::vector<FrameHeader>& headers, uint32_t payload_bytes) {
    FrameHeader bundle = HeaderOf(0, FrameType::kBundle);
    bundle.detail = static_cast<uint32_t>(headers.size());
    bundle.payload_bytes =
        static_cast<uint32_t>(headers.size() * kFrameHeaderBytes) + payload_bytes;
    std::string wire = Raw(bundle);
    for (const FrameHeader& header : headers) wire += Raw(header);
    return wire + std::string(payload_bytes, 'x');
  }
  void Push(const Frame& frame) {
    pushed_.push_back(frame);
    writer_.Push(HeaderOf(frame.partition), BytesOf(pushed_.back().payload),
                 [this](const absl::Status&) { ++dones_; });
  }
  std::vector<Frame> Pushed() const { return {pushed_.begin(), pushed_.end()}; }

  UniqueFd ours_, theirs_;
  Recorder recorder_;
  std::unique_ptr<FrameReader> reader_;
  FrameWriter writer_;
  std::deque<Frame> pushed_;
  size_t dones_ = 0;
};

TEST_F(FrameStreamTest, SmallFramesThatWaitLeaveInOneFrame) {
  for (uint64_t i = 0; i < 10; ++i) Push({i, std::string(4000, static_cast<char>('a' + i))});
  const std::string wire = WriteAll(&writer_);
  EXPECT_EQ(TypeAt(wire), FrameType::kBundle);
  EXPECT_EQ(wire.size(), 11 * kFrameHeaderBytes + 10 * 4000);
  EXPECT_EQ(dones_, 10u);
  ASSERT_TRUE(Feed(wire).ok());
  EXPECT_EQ(recorder_.frames, Pushed());
}

TEST_F(FrameStreamTest, FewFramesAndLargeFramesAreNotBundled) {
  for (uint64_t i = 1; i < FrameWriter::kLeastBundle; ++i) Push({i, "small"});
  for (uint64_t i = 10; i < 20; ++i) Push({i, std::string(kMaxBundledBytes + 1, 'l')});
  const std::string wire = WriteAll(&writer_);
  const size_t frames = FrameWriter::kLeastBundle - 1 + 10;
  EXPECT_EQ(wire.size(), frames * kFrameHeaderBytes + 3 * 5 + 10 * (kMaxBundledBytes + 1));
  EXPECT_EQ(TypeAt(wire), FrameType::kContribution);
  ASSERT_TRUE(Feed(wire).ok());
  EXPECT_EQ(recorder_.frames, Pushed());
}

TEST_F(FrameStreamTest, ABundleEndsWhereAPartitionComesAgain) {
  for (uint64_t i = 0; i < 5; ++i) Push({i, "first"});
  for (uint64_t i = 0; i < 5; ++i) Push({i, "again"});
  const std::string wire = WriteAll(&writer_);
  EXPECT_EQ(wire.size(), 12 * kFrameHeaderBytes + 50) << "two bundles";
  ASSERT_TRUE(Feed(wire).ok());
  EXPECT_EQ(recorder_.frames, Pushed());
}

TEST_F(FrameStreamTest, DroppedPayloadsAreReadToo) {
  for (uint64_t i = 0; i < 100; ++i) Push({i, std::string(i % 3 == 0 ? 100000 : 1000, 'x')});
  recorder_.drop = true;
  ASSERT_TRUE(Feed(WriteAll(&writer_)).ok());
  ASSERT_EQ(recorder_.frames.size(), 100u);
  for (const Frame& frame : recorder_.frames) EXPECT_EQ(frame.payload, "");
}

TEST_F(FrameStreamTest, NothingIsTakenAfterTheEndInTheMiddleOfABundle) {
  for (uint64_t i = 0; i < 10; ++i) Push({i, "payload"});
  recorder_.close_after = 3;
  ASSERT_TRUE(Feed(WriteAll(&writer_)).ok());
  EXPECT_EQ(recorder_.frames.size(), 3u);
}

TEST_F(FrameStreamTest, UnsentFramesAreGivenBack) {
  for (uint64_t i = 0; i < 10; ++i) Push({i, "payload"});
  iovec vectors[FrameWriter::kVectors];
  writer_.Gather(vectors);
  std::vector<Done> dones;
  EXPECT_EQ(writer_.Sent(500, &dones), 0u) << "a bundle leaves as a whole";
  EXPECT_EQ(writer_.TakeAll().size(), 10u);
  EXPECT_TRUE(writer_.empty());
}

TEST_F(FrameStreamTest, AnythingSurvivesPartialWritesAndReads) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto up_to = [&](size_t most) { return 1 + random() % most; };
  for (int run = 0; run < 30; ++run) {
    const size_t pieces = run % 2 == 0 ? up_to(100) : up_to(50000);
    recorder_.frames.clear();
    pushed_.clear();
    for (int i = 0; i < 100; ++i) {
      const size_t bytes = random() % 10 == 0 ? up_to(100000) : random() % 5000;
      std::string payload(bytes, '\0');
      for (char& c : payload) c = static_cast<char>(random());
      Push({random() % 50, std::move(payload)});
    }
    const std::string wire = WriteAll(&writer_, [&](size_t bytes) { return up_to(bytes); });
    ASSERT_TRUE(Feed(wire, [&] { return up_to(pieces); }).ok());
    ASSERT_EQ(recorder_.frames, Pushed()) << "run " << run;
  }
}

TEST_F(FrameStreamTest, ForbiddenBundlesAreMalformed) {
  FrameHeader small = HeaderOf(1), other = HeaderOf(2), large = HeaderOf(3);
  small.payload_bytes = other.payload_bytes = 10;
  large.payload_bytes = kMaxBundledBytes + 1;
  FrameHeader without_frames = HeaderOf(0, FrameType::kBundle);
  FrameHeader too_many = without_frames, too_short = without_frames, too_long = without_frames;
  too_many.detail = kMaxBundleFrames + 1;
  too_many.payload_bytes = too_many.detail * kFrameHeaderBytes;
  too_short.detail = 2;
  too_short.payload_bytes = 2 * kFrameHeaderBytes - 1;
  too_long.detail = 2;
  too_long.payload_bytes = 2 * kFrameHeaderBytes + kMaxBundlePayloadBytes + 1;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"no frames", Raw(without_frames)},
      {"too many frames", Raw(too_many)},
      {"no room for the headers", Raw(too_short)},
      {"too many bytes", Raw(too_long)},
      {"a large frame", RawBundle({large}, large.payload_bytes)},
      {"a bundle in a bundle", RawBundle({HeaderOf(1, FrameType::kBundle)}, 0)},
      {"a HELLO", RawBundle({HeaderOf(1, FrameType::kHello)}, 0)},
      {"a GOAWAY", RawBundle({HeaderOf(1, FrameType::kGoaway)}, 0)},
      {"a partition twice", RawBundle({small, small}, 20)},
      {"more bytes than its frames have", RawBundle({small, other}, 21)},
      {"fewer bytes than its frames have", RawBundle({small, other}, 19)},
  };
  for (const auto& [what, wire] : cases) {
    SetUp();
    EXPECT_EQ(Feed(wire).code(), absl::StatusCode::kInvalidArgument) << what;
  }
  SetUp();
  EXPECT_TRUE(Feed(RawBundle({small, other}, 20)).ok());
}

}  // namespace
}  // namespace addend::tcp
