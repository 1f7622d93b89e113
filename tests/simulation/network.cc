#include "tests/simulation/network.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/transport/transport.h"

namespace addend::simulation {
namespace {

// Bytes on their way before the sender's kernel takes no more.
constexpr uint64_t kKernelBuffer = 256 << 10;

using Key = decltype(LinkKeys::send);

// The header of a contribution, wrong in a way that servers refuse or ignore.
FrameHeader MadeWrong(FrameHeader header, uint64_t way) {
  switch (way % Network::kWrongHeaders) {
    case 0:
      header.dtype = header.dtype == DType::kInt64 ? DType::kFloat32 : DType::kInt64;
      break;
    case 1:
      header.op = header.op == ReduceOp::kMin ? ReduceOp::kMax : ReduceOp::kMin;
      break;
    case 2:
      header.partition = PartitionId(header.partition.tensor(), header.partition.index() + 1000);
      break;
    case 3:
      header.payload_bytes += 4;
      break;
    case 4:
      header.generation = Generation(header.generation.value() + 1);
      break;
    case 5:
      header.round = Round(header.round.value() + 50);
      break;
    case 6:
      header.type = FrameType::kStamp;
      break;
    default:
      header.type = FrameType::kResult;
      header.round = Round(header.round.value() + 50);
  }
  return header;
}

absl::Status Unreachable(std::string_view what) {
  return absl::UnavailableError(absl::StrFormat("the connection is lost: %s", what));
}

}  // namespace

// An end of a connection. Survives its link, for the packets that are still on their way.
struct ConnectionEnd {
  std::shared_ptr<Process> process;
  SimLink* link = nullptr;  // null: not accepted yet, or closed
};

// A frame, or the end of the connection.
struct Packet {
  FrameHeader header;
  std::vector<std::byte> payload;
  std::optional<absl::Status> goodbye;
  // The key that its bytes are encrypted with.
  std::optional<Key> key = std::nullopt;
  uint64_t number = 0;  // in its direction, from 1
  uint64_t bytes() const { return kFrameHeaderBytes + payload.size(); }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Network* network, ConnectionEnd opener, ConnectionEnd acceptor)
      : network_(network), ends_{std::move(opener), std::move(acceptor)} {}

  ConnectionEnd& end(int side) { return ends_[side]; }
  bool Joins(const std::string& a, const std::string& b) const {
    const std::string& x = ends_[0].process->host();
    const std::string& y = ends_[1].process->host();
    return (x == a && y == b) || (x == b && y == a);
  }
  bool Has(const Process& process) const {
    return ends_[0].process.get() == &process || ends_[1].process.get() == &process;
  }
  bool broken() const { return broken_; }

  // Less than so many bytes are on their way.
  bool HasRoom(int side, uint64_t bytes) const { return ways_[side].unread < bytes; }
  bool lends() const { return network_->path().lends; }
  // Sends a packet from `side`.
  void Send(int side, Packet packet);
  // Sends a packet as it is, in its turn.
  void Enqueue(int side, Packet packet);
  // The path has healed: the packets that waited go on.
  void Resume();
  // Both ends lose the connection, each by itself. Nothing more arrives.
  void Break(const std::string& why);
  void BreakAt(int side, const std::string& why);
  // The first frame has come: the shard that it names accepts.
  void OnFirst(const Packet& packet);

  std::optional<std::weak_ptr<std::vector<ShardEnd>>> shards;  // until a shard has accepted
  const std::optional<FrameHeader>& contributed() const { return contributed_; }

 private:
  // A direction.
  struct Way {
    std::deque<Packet> waiting;  // behind a cut
    absl::Time free;             // the time at which the wire takes the next byte
    absl::Time last;             // the arrival of the last packet
    uint64_t unread = 0;
    uint64_t sent = 0;
    uint64_t arrived = 0;
    // That have overtaken packets whose arrival was cut.
    std::map<uint64_t, Packet> early;
  };
  void Arrive(int from, Packet packet);
  void Deliver(int from, Packet packet);
  void Depart(int from, Packet packet);

