// The TCP transport of a shard: its links and its pending connections.
#pragma once

#include <list>
#include <memory>

#include "lib/transport/acceptor.h"
#include "lib/transport/tcp/factory.h"
#include "lib/transport/tcp/tcp_link.h"

namespace addend {

class TcpTransport final : public Transport {
 public:
  TcpTransport(EventLoop* loop, TcpOptions options);
  ~TcpTransport() override;

  const Traits& traits() const override { return shared_.traits; }
  const TransportStats& stats() const override { return shared_.stats; }
  absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) override;
  void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
               ConnectFn connected) override;

  // Takes a connected socket from a port, on the loop's thread.
  void Adopt(UniqueFd fd, AcceptFn& accept);

 private:
  class Connecting;
  tcp::TcpLink* NewLink(UniqueFd fd, FairTurns::GroupId group);

  EventLoop* const loop_;
  const TcpOptions options_;
  tcp::TcpLink::Shared shared_;
  std::list<std::unique_ptr<tcp::TcpLink>> links_;
  std::list<std::unique_ptr<Connecting>> connecting_;
  std::unique_ptr<Acceptor> listening_;
};

}  // namespace addend
