// One TCP connection.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/fd.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/transport.h"

namespace addend::tcp {

class TcpLink final : public Link, private FdHandler {
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
  void Put(Bytes from, RemoteSlice to, uint32_t immediate, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_; }
  absl::Duration sending_time() const override;
  void LimitInFlight(size_t bytes) override;

 private:
  struct Outgoing {
    EncodedHeader header;
    Bytes payload;
    Done done;
    size_t size() const { return header.size() + payload.size(); }
  };

  void OnReady(uint32_t events) override;
  void Schedule();
  void Turn();
  void Flush();
  int GatherOutgoing(iovec* vectors, int limit) const;
  void Sent(size_t bytes);
  absl::Status ReadSome();
  absl::Status ReadOnce(size_t* got, bool* more);
  absl::Status OnHeader();
  absl::Status DeliverFrame();
  absl::Status ReadError(ssize_t got) const;
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
  std::deque<Outgoing> outgoing_;
  size_t head_sent_ = 0;         // bytes of outgoing_.front() already written
  std::vector<Done> completed_;  // written to the kernel; run at the end of the turn
  bool scheduled_ = false;
  bool want_write_ = false;
  bool closing_ = false;
  bool limited_ = false;
  absl::Status why_;
  std::string goodbye_;  // our GOAWAY's text
  std::string reason_;   // the peer's

  EncodedHeader header_bytes_;
  size_t header_got_ = 0;
  FrameHeader header_;
  bool in_payload_ = false;
  MutableBytes payload_;  // where it lands; empty while it is dropped
  size_t payload_got_ = 0;

  // Expires with the link: a deferred turn must not outlive it.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend::tcp