  Network* const network_;
  ConnectionEnd ends_[2];
  Way ways_[2];
  std::optional<FrameHeader> contributed_;  // the last
  bool broken_ = false;
};

class SimLink final : public Link {
 public:
  SimLink(SimTransport* transport, std::shared_ptr<Connection> connection, int side,
          std::string peer);
  ~SimLink() override;

  void Open(Sink* sink);
  void Send(const FrameHeader& header, Bytes payload, Done done) override;
  void Close(absl::Status why) override { Shut(std::move(why), /*tell=*/true); }
  std::string peer() const override { return peer_; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys& keys) override {
    keys_ = keys;
    return absl::OkStatus();
  }
  void LimitInFlight(size_t bytes) override;
  void Share(uint64_t) override {}

  // The key of the next frame.
  std::optional<Key> key() const { return keys_ ? std::optional<Key>(keys_->send) : std::nullopt; }

  // ---- of the connection, on the loop ----
  void OnBegin(const FrameHeader& header);
  void OnPacket(Packet packet);
  void OnBroken(const absl::Status& why) { Shut(why, /*tell=*/false); }
  void Pump();
  // The peer has the first frame that it did not have.
  void OnAck();
  void Abandon(const absl::Status& why);

 private:
  struct Outgoing {
    FrameHeader header;
    Bytes payload;
    Done done;
    std::optional<Key> key;
  };
  void Shut(absl::Status why, bool tell);
  void DeferDone(Done done, absl::Status status);
  void GiveBack();
  void RunDones();
  void Finish();

