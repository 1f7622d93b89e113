// A link between two processes of the same machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/transport/shm/borrowed_memory.h"
#include "lib/transport/shm/input.h"
#include "lib/transport/shm/lent_memory.h"
#include "lib/transport/shm/link_page.h"
#include "lib/transport/shm/outgoing.h"
#include "lib/transport/socket_link.h"
#include "lib/wire/link_version.h"

namespace addend::shm {

class ShmLink final : public SocketLink {
 public:
  // As of SocketLink.
  ShmLink(Shared* shared, UniqueFd fd, std::string peer, FairTurns::GroupId group, GoneFn gone)
      : SocketLink(shared, std::move(fd), std::move(peer), group, std::move(gone)),
        stranger_(group == LinkTurns::kStrangers) {}

  // Of the connecting end, before Open(): the link's page, which the peer gets first.
  void SetPage(LinkPage page);
  // The mapping of this number ends (mappings.h).
  void Forget(uint64_t mapping);
  // It has no group that its owner has given it.
  bool is_stranger() const { return stranger_; }

  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  // Nothing leaves the machine.
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t group) override;

 private:
  // A frame whose payload comes through the socket.
  struct Coming {
    FrameHeader header;
    MutableBytes room;  // empty: the payload is dropped
    size_t got = 0;
  };
  void Queue(const FrameHeader& header, Bytes payload, Done done) override;
  size_t queued() const override { return outgoing_.in_use(); }
  bool NothingToSend() const override { return outgoing_.empty(); }
  int Gather(iovec (&vectors)[kVectors], int* file) override {
    return outgoing_.Gather(vectors, file);
  }
  size_t OnSent(size_t bytes) override { return outgoing_.Sent(bytes); }
  absl::Status Receive(size_t most, FairTurns::Waiter::Work* work) override;
  std::vector<Done> TakeDue() override { return outgoing_.TakeDue(); }
  std::vector<Done> TakeAll() override { return outgoing_.TakeAll(); }
  void OnClosing() override;

  // Reads once; adds the bytes to `*cost`. False: there is nothing more to read. UNAVAILABLE: the
  // connection has ended.
  absl::StatusOr<bool> Read(size_t* cost);
  // Takes complete records from the bytes that were read.
  absl::Status TakeRecords(size_t most, size_t* cost);
  // False: bytes are missing.
  absl::StatusOr<bool> TakeRecord(size_t* cost);
  absl::Status OnRecord(const Record& record);
  absl::StatusOr<FrameHeader> TakeHeader();
  absl::Status OnLent(const Record& record, const FrameHeader& header);
  bool TakePayload(size_t* cost);
  void SayReleased();

  bool stranger_;
  std::optional<LinkPage> page_;  // nullopt: the peer has not sent it yet
  Outgoing outgoing_;
  LentMemory lent_;
  BorrowedMemory borrowed_;
  LinkVersion version_;
  Input input_;
  std::optional<Coming> coming_;
  uint64_t released_ = 0;  // payloads copied, of which the peer does not know
};

}  // namespace addend::shm
