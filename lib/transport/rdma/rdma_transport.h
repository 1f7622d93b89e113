// The RDMA transport of a shard: its links, and the links that are being set up.
//
// Connection setup: the connecting end offers a queue pair on each of its NICs. The answering end
// replies to each with a queue pair of its own, if a NIC of its own reaches that NIC. Then both
// ends send a first message. A link opens only when the peer's message has arrived, so that a path
// that does not carry packets is noticed before the link is used.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/transport/rdma/completions.h"
#include "lib/transport/rdma/factory.h"
#include "lib/transport/rdma/rdma_link.h"

namespace addend {

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(EventLoop* loop, rdma::DialFn dial);
  ~RdmaTransport() override;

  // On the loop's thread.
  absl::Status Begin(const rdma::Devices& devices, const RdmaOptions& options);

  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return shared_.stats; }
  // Only stores `accept`: incoming links come through Answer(). Returns the caller's own address.
  absl::StatusOr<Address> Listen(const Address& bind, AcceptFn accept) override;
  void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
               ConnectFn connected) override;
  // Answers an authorized peer that has begun a conversation with this shard and offers these ends.
  // `owner`: the owner of the memory that the link may reach, not 0.
  void Answer(const std::string& peer, uint64_t owner, const rdma::Signal::Ends& offer,
              std::unique_ptr<rdma::Signals> signals);
  // Closes every link on purpose.
  void CloseAll(const absl::Status& why);

 private:
  rdma::RdmaLink* NewLink(std::string peer, std::unique_ptr<rdma::Signals> signals,
                          FairTurns::GroupId group, uint64_t domain,
                          rdma::RdmaLink::DecideFn decide);
  rdma::RdmaLink* Find(uint64_t number) const;
  void ListenTo(uint64_t number, rdma::Signals* signals);
  void OnSignal(uint64_t number, absl::StatusOr<rdma::Signal> signal);
  absl::Status Offer(rdma::RdmaLink* link, uint32_t shard, uint32_t version);
  absl::Status TakeAnswer(rdma::RdmaLink* link, const rdma::Signal::Ends& answer);
  absl::StatusOr<rdma::Signal::Ends> Meet(rdma::RdmaLink* link, const rdma::Signal::Ends& offer);
  rdma::CompletionQueue* NicTowards(const rdma::PortAddress& peer, size_t first) const;
  // Closes the link if it is still undecided after `timeout`.
  void GiveUpAfter(absl::Duration timeout, uint64_t number, std::string whom);
  void WatchForFailures(const std::shared_ptr<rdma::Device>& device);
  void Drop(rdma::RdmaLink* link);

  EventLoop* const loop_;
  const rdma::DialFn dial_;
  const Traits traits_;
  rdma::RdmaLink::Shared shared_;
  AcceptFn accept_;
  bool domain_per_owner_ = false;
  std::vector<std::unique_ptr<rdma::CompletionQueue>> nics_;
  std::vector<std::shared_ptr<rdma::Device::FailureListener>> failures_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::unique_ptr<rdma::RdmaLink>> links_;  // by number, never used twice
  // Expires with the transport: posted tasks hold weak references, because they may outlive it.
  std::shared_ptr<RdmaTransport*> self_;
};

}  // namespace addend