  SimTransport* const transport_;
  const std::shared_ptr<Connection> connection_;
  const int side_;
  const std::string peer_;
  Sink* sink_ = nullptr;
  std::deque<Outgoing> outgoing_;
  std::deque<Done> lent_;  // of frames under way
  std::deque<std::pair<Done, absl::Status>> dones_;
  std::optional<MutableBytes> room_;  // placed, and not filled yet
  std::optional<LinkKeys> keys_;
  uint64_t in_flight_ = kKernelBuffer;
  bool closing_ = false;
  absl::Status why_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class SimTransport final : public Transport {
 public:
  SimTransport(Network* network, Loop* loop) : network_(network), loop_(loop) {}
  ~SimTransport() override {
    std::list<std::unique_ptr<SimLink>> links;
    links.swap(links_);
    for (auto& link : links) link->Abandon(absl::CancelledError("this process is shutting down"));
  }

  const Traits& traits() const override { return traits_; }
  const TransportStats& stats() const override { return stats_; }
  absl::StatusOr<Address> Listen(const Address&, AcceptFn) override {
    return absl::UnimplementedError("a simulated server listens by its machine");
  }
  void Connect(const Address& peer, uint32_t shard, Sink* sink, absl::Duration timeout,
               ConnectFn connected) override;

  Loop* loop() const { return loop_; }
  TransportStats& mutable_stats() { return stats_; }
  SimLink* NewLink(std::shared_ptr<Connection> connection, int side, std::string peer) {
    links_.push_back(std::make_unique<SimLink>(this, std::move(connection), side, std::move(peer)));
    return links_.back().get();
  }
  void Drop(SimLink* link) {
    links_.remove_if([link](const auto& other) { return other.get() == link; });
  }

 private:
  Network* const network_;
  Loop* const loop_;
  const Traits traits_{.name = "tcp", .reach = "ip", .in_flight_max = 65536};
  TransportStats stats_;
  std::list<std::unique_ptr<SimLink>> links_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// ---- the connection ----

void Connection::Send(int side, Packet packet) {
  if (broken_ || !ends_[side].process->alive()) return;
  // Nodes connect to servers.
  if (side == 0 && packet.header.type == FrameType::kContribution) contributed_ = packet.header;
  if (side == 0 && packet.header.type == FrameType::kPartialSum) network_->NoteRelayedSum();
  if (side == 1 && !packet.goodbye) {
    network_->NoteFrame(Network::Moment::kLeaves, *ends_[1].process, *ends_[0].process,
                        packet.header);
  }
  Enqueue(side, std::move(packet));
}

void Connection::Enqueue(int side, Packet packet) {
  ways_[side].unread += packet.bytes();
  packet.number = ++ways_[side].sent;
  Depart(side, std::move(packet));
}

void Connection::Depart(int from, Packet packet) {
  Way& way = ways_[from];
  const bool cut = network_->IsCut(ends_[0].process->host(), ends_[1].process->host());
  if (cut || !way.waiting.empty()) {
    way.waiting.push_back(std::move(packet));
    return;
  }
  World* const world = network_->world();
  const absl::Duration transfer =
      absl::Seconds(static_cast<double>(packet.bytes()) / network_->path().bytes_per_s);
  const absl::Time begin = std::max(world->Now(), way.free);
  way.free = begin + transfer;
  const absl::Duration latency = network_->Latency();
  const absl::Time first = std::max(begin + latency, way.last);
  way.last = std::max(way.free + latency, first);
  // The payload is placed when the frame begins to arrive.
  if (!packet.payload.empty() && !packet.goodbye) {
    world->At(first, [self = shared_from_this(), from, header = packet.header] {
      ConnectionEnd& to = self->ends_[1 - from];
      to.process->Do([self, from, header] {
        ConnectionEnd& end = self->ends_[1 - from];
        if (self->broken_ || end.link == nullptr) return;
        end.link->OnBegin(header);
        if (from == 0) return;
        self->network_->NoteFrame(Network::Moment::kArrives, *self->ends_[1].process, *end.process,
                                  header);
      });
    });
  }
  world->At(way.last, [self = shared_from_this(), from, packet = std::move(packet)]() mutable {
    self->Arrive(from, std::move(packet));
  });
}

void Connection::Arrive(int from, Packet packet) {
  if (broken_) return;
  if (network_->IsCut(ends_[0].process->host(), ends_[1].process->host())) {
    ways_[from].waiting.push_back(std::move(packet));
    return;
  }
  Way& way = ways_[from];
  const uint64_t number = packet.number;
  way.early.emplace(number, std::move(packet));
  while (!way.early.empty() && way.early.begin()->first == way.arrived + 1) {
    ++way.arrived;
    Deliver(from, std::move(way.early.extract(way.early.begin()).mapped()));
  }
}

void Connection::Deliver(int from, Packet packet) {
  ends_[1 - from].process->Do(
      [self = shared_from_this(), from, packet = std::move(packet)]() mutable {
        if (self->broken_) return;
        Way& way = self->ways_[from];
        way.unread -= packet.bytes();
        self->network_->world()->After(self->network_->Latency(), [self, from] {
          self->ends_[from].process->Do([self, from] {
            if (!self->broken_ && self->ends_[from].link != nullptr)
              self->ends_[from].link->OnAck();
          });
        });
        if (from == 0 && self->shards) self->OnFirst(packet);
        if (SimLink* const link = self->ends_[1 - from].link) link->OnPacket(std::move(packet));
      });
}

void Connection::OnFirst(const Packet& packet) {
  const auto all = std::exchange(shards, std::nullopt)->lock();
  if (packet.goodbye) return;
  if (all == nullptr || packet.header.partition.value() >= all->size()) {
    return Break("nobody accepts it");
  }
  ShardEnd& chosen = (*all)[packet.header.partition.value()];
  auto* const transport = static_cast<SimTransport*>(chosen.transport.get());
  SimLink* const link = transport->NewLink(shared_from_this(), 1, ends_[0].process->name());
  link->Open(chosen.accept(link));
  if (!packet.payload.empty() && ends_[1].link != nullptr) ends_[1].link->OnBegin(packet.header);
}

void Connection::Resume() {
  for (int side = 0; side < 2; ++side) {
    std::deque<Packet> waiting;
    waiting.swap(ways_[side].waiting);
    // A packet whose arrival was cut may wait behind a packet that was sent later.
    std::sort(waiting.begin(), waiting.end(),
              [](const Packet& a, const Packet& b) { return a.number < b.number; });
    for (Packet& packet : waiting) Depart(side, std::move(packet));
  }
}

void Connection::Break(const std::string& why) {
  if (broken_) return;
  broken_ = true;
  BreakAt(0, why);
  BreakAt(1, why);
}

void Connection::BreakAt(int side, const std::string& why) {
  ends_[side].process->After(network_->Latency(), [self = shared_from_this(), side, why] {
    if (self->ends_[side].link != nullptr) self->ends_[side].link->OnBroken(Unreachable(why));
  });
}

// ---- the link ----

SimLink::SimLink(SimTransport* transport, std::shared_ptr<Connection> connection, int side,
                 std::string peer)
    : transport_(transport),
      connection_(std::move(connection)),
      side_(side),
      peer_(std::move(peer)) {
  connection_->end(side_).link = this;
}

SimLink::~SimLink() { connection_->end(side_).link = nullptr; }

void SimLink::Open(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) Shut(absl::CancelledError("refused"), /*tell=*/true);
}

void SimLink::Send(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader complete = header;
  complete.payload_bytes = static_cast<uint32_t>(payload.size());
  if (closing_) return DeferDone(std::move(done), why_);
  outgoing_.push_back({complete, payload, std::move(done), key()});
  Pump();
}

void SimLink::Pump() {
  TransportStats& stats = transport_->mutable_stats();
  while (!closing_ && !outgoing_.empty() && connection_->HasRoom(side_, in_flight_)) {
    Outgoing next = std::move(outgoing_.front());
    outgoing_.pop_front();
    Packet packet{.header = next.header,
                  .payload = {next.payload.begin(), next.payload.end()},
                  .goodbye = std::nullopt,
                  .key = next.key};
    stats.frames_sent += 1;
    stats.bytes_sent += packet.bytes();
    connection_->Send(side_, std::move(packet));
    if (connection_->lends()) {
      lent_.push_back(std::move(next.done));
    } else {
      DeferDone(std::move(next.done), absl::OkStatus());
    }
  }
}

void SimLink::LimitInFlight(size_t bytes) {
  in_flight_ = std::clamp<uint64_t>(bytes, 1, kKernelBuffer);  // a frame at least
  transport_->loop()->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Pump();
  });
}

