// A link over a TCP connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/transport/socket_link.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/tcp/records.h"

namespace addend::tcp {

class TcpLink final : public SocketLink, private FrameTaker {
 public:
  // As of SocketLink.
  TcpLink(Shared* shared, UniqueFd fd, std::string peer, FairTurns::GroupId group, GoneFn gone)
      : SocketLink(shared, std::move(fd), std::move(peer), group, std::move(gone)),
        incoming_(SocketLink::fd(), SocketLink::peer(), this) {}

  absl::Duration sending_time() const override;
  absl::Status Encrypt(const LinkKeys& keys) override;
  void LimitInFlight(size_t bytes) override;

 private:
  void Queue(const FrameHeader& header, Bytes payload, Done done) override;
  size_t queued() const override { return outgoing_.size(); }
  bool NothingToSend() const override { return outgoing_.empty() && sealed_sent_ == sealed_end_; }
  int Gather(iovec (&vectors)[kVectors], int* file) override;
  int GatherSealed(iovec* vectors);
  size_t OnSent(size_t bytes) override;
  void NoteSending(int64_t ns) override;
  absl::Status Receive(size_t most, FairTurns::Waiter::Work* work) override;
  std::vector<Done> TakeDue() override { return std::exchange(completed_, {}); }
  std::vector<Done> TakeAll() override { return outgoing_.TakeAll(); }
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override { return RoomFor(header); }
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override {
    return Deliver(header, payload);
  }
  bool closing() const override { return closed(); }

  FrameWriter outgoing_;
  FrameReader incoming_;
  std::unique_ptr<Sealer> sealer_;  // null: the link sends plain text
  std::vector<std::byte> sealed_;   // encrypted bytes to write, from sealed_sent_ to sealed_end_
  size_t sealed_sent_ = 0;
  size_t sealed_end_ = 0;
  std::vector<Done> completed_;  // of frames written to the kernel or copied
  bool limited_ = false;
};

}  // namespace addend::tcp
