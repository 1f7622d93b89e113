#include <unistd.h>

#include <cstring>
#include <list>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/transport/inproc/factory.h"

namespace addend {
namespace {
class InprocTransport;
class InprocLink;
}  // namespace

class InprocNetwork {
 public:
  struct Listener {
    std::shared_ptr<Mailbox> mailbox;
    InprocTransport* transport;
  };
  Mutex mu;
  std::map<std::string, Listener> listeners ABSL_GUARDED_BY(mu);
};

namespace {

// State shared by an end of a link, its peer and the payloads on their way. Other threads reach an
// end by posting to the mailbox of its loop, also after the loop has ended; `link` is read and
// cleared on that loop only.
struct End {
  explicit End(std::shared_ptr<Mailbox> mailbox) : mailbox(std::move(mailbox)) {}
  const std::shared_ptr<Mailbox> mailbox;
  InprocLink* link = nullptr;
};

class InprocLink final : public Link {
 public:
  InprocLink(InprocTransport* transport, std::shared_ptr<End> self, std::shared_ptr<End> peer,
             std::string peer_name);
  ~InprocLink() override { self_->link = nullptr; }

  void Open(Sink* sink);
  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override;
  std::string peer() const override { return peer_name_; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}

  // Called by the peer's end, on this end's loop.
  void OnFrame(const FrameHeader& header, Payload payload);
  void OnReleased(uint64_t send);
  void OnPeerClosed(const absl::Status& why);
  // Called by the transport's destructor.
  void Abandon(const absl::Status& why);

 private:
  void Shut(absl::Status why);
  void FinishIfIdle();
  uint64_t Remember(Done done);

  InprocTransport* const transport_;
  const std::shared_ptr<End> self_;
  const std::shared_ptr<End> peer_;
  const std::string peer_name_;
  Sink* sink_ = nullptr;
  bool closing_ = false;
  bool finishing_ = false;
  absl::Status why_;
  uint64_t next_send_ = 1;
  std::map<uint64_t, Done> lent_;  // payloads that the peer holds
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(EventLoop* loop, std::shared_ptr<InprocNetwork> network)
      : loop_(loop), network_(std::move(network)) {}
  ~InprocTransport() override;

  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return stats_; }
  absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) override;
  void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
               ConnectFn connected) override;

  EventLoop* loop() const { return loop_; }
  TransportStats& mutable_stats() { return stats_; }
  // Makes the passive end of a new link, on this loop.
  void Accept(std::shared_ptr<End> self, std::shared_ptr<End> peer, const std::string& peer_name);
  InprocLink* NewLink(std::shared_ptr<End> self, std::shared_ptr<End> peer,
                      const std::string& peer_name);
  void Drop(InprocLink* link);

 private:
  EventLoop* const loop_;
  const std::shared_ptr<InprocNetwork> network_;
  const Traits traits_{.name = "inproc",
                       .reach = absl::StrFormat("pid %d", ::getpid()),
                       .by_reference = true,
                       .in_flight_max = ~0u};
  TransportStats stats_;
  std::string listening_on_;
  AcceptFn accept_;
  std::list<std::unique_ptr<InprocLink>> links_;
};

InprocLink::InprocLink(InprocTransport* transport, std::shared_ptr<End> self,
                       std::shared_ptr<End> peer, std::string peer_name)
    : transport_(transport),
      self_(std::move(self)),
      peer_(std::move(peer)),
      peer_name_(std::move(peer_name)) {
  self_->link = this;
}

void InprocLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) Shut(absl::CancelledError("refused"));
}

uint64_t InprocLink::Remember(Done done) {
  const uint64_t send = next_send_++;
  lent_.emplace(send, std::move(done));
  return send;
}

void InprocLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader complete = header;
  complete.payload_bytes = static_cast<uint32_t>(payload.size());
  const uint64_t send = Remember(std::move(done));
  auto release = [self = self_, send] {
    // Runs on the thread that destroyed the payload.
    self->mailbox->PostSurely([self, send] {
      if (self->link != nullptr) self->link->OnReleased(send);
    });
  };
  auto& stats = transport_->mutable_stats();
  stats.frames_sent.fetch_add(1, std::memory_order_relaxed);
  stats.local_bytes.fetch_add(payload.size(), std::memory_order_relaxed);
  // A closed or dead peer destroys the payload, which releases it.
  peer_->mailbox->PostSurely(
      [peer = peer_, complete, lent = Payload(payload, std::move(release))]() mutable {
        if (peer->link != nullptr) peer->link->OnFrame(complete, std::move(lent));
      });
}

void InprocLink::Close(absl::Status why) { Shut(std::move(why)); }

void InprocLink::OnFrame(const FrameHeader& header, Payload payload) {
  if (closing_ || sink_ == nullptr) return;
  transport_->mutable_stats().frames_received.fetch_add(1, std::memory_order_relaxed);
  if (absl::Status status = sink_->OnFrame(header, std::move(payload)); !status.ok()) Shut(status);
}