void SimLink::OnAck() {
  if (!closing_ && !lent_.empty()) {
    Done done = std::move(lent_.front());
    lent_.pop_front();
    DeferDone(std::move(done), absl::OkStatus());
  }
  Pump();
}

void SimLink::DeferDone(Done done, absl::Status status) {
  dones_.emplace_back(std::move(done), std::move(status));
  transport_->loop()->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) RunDones();
  });
}

// The payloads that are lent, and those that were never sent.
void SimLink::GiveBack() {
  for (Done& done : lent_) dones_.emplace_back(std::move(done), why_);
  for (Outgoing& one : outgoing_) dones_.emplace_back(std::move(one.done), why_);
  lent_.clear();
  outgoing_.clear();
}

void SimLink::RunDones() {
  const std::weak_ptr<bool> alive = alive_;
  while (!alive.expired() && !dones_.empty()) {
    auto [done, status] = std::move(dones_.front());
    dones_.pop_front();
    if (done) done(std::move(status));
  }
}

void SimLink::OnBegin(const FrameHeader& header) {
  if (closing_ || sink_ == nullptr || room_) return;
  auto room = sink_->Place(header);
  if (!room.ok()) return Shut(room.status(), /*tell=*/true);
  room_ = *room;
}

void SimLink::OnPacket(Packet packet) {
  if (closing_) return;
  if (packet.goodbye) return Shut(*packet.goodbye, /*tell=*/false);
  if (sink_ == nullptr) return;
  if (packet.key.has_value() != keys_.has_value() || (keys_ && *packet.key != keys_->receive)) {
    return Shut(absl::DataLossError("the frame is encrypted by another key"), /*tell=*/true);
  }
  transport_->mutable_stats().frames_received += 1;
  transport_->mutable_stats().bytes_received += packet.bytes();
  MutableBytes room;
  if (!packet.payload.empty()) {
    if (!room_) OnBegin(packet.header);  // the frame began to arrive before a cut
    if (closing_ || !room_) return;
    room = *std::exchange(room_, std::nullopt);
    ADDEND_CHECK(room.empty() || room.size() == packet.payload.size(), "a wrong room");
    if (!room.empty()) std::memcpy(room.data(), packet.payload.data(), room.size());
  }
  const absl::Status status = sink_->OnFrame(packet.header, Payload(room));
  if (!status.ok()) Shut(status, /*tell=*/true);
}

