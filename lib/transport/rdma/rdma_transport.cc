// Sets links up over the signalling channel (signals.h):
//
//  connecting end: creates a queue pair per active NIC and offers their addresses (Offer)
//  answering end: pairs each of them with one of its NICs, connects, answers (Answer, Meet)
//  connecting end: connects to the answered addresses and sends the first message (TakeAnswer)
//  answering end: accepts the link when that message arrives, and greets in return
//
// The first message proves that the path works: without it within the time limit the link fails,
// and the caller may use TCP. Signals arrive on other threads and are posted to the loop, under the
// link's number, since the link may be gone by then.

#include "lib/transport/rdma/rdma_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"

namespace addend {
namespace {

constexpr uint32_t kInFlightMax = 65536;
// Bytes in flight through a link, for full speed: several partitions, one of which is being
// granted.
constexpr size_t kWindowBytes = 1 << 20;
// Time limit for the first message of an answered link.
constexpr absl::Duration kFirstMessageTimeout = absl::Seconds(10);
constexpr size_t kMaxOfferedLanes = 64;

// Checks the version in the peer's offer or answer.
absl::Status CheckVersion(uint32_t version) {
  if (protocol::kRdma.Contains(version)) return absl::OkStatus();
  return MakeFailure(
      FailureKind::kVersion,
      absl::StrFormat(
          "the peer speaks version %d of the RDMA protocol, but this process speaks %s: install "
          "releases of Addend that have a version in common (docs/operations.md)",
          version, Describe(protocol::kRdma)));
}

}  // namespace

RdmaTransport::RdmaTransport(EventLoop* loop, rdma::DialFn dial)
    : loop_(loop),
      dial_(std::move(dial)),
      traits_{.name = "rdma",
              .reach = "fabric",
              .in_flight_max = kInFlightMax,
              .window_bytes = kWindowBytes,
              .device_payload_min = rdma::kInlinePayloadMax + 1},
      shared_{.loop = loop, .table = {}, .stats = {}, .in_flight_max = kInFlightMax},
      self_(std::make_shared<RdmaTransport*>(this)) {}

RdmaTransport::~RdmaTransport() {
  for (const auto& listener : failures_) listener->Stop();
  self_.reset();
  std::map<uint64_t, std::unique_ptr<rdma::RdmaLink>> links;
  links.swap(links_);
  for (auto& [number, link] : links) {
    link->Abandon(absl::CancelledError("this process is shutting down"));
  }
}

absl::Status RdmaTransport::Begin(const rdma::Devices& devices, const RdmaOptions& options) {
  domain_per_owner_ = options.domain_per_owner;
  for (const auto& device : devices) {
    ADDEND_ASSIGN_OR_RETURN(
        auto nic, rdma::CompletionQueue::Create(loop_, device, &shared_.table, options.spin));
    nics_.push_back(std::move(nic));
    WatchForFailures(device);
  }
  return absl::OkStatus();
}

void RdmaTransport::WatchForFailures(const std::shared_ptr<rdma::Device>& device) {
  failures_.push_back(
      device->OnFailure([mailbox = loop_->mailbox(), weak = std::weak_ptr<RdmaTransport*>(self_),
                         device = device.get()](uint32_t queue_pair, const absl::Status& why) {
        mailbox->PostSurely([weak, device, queue_pair, why] {
          const auto self = weak.lock();
          if (self == nullptr) return;
          for (auto& [number, link] : (*self)->links_) {
            link->OnDeviceFailure(device, queue_pair, why);
          }
        });
      }));
}

absl::StatusOr<Address> RdmaTransport::Listen(const Address& bind, AcceptFn accept) {
  accept_ = std::move(accept);
  return bind;
}

void RdmaTransport::Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
                            ConnectFn connected) {
  const std::string name = absl::StrFormat("%s:%d", peer.host, peer.port);
  const uint64_t number = last_number_ + 1;
  rdma::RdmaLink* const link = NewLink(
      name, dial_(peer), LinkTurns::kMade, rdma::Device::kSelf,
      [this, number, sink, connected = std::move(connected)](const absl::Status& status) mutable {
        rdma::RdmaLink* const made = Find(number);
        if (!status.ok()) return connected(status);
        connected(made);
        made->Open(sink);
      });
  ListenTo(number, link->signals());
  if (absl::Status status = Offer(link, shard, peer.rdma_version); !status.ok()) {
    link->Close(rdma::PathFailure(std::move(status)));
  }
  GiveUpAfter(timeout, number, name);
}

