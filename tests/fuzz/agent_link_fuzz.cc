// Everything that can arrive at the agent's end of a link, from its server and from a process
// without the key: before and after the handshake, on the first link and on renewed links, over a
// transport that copies and a transport that does not. Before the server has proved its identity,
// the agent sees no event and gives no memory except for the handshake; afterwards the agent judges
// every frame, and nothing ends the process.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/link/server_link.h"
#include "lib/transport/convoy.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/input.h"

namespace addend::fuzz {
namespace {

constexpr Incarnation kServer(5);

// A connection whose other end is the input. The sink's owner closes it (EndTurn).
class Wire final : public Link {
 public:
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    if (header.type == FrameType::kHello) opening_.assign(payload.begin(), payload.end());
    if (done) dones_.push_back(std::move(done));
  }
  void Close(absl::Status why) override {
    if (!closed_.has_value()) closed_ = std::move(why);
  }
  std::string peer() const override { return "peer"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::OkStatus(); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}

  const std::vector<std::byte>& opening() const { return opening_; }
  const std::optional<absl::Status>& closed() const { return closed_; }
  void End(Sink* sink) {
    for (Done& done : std::exchange(dones_, {})) done(*closed_);
    sink->OnClosed(*closed_);
  }

 private:
  std::vector<std::byte> opening_;  // of the node's HELLO
  std::vector<Done> dones_;
  std::optional<absl::Status> closed_;
};

class Wires final : public Transport {
 public:
  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return stats_; }
  absl::StatusOr<Address> Listen(const Address&, AcceptFn) override {
    return absl::UnimplementedError("the agent does not listen here");
  }
  void Connect(const Address&, uint32_t, Sink*, absl::Duration, ConnectFn connected) override {
    connected_ = std::move(connected);
  }
  void Connected(Link* link) { std::exchange(connected_, nullptr)(link); }

  Traits traits_{.name = "fuzz", .reach = "process", .in_flight_max = 1000};

 private:
  TransportStats stats_;
  ConnectFn connected_;
};

class Run final : private ServerEvents {
 public:
  explicit Run(Input* input) : input_(*input) {
    identity_.encrypt = input_.Flag();
    wires_.traits_.by_reference = input_.Flag();
    link_.emplace(&identity_, static_cast<ServerEvents*>(this), &convoy_, ServerId(1),
                  "summation server 1", /*shard=*/0);
  }
  ~Run() override {
    link_->Close(absl::CancelledError("the input has ended"));
    EndTurn();
  }
  void Play() {
    Renew();
    for (int i = 0; i < 64 && !input_.empty(); ++i) Step();
  }

 private:
  // ---- callbacks of the link ----
  void Expect(const ServerLink* link) {
    FUZZ_CHECK(proved_, "no event before the proof");
    FUZZ_CHECK(link == &*link_ && link->open(), "the link that is open");
  }
  MutableBytes RoomForResult(const ServerLink* link, const FrameHeader& header) override {
    Expect(link);
    if (header.payload_bytes > room_.size()) return {};
    return MutableBytes(room_).first(header.payload_bytes);
  }
  MutableBytes RoomForStamp(const ServerLink* link, const FrameHeader& header) override {
    return RoomForResult(link, header);
  }
  void OnStamp(const ServerLink* link, const FrameHeader&, Bytes) override { Expect(link); }
  absl::Status OnResult(const ServerLink* link, const FrameHeader&, const EncodedBytes&) override {
    Expect(link);
    return absl::OkStatus();
  }
  void OnSendAgain(const ServerLink* link, const FrameHeader&) override { Expect(link); }
  void OnMoved(const ServerLink* link, const FrameHeader&) override { Expect(link); }
  void OnRecovered(const ServerLink* link, const FrameHeader&) override { Expect(link); }
  void OnAborted(const ServerLink* link, const FrameHeader&) override { Expect(link); }
  void OnLinkOpen(ServerLink* link, Incarnation server) override {
    Expect(link);
    FUZZ_CHECK(server == kServer, "the server that has proved itself");
  }
  void OnLinkLost(ServerLink*, const absl::Status& why) override {
    FUZZ_CHECK(!why.ok(), "a link is lost for a reason");
  }