void SimLink::Shut(absl::Status why, bool tell) {
  if (closing_) return;
  closing_ = true;
  why_ = why;
  transport_->loop()->process()->Trace(absl::StrFormat("%s the link to %s: %s",
                                                       tell ? "closes" : "loses", peer_,
                                                       why.ok() ? "done" : why.message()));
  if (tell) {
    absl::Status told =
        why.ok() ? absl::CancelledError("the peer closed the link on purpose") : std::move(why);
    connection_->Send(side_, {.header = {}, .payload = {}, .goodbye = std::move(told)});
  }
  GiveBack();
  transport_->loop()->Defer([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Finish();
  });
}

void SimLink::Finish() {
  RunDones();
  Sink* const sink = std::exchange(sink_, nullptr);
  if (sink != nullptr) sink->OnClosed(why_);
  transport_->Drop(this);
}

void SimLink::Abandon(const absl::Status& why) {
  if (!closing_) {
    closing_ = true;
    why_ = why;
    connection_->Send(
        side_,
        {.header = {}, .payload = {}, .goodbye = absl::UnavailableError("the peer shut down")});
    GiveBack();
  }
  RunDones();
  if (Sink* const sink = std::exchange(sink_, nullptr)) sink->OnClosed(why_);
}

// ---- the transport ----

