// One TCP connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/fd.h"
#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

class TcpLink final : public Link, private FdHandler, private FrameTaker {
 public:
  // `gone` is called last, after the sink's OnClosed, and deletes the link. `stats` outlives it.
  TcpLink(EventLoop* loop, UniqueFd fd, const Traits* traits, TransportStats* stats,
          absl::AnyInvocable<void(TcpLink*)> gone);
  ~TcpLink() override;

  // Starts reading. The accept function may return no sink: then the link only closes.
  void Open(Sink* sink);
  // At once, from the transport's destructor.
  void Abandon(absl::Status why);

  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_; }
  absl::Duration sending_time() const override;
  void LimitInFlight(size_t bytes) override;

 private:
  void OnReady(uint32_t events) override;
  void Turn();
  void Flush();
  absl::Status ReadSome();
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override;
  bool closing() const override { return closing_; }
  void SayGoodbye(const absl::Status& why);
  void Fail(absl::Status why);
  void Finish();

  // Constant after construction.
  EventLoop* const loop_;
  UniqueFd fd_;
  const Traits* const traits_;
  TransportStats* const stats_;
  const std::string peer_;
  absl::AnyInvocable<void(TcpLink*)> gone_;

  // Owned by the loop's thread.
  Sink* sink_ = nullptr;
  FrameWriter outgoing_;
  FrameReader incoming_;
  std::vector<Done> completed_;  // written to the kernel; run at the end of the turn
  bool want_write_ = false;
  bool closing_ = false;
  bool limited_ = false;
  absl::Status why_;
  std::string goodbye_;  // our GOAWAY's text
  std::string reason_;   // the peer's
  // All that a turn sends leaves in as few system calls as possible.
  EndOfTurn turn_{loop_, [this] { Turn(); }};
};

}  // namespace addend::tcp