  // ---- events ----
  void Renew() {
    proved_ = false;
    wire_ = std::make_unique<Wire>();
    link_->Connect(&wires_, {}, "TCP", absl::Seconds(1));
    wires_.Connected(wire_.get());
    Bytes opening = wire_->opening();
    terms_ = {.claim = identity_.claim(),
              .node = identity_.incarnation,
              .server = kServer,
              .shard = 0,
              .encrypt = identity_.encrypt,
              .node_nonce = auth::DecodeOpening(opening).value().nonce,
              .server_nonce = {}};
    terms_.server_nonce.fill(std::byte{9});
  }
  // Stands for the transport's work at the end of the loop's turn.
  void EndTurn() {
    if (wire_ == nullptr || !wire_->closed().has_value()) return;
    proved_ = false;
    wire_->End(&*link_);
    wire_.reset();
  }
  void Deliver(FrameHeader header, std::string_view payload) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    if (const absl::Status status = Take(header, auth::BytesOf(payload)); !status.ok()) {
      wire_->Close(status);
    }
    EndTurn();
  }
  absl::Status Take(const FrameHeader& header, Bytes payload) {
    if (wires_.traits_.by_reference) return link_->OnFrame(header, Payload(payload, [] {}));
    MutableBytes room;
    if (!payload.empty()) {
      auto placed = link_->Place(header);
      if (!placed.ok()) return placed.status();
      room = *placed;
      FUZZ_CHECK(proved_ || room.size() == auth::kSecretBytes, "room for the handshake alone");
      FUZZ_CHECK(room.empty() || room.size() == payload.size(), "all of the payload has room");
    }
    std::copy_n(payload.begin(), room.size(), room.begin());
    return link_->OnFrame(header, Payload(room));
  }
  void Challenge() {
    FrameHeader header;
    header.type = FrameType::kChallenge;
    header.incarnation = kServer;
    Deliver(header, auth::TextOf(terms_.server_nonce));
  }
  void Welcome() {
    FrameHeader header;
    header.type = FrameType::kHello;
    header.flags = kFlagReply;
    header.incarnation = kServer;
    const bool was_proved = proved_;
    proved_ = true;
    const auth::Secret proof = auth::ProofOf(auth::Side::kServer, identity_.token.secret, terms_);
    Deliver(header, auth::TextOf(proof));
    FUZZ_CHECK(!was_proved || wire_ == nullptr, "a second HELLO closes the link");
    if (wire_ != nullptr) FUZZ_CHECK(link_->open(), "the right proof opens the link");
  }
  void Forge() {
    FrameHeader header;
    header.type = static_cast<FrameType>(1 + input_.Below(16));
    header.job = identity_.job;
    header.generation = identity_.generation;
    header.incarnation = input_.Flag() ? kServer : Incarnation(input_.Take());
    header.flags = input_.Number<uint16_t>(64);
    header.partition = PartitionId(TensorId(input_.Number<uint32_t>(4)), input_.Take() % 4);
    header.round = Round(input_.Number<uint64_t>(4));
    header.plan_version = PlanVersion(input_.Number<uint64_t>(4));
    std::string payload(input_.Bytes(input_.Take() % 64));
    if (const uint8_t size = input_.Take(); size < 128) payload.resize(size < 64 ? 0 : 32, 'x');
    Deliver(header, payload);
  }
  void Step() {
    if (wire_ == nullptr) return Renew();
    switch (input_.Take() % 8) {
      case 0:
        return Challenge();
      case 1:
        return Welcome();
      case 2:
        Challenge();
        if (wire_ != nullptr) Welcome();
        return;
      case 3:
        wire_->Close(absl::UnavailableError("the connection broke"));
        return EndTurn();
      default:
        return Forge();
    }
  }

  Input& input_;
  NodeIdentity identity_{.job = JobId(3),
                         .generation = Generation(1),
                         .node = NodeId(0),
                         .incarnation = Incarnation(7),
                         .token = {.expires_unix_s = 4'102'444'800, .secret = {std::byte{1}}}};
  Convoy convoy_{SendLimits()};
  Wires wires_;
  std::unique_ptr<Wire> wire_;  // null when the link is closed
  auth::LinkTerms terms_;
  bool proved_ = false;  // this connection has carried the server's own proof
  std::array<std::byte, 64> room_{};
  std::optional<ServerLink> link_;
};

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  addend::fuzz::Input input(data, size);
  addend::fuzz::Run(&input).Play();
  return 0;
}