void SimTransport::Connect(const Address& peer, uint32_t, Sink* sink, absl::Duration timeout,
                           ConnectFn connected) {
  struct Attempt {
    ConnectFn connected;
  };
  auto attempt = std::make_shared<Attempt>(Attempt{std::move(connected)});
  Loop* const loop = loop_;
  auto finish = [this, alive = std::weak_ptr<bool>(alive_), loop, attempt](
                    absl::StatusOr<std::shared_ptr<Connection>> connection, Sink* sink,
                    std::string name) {
    if (alive.expired()) return;
    loop->Do([this, alive, attempt, connection = std::move(connection), sink,
              name = std::move(name)]() mutable {
      if (alive.expired() || !attempt->connected) return;
      ConnectFn done = std::exchange(attempt->connected, nullptr);
      if (!connection.ok()) return done(connection.status());
      SimLink* const link = NewLink(*connection, 0, std::move(name));
      // Before the link knew of the connection.
      if ((*connection)->broken()) (*connection)->BreakAt(0, "connection reset by peer");
      done(link);
      link->Open(sink);
    });
  };
  const std::shared_ptr<Process>& process = loop_->process();
  World* const world = network_->world();
  const std::string name = absl::StrFormat("%s:%d", peer.host, peer.port);
  // The answer of the peer's kernel. A lost SYN is sent again after a second.
  auto knock = std::make_shared<std::function<void()>>();
  std::weak_ptr<std::function<void()>> again = knock;
  *knock = [this, alive = std::weak_ptr<bool>(alive_), again, attempt, finish, world, process, peer,
            sink, name] {
    if (alive.expired() || !attempt->connected) return;
    if (network_->IsCut(process->host(), peer.host)) {
      world->After(absl::Seconds(1), [keep = again.lock()] { (*keep)(); });
      return;
    }
    const Network::Listener* const listener = network_->Find(peer.host, peer.port);
    if (listener == nullptr || !listener->process->alive()) {
      return world->After(network_->Latency(), [finish, sink, name] {
        finish(absl::UnavailableError(absl::StrFormat("%s refuses the connection", name)), sink,
               name);
      });
    }
    auto connection = std::make_shared<Connection>(network_, ConnectionEnd{.process = process},
                                                   ConnectionEnd{.process = listener->process});
    connection->shards = listener->shards;
    network_->Add(connection);
    world->After(network_->Latency(),
                 [finish, connection, sink, name] { finish(connection, sink, name); });
  };
  world->After(network_->Latency(), [knock] { (*knock)(); });
  process->After(timeout, [finish, sink, name, timeout] {
    finish(absl::DeadlineExceededError(absl::StrFormat("%s has not answered within %s", name,
                                                       absl::FormatDuration(timeout))),
           sink, name);
  });
}

std::shared_ptr<Transport> SimMachine::MakeTransport(EventLoop* loop) {
  return std::make_shared<SimTransport>(network_, static_cast<Loop*>(loop));
}

namespace {

class SimPort final : public DataPort {
 public:
  SimPort(Network* network, std::shared_ptr<Process> process, std::vector<ShardEnd> shards)
      : network_(network),
        host_(process->host()),
        shards_(std::make_shared<std::vector<ShardEnd>>(std::move(shards))) {
    port_ = network->Listen(host_, {std::move(process), shards_});
  }
  ~SimPort() override { network_->Unlisten(host_, port_); }
  uint16_t port() const override { return port_; }

