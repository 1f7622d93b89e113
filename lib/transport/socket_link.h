// The life of a link over a stream socket: its turns on the thread, its queue to the kernel, its
// end. The bytes that pass through the socket are a subclass's.
//
//  1. epoll events only make a direction wait for its turn (OnReady); Read() and Write() then
//     run from FairTurns, each up to a cost, so that a fast link cannot occupy the thread.
//  2. Fail() stops all I/O at once, but the end is announced at the end of the loop's turn
//     (Finish): the link may be in the middle of a callback of its owner.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/fd.h"
#include "lib/base/line_pace.h"
#include "lib/shard/end_of_turn.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/link_turns.h"
#include "lib/transport/transport.h"

namespace addend {

class SocketLink : public Link, private FdHandler {
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
  using GoneFn = absl::AnyInvocable<void(SocketLink*)>;

  ~SocketLink() override;

  // Starts reading. Null: the accept function refused, and the link only closes.
  void Open(Sink* sink);
  // Closes at once. Called by the transport's destructor.
  void Abandon(absl::Status why);

  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_; }
  void Share(uint64_t group) override;

 protected:
  static constexpr int kVectors = 2 * kMaxBundleFrames + 1;  // for a whole bundle

  // The link starts in `group`. `gone` is called last, after the sink's OnClosed, and deletes the
  // link.
  SocketLink(Shared* shared, UniqueFd fd, std::string peer, FairTurns::GroupId group, GoneFn gone);

  Shared* shared() const { return shared_; }
  int fd() const { return fd_.get(); }
  // Once true, no more frames are taken.
  bool closed() const { return closing_; }
  // The peer has closed its direction, or the connection is broken: no further event tells of it.
  bool ended() const { return ended_; }
  // There is something to send.
  void WaitToWrite();
  // The Dones of frames that TakeDue() returns.
  void RunDue();
  // Stops I/O. The first reason counts. If it is the peer's fault, Close() tells the peer.
  void Fail(absl::Status why);
  // The memory for a frame's payload: the sink's, or this link's for a GOAWAY.
  absl::StatusOr<MutableBytes> RoomFor(const FrameHeader& header);
  // A frame has arrived, its payload in that memory.
  absl::Status Deliver(const FrameHeader& header, MutableBytes payload);

  // ---- the subclass's part, on the loop ----
  // Queues a frame, in the link's version.
  virtual void Queue(const FrameHeader& header, Bytes payload, Done done) = 0;
  // The frames of which the peer, or the kernel, has not taken the payload.
  virtual size_t queued() const = 0;
  virtual bool NothingToSend() const = 0;
  // Fills `vectors` with the next bytes to write, which stay valid until OnSent(), and returns
  // their number. `*file`: a descriptor to pass with them, if it is not left at -1.
  virtual int Gather(iovec (&vectors)[kVectors], int* file) = 0;
  // The kernel has taken the first `bytes` of them. Returns the number of frames completed.
  virtual size_t OnSent(size_t bytes) = 0;
  // Of the time that the system call for those bytes took, and their preparation.
  virtual void NoteSending(int64_t) {}
  // Reads up to a cost of about `most`, and takes the frames. An error closes the link; the peer is
  // told, unless it is UNAVAILABLE: the connection has ended.
  virtual absl::Status Receive(size_t most, FairTurns::Waiter::Work* work) = 0;
  // Removes the Dones of frames whose payloads are not in use any more; and all Dones.
  virtual std::vector<Done> TakeDue() = 0;
  virtual std::vector<Done> TakeAll() = 0;
  // From now on nothing is sent, and payloads that were lent may be overwritten.
  virtual void OnClosing() {}

 private:
  // The two directions of the link, which wait for their turns separately.
  struct Reader final : FairTurns::Waiter {
    explicit Reader(SocketLink* link) : link(link) {}
    Work Serve(size_t most) override { return link->Read(most); }
    SocketLink* const link;
  };
  struct Writer final : FairTurns::Waiter {
    explicit Writer(SocketLink* link) : link(link) {}
    Work Serve(size_t most) override { return link->Write(most); }
    SocketLink* const link;
  };
  void OnReady(uint32_t events) override;
  FairTurns::Waiter::Work Read(size_t most);
  FairTurns::Waiter::Work Write(size_t most);
  size_t Flush(size_t most);
  void SayGoodbye(const absl::Status& why);
  void Finish();

  // Constant after construction.
  Shared* const shared_;
  UniqueFd fd_;
  const std::string peer_;
  GoneFn gone_;

  // Owned by the loop's thread.
  Sink* sink_ = nullptr;
  Reader reader_{this};
  Writer writer_{this};
  bool want_write_ = false;  // the kernel's buffer is full
  bool ended_ = false;
  bool closing_ = false;
  absl::Status why_;
  std::string goodbye_;  // text of this end's GOAWAY
  std::string reason_;   // text of the peer's GOAWAY
  EndOfTurn end_{shared_->loop, [this] { Finish(); }};
};

}  // namespace addend
