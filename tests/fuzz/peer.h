// Both ends of a node's link to a shard: the node's bytes are read as from a TCP connection, and
// the shard's frames are kept until the node takes them. Lives on the shard's thread.
#pragma once

#include <sys/socket.h>

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/fd.h"
#include "lib/summation/shard.h"
#include "lib/transport/link_status.h"
#include "lib/transport/tcp/frame_reader.h"
#include "tests/fuzz/check.h"

namespace addend::fuzz {

class Peer final : public Link, private tcp::FrameTaker {
 public:
  explicit Peer(Shard* shard) : Peer(shard, Pair()) {}
  ~Peer() override {
    Fail(absl::UnavailableError("the node has gone"));
    EndTurn();
  }

  // ---- the node ----
  void Write(std::string_view bytes) {
    while (!bytes.empty() && !closing_) {
      const ssize_t put = ::send(far_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      FUZZ_CHECK(put > 0, "what was written has been read");
      bytes.remove_prefix(static_cast<size_t>(put));
      tcp::FrameReader::Progress progress;
      if (absl::Status status = reader_.Read(64 << 20, &progress); !status.ok()) Fail(status);
    }
  }
  void Write(const FrameHeader& header, std::string_view payload = {}) {
    EncodedHeader bytes;
    EncodeHeader(header, &bytes);
    Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    Write(payload);
  }
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  // Takes all frames that the shard has sent, which leave the shard's memory only now.
  std::deque<Frame> Read() {
    std::deque<Frame> frames;
    while (!sent_.empty()) {
      Sent one = std::move(sent_.front());
      sent_.pop_front();
      frames.push_back({one.header, {one.payload.begin(), one.payload.end()}});
      if (one.done) one.done(absl::OkStatus());
    }
    return frames;
  }
  bool closed() const { return closing_; }
  // Stands for the transport's work at the end of the loop's turn.
  void EndTurn() {
    if (!closing_ || sink_ == nullptr) return;
    for (Sent& one : sent_) {
      if (one.done) one.done(why_);
    }
    sent_.clear();
    std::exchange(sink_, nullptr)->OnClosed(why_);
  }

  // ---- the shard ----
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    sent_.push_back({header, payload, std::move(done)});
  }
  void Close(absl::Status why) override { Fail(std::move(why)); }
  std::string peer() const override { return "peer"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}
  absl::Status Encrypt(const LinkKeys&) override {
    return absl::UnimplementedError("the node here does not encrypt");
  }

 private:
  struct Sent {
    FrameHeader header;
    Bytes payload;
    Done done;
  };
  static std::pair<UniqueFd, UniqueFd> Pair() {
    int fds[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "descriptors");
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
  Peer(Shard* shard, std::pair<UniqueFd, UniqueFd> ends)
      : near_(std::move(ends.first)),
        far_(std::move(ends.second)),
        reader_(near_.get(), "peer", this),
        sink_(shard->Accept(this, *shard->tcp())) {}

  void Fail(absl::Status why) {
    if (closing_) return;
    closing_ = true;
    why_ = std::move(why);
  }
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override {
    return sink_->Place(header);
  }
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override {
    if (absl::Status status = CheckChecksum(header, payload, peer()); !status.ok()) return status;
    return sink_->OnFrame(header, Payload(payload));
  }
  bool closing() const override { return closing_; }

  const UniqueFd near_;
  const UniqueFd far_;
  tcp::FrameReader reader_;
  Sink* sink_;  // null when the link has ended
  std::deque<Sent> sent_;
  bool closing_ = false;
  absl::Status why_;
};

}  // namespace addend::fuzz