void RdmaTransport::GiveUpAfter(absl::Duration timeout, uint64_t number, std::string whom) {
  loop_->RunAfter(timeout, [this, weak = std::weak_ptr<RdmaTransport*>(self_), number,
                            whom = std::move(whom), timeout] {
    if (weak.expired()) return;
    rdma::RdmaLink* const link = Find(number);
    if (link == nullptr || link->decided()) return;
    link->Close(rdma::PathFailure(absl::DeadlineExceededError(absl::StrFormat(
        "RDMA to %s was not set up within %s", whom, absl::FormatDuration(timeout)))));
  });
}

absl::Status RdmaTransport::Offer(rdma::RdmaLink* link, uint32_t shard, uint32_t version) {
  rdma::Signal::Ends offer{.version = version, .shard = shard, .lanes = {}};
  for (const auto& nic : nics_) {
    if (!nic->device()->active()) continue;
    ADDEND_ASSIGN_OR_RETURN(const rdma::LaneAddress lane, link->AddLane(nic.get()));
    offer.lanes.push_back(lane);
  }
  if (offer.lanes.empty()) return absl::UnavailableError("no RDMA port of this machine is active");
  link->signals()->Say({.ends = std::move(offer), .goodbye = std::nullopt});
  return absl::OkStatus();
}

absl::Status RdmaTransport::TakeAnswer(rdma::RdmaLink* link, const rdma::Signal::Ends& answer) {
  ADDEND_RETURN_IF_ERROR(CheckVersion(answer.version));
  ADDEND_RETURN_IF_ERROR(link->Connect(answer.lanes));
  return link->Greet();
}

void RdmaTransport::ListenTo(uint64_t number, rdma::Signals* signals) {
  // A peer may send signals faster than the shard handles them: then the link is closed, once: a
  // signal is never lost silently.
  signals->Listen([mailbox = loop_->mailbox(), weak = std::weak_ptr<RdmaTransport*>(self_), number,
                   flooded = false](absl::StatusOr<rdma::Signal> signal) mutable {
    const auto tell = [weak, number](absl::StatusOr<rdma::Signal> told) {
      return [weak, number, told = std::move(told)]() mutable {
        if (const auto self = weak.lock()) (*self)->OnSignal(number, std::move(told));
      };
    };
    if (!signal.ok()) return mailbox->PostSurely(tell(std::move(signal)));
    const absl::Status posted = mailbox->Post(tell(std::move(signal)));
    if (!absl::IsResourceExhausted(posted) || std::exchange(flooded, true)) return;
    mailbox->PostSurely(tell(posted));
  });
}

void RdmaTransport::OnSignal(uint64_t number, absl::StatusOr<rdma::Signal> signal) {
  rdma::RdmaLink* const link = Find(number);
  if (link == nullptr) return;
  if (!signal.ok() || !signal->ends.has_value()) return link->OnSignal(std::move(signal));
  absl::Status taken = link->decided() || link->connected()
                           ? absl::InvalidArgumentError("addresses came twice")
                           : TakeAnswer(link, *signal->ends);
  if (!taken.ok()) link->Close(rdma::PathFailure(rdma::SaidByPeer(std::move(taken))));
}