 private:
  Network* const network_;
  const std::string host_;
  const std::shared_ptr<std::vector<ShardEnd>> shards_;
  uint16_t port_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataPort>> SimMachine::OpenPort(const Address&,
                                                               std::vector<ShardEnd> shards) {
  return std::make_unique<SimPort>(network_, process_, std::move(shards));
}

// ---- the network ----

absl::Duration Network::Latency() {
  return path_.latency + world_->random().Between(absl::ZeroDuration(), path_.jitter);
}

uint16_t Network::Listen(const std::string& host, Listener listener) {
  const uint16_t port = next_port_++;
  listeners_[{host, port}] = std::move(listener);
  return port;
}

void Network::Unlisten(const std::string& host, uint16_t port) { listeners_.erase({host, port}); }

const Network::Listener* Network::Find(const std::string& host, uint16_t port) const {
  const auto found = listeners_.find({host, port});
  return found == listeners_.end() ? nullptr : &found->second;
}

void Network::Add(const std::shared_ptr<Connection>& connection) {
  connections_.remove_if([](const auto& one) { return one.expired(); });
  connections_.push_back(connection);
}

std::vector<std::shared_ptr<Connection>> Network::Between(const Hosts& hosts) {
  std::vector<std::shared_ptr<Connection>> found;
  for (const auto& weak : connections_) {
    auto connection = weak.lock();
    if (connection != nullptr && !connection->broken() &&
        connection->Joins(hosts.first, hosts.second)) {
      found.push_back(std::move(connection));
    }
  }
  return found;
}

bool Network::IsCut(const std::string& a, const std::string& b) const {
  return cut_.contains(Key(a, b));
}

void Network::Cut(const std::string& a, const std::string& b) {
  const Hosts hosts = Key(a, b);
  const uint64_t number = ++cuts_;
  cut_[hosts] = number;
  world_->After(kKeepalive, [this, hosts, number] {
    const auto cut = cut_.find(hosts);
    if (cut == cut_.end() || cut->second != number) return;
    for (const auto& connection : Between(hosts)) connection->Break("the keepalive gave up");
  });
}

void Network::Heal(const std::string& a, const std::string& b) {
  if (cut_.erase(Key(a, b)) == 0) return;
  for (const auto& connection : Between(Key(a, b))) connection->Resume();
}

void Network::Reset(const std::string& a, const std::string& b) {
  for (const auto& connection : Between(Key(a, b))) connection->Break("connection reset by peer");
}

void Network::NoteFrame(Moment moment, const Process& server, const Process& node,
                        const FrameHeader& header) {
  if (header.type == FrameType::kResult && moment == Moment::kLeaves) {
    last_results_[node.name()].insert_or_assign(header.partition, header);
  }
  const auto of_kind = awaited_.find({moment, header.type, node.host()});
  if (of_kind == awaited_.end()) return;
  std::list<Awaited> taken;
  for (auto next = of_kind->second.begin(); next != of_kind->second.end();) {
    const auto awaited = next++;
    if (awaited->takes(server, header)) taken.splice(taken.end(), of_kind->second, awaited);
  }
  for (const Awaited& awaited : taken) awaited.then(server, header);
}

std::vector<FrameHeader> Network::LastResults(const Process& node) const {
  std::vector<FrameHeader> headers;
  const auto last = last_results_.find(node.name());
  if (last == last_results_.end()) return headers;
  for (const auto& [partition, header] : last->second) headers.push_back(header);
  return headers;
}

void Network::Await(Moment moment, FrameType type, const std::string& host, Awaited awaited) {
  std::list<Awaited>& of_kind = awaited_[{moment, type, host}];
  of_kind.push_back(std::move(awaited));
  if (of_kind.size() > kAwaited) of_kind.pop_front();
}

std::vector<std::shared_ptr<Connection>> Network::Between(const Process& node,
                                                          const Process& server) {
  std::vector<std::shared_ptr<Connection>> found = Between(Key(node.host(), server.host()));
  std::erase_if(found, [&](const auto& connection) {
    return connection->shards || connection->end(0).process.get() != &node ||
           connection->end(1).process.get() != &server;
  });
  return found;
}

bool Network::Forge(const Process& server, const Process& node,
                    const std::vector<FrameHeader>& last) {
  for (const auto& connection : Between(node, server)) {
    const SimLink* const link = connection->end(1).link;
    if (link == nullptr) continue;
    for (const FrameHeader& header : last) {
      Packet packet{.header = header,
                    .payload = std::vector<std::byte>(header.payload_bytes, std::byte{0x5a}),
                    .goodbye = std::nullopt,
                    .key = link->key()};
      packet.header.round = Round(header.round.value() + 1);
      connection->Enqueue(1, std::move(packet));
    }
    return true;
  }
  return false;
}

bool Network::SendWrong(const Process& node, const Process& server, uint64_t way) {
  for (const auto& connection : Between(node, server)) {
    const SimLink* const link = connection->end(0).link;
    if (link == nullptr || !connection->contributed()) continue;
    const FrameHeader header = MadeWrong(*connection->contributed(), way);
    connection->Enqueue(0, {.header = header,
                            .payload = std::vector<std::byte>(header.payload_bytes),
                            .goodbye = std::nullopt,
                            .key = link->key()});
    return true;
  }
  return false;
}

void Network::OnDeath(const Process& process, bool silent) {
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (connection == nullptr || connection->broken() || !connection->Has(process)) continue;
    if (!silent) {
      connection->Break("connection reset by peer");
    } else {
      world_->After(kKeepalive, [connection] { connection->Break("the keepalive gave up"); });
    }
  }
}

}  // namespace addend::simulation
