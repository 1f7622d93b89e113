// A link over a TCP connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/fd.h"
#include "lib/base/line_pace.h"
#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/link_turns.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/tcp/records.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

class TcpLink final : public Link, private FdHandler, private FrameTaker {
 public:
  // State that all links of a transport share; outlives them.
  struct Shared {
    explicit Shared(EventLoop* loop) : loop(loop), turns(loop) {}
    EventLoop* const loop;
    Traits traits;
    TransportStats stats;
    LinePace blamed;
    LinkTurns turns;
  };
  // The link starts in `group`. `gone` is called last, after the sink's OnClosed, and deletes the
  // link.
  TcpLink(Shared* shared, UniqueFd fd, FairTurns::GroupId group,
          absl::AnyInvocable<void(TcpLink*)> gone);
  ~TcpLink() override;

  // Starts reading. Null: the accept function refused, and the link only closes.
  void Open(Sink* sink);
  // Closes at once. Called by the transport's destructor.
  void Abandon(absl::Status why);

  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_; }
  absl::Duration sending_time() const override;
  absl::Status Encrypt(const LinkKeys& keys) override;
  void LimitInFlight(size_t bytes) override;
  void Share(uint64_t group) override;

 private:
  // The two directions of the link, which wait for their turns separately.
  struct Reader final : FairTurns::Waiter {
    explicit Reader(TcpLink* link) : link(link) {}
    Work Serve(size_t most) override { return link->Read(most); }
    TcpLink* const link;
  };
  struct Writer final : FairTurns::Waiter {
    explicit Writer(TcpLink* link) : link(link) {}
    Work Serve(size_t most) override { return link->Write(most); }
    TcpLink* const link;
  };
  void OnReady(uint32_t events) override;
  FairTurns::Waiter::Work Read(size_t most);
  FairTurns::Waiter::Work Write(size_t most);
  size_t Flush(size_t most);
  bool NothingToSend() const { return outgoing_.empty() && sealed_sent_ == sealed_end_; }
  int GatherSealed(iovec* vectors);
  absl::StatusOr<MutableBytes> Place(const FrameHeader& header) override;
  absl::Status Take(const FrameHeader& header, MutableBytes payload) override;
  bool closing() const override { return closing_; }
  void SayGoodbye(const absl::Status& why);
  void Fail(absl::Status why);
  void Finish();

  // Constant after construction.
  Shared* const shared_;
  UniqueFd fd_;
  const std::string peer_;
  absl::AnyInvocable<void(TcpLink*)> gone_;

  // Owned by the loop's thread.
  Sink* sink_ = nullptr;
  FrameWriter outgoing_;
  FrameReader incoming_;
  std::unique_ptr<Sealer> sealer_;  // null: the link sends plain text
  std::vector<std::byte> sealed_;   // encrypted bytes to write, from sealed_sent_ to sealed_end_
  size_t sealed_sent_ = 0;
  size_t sealed_end_ = 0;
  std::vector<Done> completed_;  // of frames written to the kernel or copied
  Reader reader_{this};
  Writer writer_{this};
  bool want_write_ = false;  // the kernel's buffer is full
  bool ended_ = false;       // the peer has closed its direction, or the connection is broken
  bool closing_ = false;
  bool limited_ = false;
  absl::Status why_;
  std::string goodbye_;  // text of this end's GOAWAY
  std::string reason_;   // text of the peer's GOAWAY
  EndOfTurn end_{shared_->loop, [this] { Finish(); }};
};

}  // namespace addend::tcp