void RdmaTransport::Answer(const std::string& peer, uint64_t owner, const rdma::Signal::Ends& offer,
                           std::unique_ptr<rdma::Signals> signals) {
  const uint64_t number = last_number_ + 1;
  rdma::RdmaLink* const link = NewLink(peer, std::move(signals), LinkTurns::kStrangers,
                                       domain_per_owner_ ? owner : rdma::Device::kSelf,
                                       [this, number](const absl::Status& status) {
                                         rdma::RdmaLink* const made = Find(number);
                                         if (status.ok()) made->Open(accept_(made));
                                       });
  ListenTo(number, link->signals());
  auto answer = Meet(link, offer);
  if (!answer.ok()) return link->Close(rdma::PathFailure(answer.status()));
  link->signals()->Say({.ends = *std::move(answer), .goodbye = std::nullopt});
  GiveUpAfter(kFirstMessageTimeout, number, peer);
}

absl::StatusOr<rdma::Signal::Ends> RdmaTransport::Meet(rdma::RdmaLink* link,
                                                       const rdma::Signal::Ends& offer) {
  ADDEND_RETURN_IF_ERROR(CheckVersion(offer.version));
  if (offer.lanes.size() > kMaxOfferedLanes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an offer of %d queue pairs", offer.lanes.size()));
  }
  rdma::Signal::Ends answer{.version = offer.version, .shard = offer.shard, .lanes = {}};
  std::vector<std::optional<rdma::LaneAddress>> peers;
  for (size_t i = 0; i < offer.lanes.size(); ++i) {
    const auto& end = offer.lanes[i];
    // Starts with the NIC of the same index, where both ends have equally many NICs: the pair may
    // belong to one network of several.
    rdma::CompletionQueue* const nic =
        end.has_value() ? NicTowards(end->port, i + offer.shard * offer.lanes.size()) : nullptr;
    answer.lanes.emplace_back();
    if (nic == nullptr) continue;
    ADDEND_ASSIGN_OR_RETURN(answer.lanes.back(), link->AddLane(nic));
    peers.push_back(end);
  }
  ADDEND_RETURN_IF_ERROR(link->Connect(peers));
  return answer;
}

void RdmaTransport::CloseAll(const absl::Status& why) {
  for (auto& [number, link] : links_) link->Close(why);
}

rdma::CompletionQueue* RdmaTransport::NicTowards(const rdma::PortAddress& peer,
                                                 size_t first) const {
  rdma::CompletionQueue* loopback = nullptr;  // used if no other NIC reaches the peer
  for (size_t i = 0; i < nics_.size(); ++i) {
    rdma::CompletionQueue* const nic = nics_[(first + i) % nics_.size()].get();
    const rdma::Device& device = *nic->device();
    if (!device.active() || !rdma::CheckReaches(device.address(), peer).ok()) continue;
    if (!rdma::IsLoopback(device.address(), peer)) return nic;
    loopback = nic;
  }
  return loopback;
}

rdma::RdmaLink* RdmaTransport::NewLink(std::string peer, std::unique_ptr<rdma::Signals> signals,
                                       FairTurns::GroupId group, uint64_t domain,
                                       rdma::RdmaLink::DecideFn decide) {
  auto link = std::make_unique<rdma::RdmaLink>(&shared_, std::move(peer), std::move(signals), group,
                                               domain, std::move(decide),
                                               [this](rdma::RdmaLink* gone) { Drop(gone); });
  return (links_[++last_number_] = std::move(link)).get();
}

rdma::RdmaLink* RdmaTransport::Find(uint64_t number) const {
  const auto it = links_.find(number);
  return it == links_.end() ? nullptr : it->second.get();
}

void RdmaTransport::Drop(rdma::RdmaLink* link) {
  std::erase_if(links_, [link](const auto& entry) { return entry.second.get() == link; });
}

absl::StatusOr<std::shared_ptr<RdmaTransport>> MakeRdmaTransport(EventLoop* loop,
                                                                 const rdma::Devices& devices,
                                                                 rdma::DialFn dial,
                                                                 const RdmaOptions& options) {
  auto transport = std::make_shared<RdmaTransport>(loop, std::move(dial));
  absl::Status status;
  const auto begin = [&] { status = transport->Begin(devices, options); };
  if (loop->InLoop()) {
    begin();
  } else {
    loop->Run(begin);
  }
  if (status.ok()) return transport;
  if (!loop->InLoop()) loop->Run([&] { transport.reset(); });
  return status;
}

}  // namespace addend
