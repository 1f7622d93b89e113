// Everything that can arrive at a data port as a stream of frames: in any segmentation the same
// frames come out, each payload exactly fills its memory, and an accepted header contains all
// information of its bytes.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/fd.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/wire/crc32c.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/rooms.h"

namespace addend::fuzz {
namespace {

void CheckRoundTrip(const EncodedHeader& bytes) {
  const absl::StatusOr<FrameHeader> header = DecodeHeader(bytes);
  if (!header.ok()) return;
  EncodedHeader again;
  EncodeHeader(*header, &again);
  FUZZ_CHECK(again == bytes, "a header that is accepted is the one that its fields encode");
}

// The stream: arbitrary bytes, or mostly valid frames.
class Stream {
 public:
  static std::string From(Input* input) {
    Stream stream(input);
    while (!input->empty() && stream.bytes_.size() < (64 << 10)) stream.Add();
    return std::move(stream.bytes_);
  }

 private:
  explicit Stream(Input* input) : input_(input) {}
  void Add() {
    switch (input_->Take() % 8) {
      case 0:
        bytes_ += input_->Bytes(input_->Take());
        return;
      case 1:
      case 2:
        return AddBundle();
      default:
        const FrameHeader header = AnyHeader();
        AddHeader(header);
        bytes_.append(header.payload_bytes % (2 * kMaxBundledBytes), 'p');
    }
  }
  FrameHeader AnyHeader() {
    FrameHeader header;
    header.type = static_cast<FrameType>(2 + input_->Number<uint8_t>(14));
    header.flags = input_->Number<uint16_t>(32);
    header.dtype = static_cast<DType>(input_->Number<uint8_t>(6));
    header.op = static_cast<ReduceOp>(input_->Number<uint8_t>(6));
    header.partition = PartitionId(input_->Number<uint64_t>(8));
    header.round = Round(input_->Number<uint64_t>(4));
    header.detail = input_->Number<uint32_t>(4);
    header.payload_bytes = input_->Number<uint32_t>(96);
    return header;
  }
  void AddBundle() {
    FrameHeader bundle = AnyHeader();
    const auto wrong = static_cast<int8_t>(input_->Number<uint8_t>(1));
    std::vector<FrameHeader> headers(input_->Take() % 64);
    size_t payload_bytes = 0;
    for (size_t i = 0; i < headers.size(); ++i) {
      headers[i] = AnyHeader();
      if (input_->Take() < 250) headers[i].partition = PartitionId(4 * i);
      payload_bytes += headers[i].payload_bytes;
    }
    bundle.type = FrameType::kBundle;
    bundle.detail = static_cast<uint32_t>(headers.size());
    bundle.payload_bytes =
        static_cast<uint32_t>(headers.size() * kFrameHeaderBytes + payload_bytes + wrong);
    AddHeader(bundle);
    for (const FrameHeader& header : headers) AddHeader(header);
    bytes_.append(payload_bytes % (2 * kMaxBundlePayloadBytes), 'b');
  }
  // Mostly corrects the checksum after changing a byte.
  void AddHeader(const FrameHeader& header) {
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    if (const uint8_t at = input_->Number<uint8_t>(1); at != 0) {
      bytes[at % kFrameHeaderBytes] ^= input_->Take<std::byte>();
      const uint32_t crc = Crc32c(Bytes(bytes).first(kFrameHeaderBytes - sizeof(crc)));
      if (at < 200) std::memcpy(bytes.data() + kFrameHeaderBytes - sizeof(crc), &crc, sizeof(crc));
    }
    CheckRoundTrip(bytes);
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Input* const input_;
  std::string bytes_;
};

struct Taken {
  uint64_t partition;
  FrameType type;
  std::string payload;
  bool operator==(const Taken&) const = default;
};

class Taker final : public tcp::FrameTaker {
 public:
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    return rooms_.For(header);
  }
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override {
    frames.push_back({header.partition.value(), header.type, rooms_.Take(header, payload)});
    return absl::OkStatus();
  }
  bool closing() const override { return false; }

  std::vector<Taken> frames;

 private:
  Rooms rooms_;
};

// The frames of a stream that arrives in pieces, and the status at its end.
std::pair<std::vector<Taken>, absl::StatusCode> Read(const std::string& stream, auto piece) {
  int fds[2];
  FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "descriptors");
  const UniqueFd ours(fds[0]);
  const UniqueFd theirs(fds[1]);
  Taker taker;
  tcp::FrameReader reader(ours.get(), "peer", &taker);
  absl::Status status;
  for (size_t at = 0; at < stream.size() && status.ok();) {
    const ssize_t written =
        ::write(theirs.get(), stream.data() + at, std::min(stream.size() - at, piece()));
    FUZZ_CHECK(written > 0, "what was written has been read");
    at += static_cast<size_t>(written);
    tcp::FrameReader::Progress progress;
    status = reader.Read(1 << 30, &progress);
  }
  return {std::move(taker.frames), status.code()};
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend::fuzz;
  if (size >= addend::kFrameHeaderBytes) {
    addend::EncodedHeader bytes;
    std::memcpy(bytes.data(), data, bytes.size());
    CheckRoundTrip(bytes);
  }
  Input input(data, size);
  const uint32_t cuts = input.Take<uint32_t>();
  const std::string stream = Stream::From(&input);
  const auto whole = Read(stream, [] { return size_t{32} << 10; });
  uint32_t state = cuts;
  const auto cut = Read(stream, [&state] {
    state = state * 1664525 + 1013904223;
    const uint32_t bits = state >> 24;
    return size_t{bits % 4 == 0 ? 1 + bits : bits % 4 == 1 ? 96u : 1 + (state >> 16) % 4096};
  });
  FUZZ_CHECK(whole == cut, "the same frames, however the stream is cut");
  return 0;
}