void InprocLink::OnReleased(uint64_t send) {
  auto node = lent_.extract(send);
  if (!node.empty() && node.mapped()) node.mapped()(closing_ ? why_ : absl::OkStatus());
  FinishIfIdle();
}

void InprocLink::OnPeerClosed(const absl::Status& why) { Shut(why); }

void InprocLink::Shut(absl::Status why) {
  if (closing_) return;
  closing_ = true;
  why_ = std::move(why);
  peer_->mailbox->PostSurely(
      [peer = peer_,
       told = why_.ok() ? absl::CancelledError("the peer closed the link on purpose") : why_] {
        if (peer->link != nullptr) peer->link->OnPeerClosed(told);
      });
  FinishIfIdle();
}

// Waits for all Dones: lent payloads stay with the peer until it releases them, also when the link
// closes.
void InprocLink::FinishIfIdle() {
  if (!closing_ || finishing_ || !lent_.empty()) return;
  finishing_ = true;
  transport_->loop()->Defer([self = self_] {
    InprocLink* link = self->link;
    if (link == nullptr) return;
    if (link->sink_ != nullptr) link->sink_->OnClosed(link->why_);
    link->transport_->Drop(link);
  });
}

void InprocLink::Abandon(const absl::Status& why) {
  if (!closing_) {
    peer_->mailbox->PostSurely([peer = peer_] {
      if (peer->link != nullptr)
        peer->link->OnPeerClosed(absl::UnavailableError("the peer shut down"));
    });
  }
  closing_ = true;
  for (auto& [send, done] : lent_) {
    if (done) done(why);
  }
  lent_.clear();
  if (sink_ != nullptr) sink_->OnClosed(why);
}

InprocTransport::~InprocTransport() {
  if (!listening_on_.empty()) {
    MutexLock lock(&network_->mu);
    network_->listeners.erase(listening_on_);
  }
  std::list<std::unique_ptr<InprocLink>> links;
  links.swap(links_);
  for (auto& link : links) link->Abandon(absl::CancelledError("this process is shutting down"));
}

absl::StatusOr<Address> InprocTransport::Listen(const Address& bind, AcceptFn accept) {
  MutexLock lock(&network_->mu);
  if (!network_->listeners.emplace(bind.host, InprocNetwork::Listener{loop_->mailbox(), this})
           .second) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the in-process address '%s' is in use", bind.host));
  }
  listening_on_ = bind.host;
  accept_ = std::move(accept);
  return bind;
}

void InprocTransport::Connect(const Address& peer, uint32_t, Sink* sink, absl::Duration,
                              ConnectFn connected) {
  InprocNetwork::Listener listener{};
  {
    MutexLock lock(&network_->mu);
    const auto it = network_->listeners.find(peer.host);
    if (it != network_->listeners.end()) listener = it->second;
  }
  if (listener.mailbox == nullptr) {
    loop_->Defer([connected = std::move(connected), host = peer.host]() mutable {
      connected(absl::UnavailableError(
          absl::StrFormat("there is no listener on '%s' in this process", host)));
    });
    return;
  }
  auto here = std::make_shared<End>(loop_->mailbox());
  auto there = std::make_shared<End>(listener.mailbox);
  NewLink(here, there, peer.host);
  listener.mailbox->PostSurely([network = network_, here, there, host = peer.host] {
    // The listener may have gone since the look-up.
    InprocTransport* transport = nullptr;
    {
      MutexLock lock(&network->mu);
      const auto it = network->listeners.find(host);
      if (it != network->listeners.end()) transport = it->second.transport;
    }
    if (transport != nullptr) return transport->Accept(there, here, "in-process peer");
    here->mailbox->PostSurely([here] {
      if (here->link != nullptr)
        here->link->OnPeerClosed(absl::UnavailableError("the listener is gone"));
    });
  });
  loop_->Defer([here, sink, connected = std::move(connected)]() mutable {
    if (here->link == nullptr) return;
    InprocLink* link = here->link;
    connected(link);
    link->Open(sink);
  });
}

void InprocTransport::Accept(std::shared_ptr<End> self, std::shared_ptr<End> peer,
                             const std::string& peer_name) {
  InprocLink* link = NewLink(std::move(self), std::move(peer), peer_name);
  link->Open(accept_(link));
}

InprocLink* InprocTransport::NewLink(std::shared_ptr<End> self, std::shared_ptr<End> peer,
                                     const std::string& peer_name) {
  links_.push_back(std::make_unique<InprocLink>(this, std::move(self), std::move(peer), peer_name));
  return links_.back().get();
}

void InprocTransport::Drop(InprocLink* link) {
  links_.remove_if([link](const auto& other) { return other.get() == link; });
}

}  // namespace

std::shared_ptr<InprocNetwork> MakeInprocNetwork() { return std::make_shared<InprocNetwork>(); }

std::unique_ptr<Transport> MakeInprocTransport(EventLoop* loop,
                                               std::shared_ptr<InprocNetwork> network) {
  return std::make_unique<InprocTransport>(loop, std::move(network));
}

}  // namespace addend
