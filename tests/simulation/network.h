// The simulated network between hosts: links with latency and bandwidth, cut paths, connections
// that break in the middle of a frame, hosts that fall silent.
//
// A connection behaves as TCP does under the transport of lib/transport/tcp: frames arrive complete
// and in order, a peer's death is a reset, a cut path delays frames until it heals, or breaks the
// connection when the keepalive gives up.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/transport/machine.h"
#include "lib/wire/frame.h"
#include "tests/simulation/process.h"

namespace addend::simulation {

class Network;
class Connection;
class SimLink;
class SimTransport;

// The path between two hosts.
struct Path {
  absl::Duration latency = absl::Microseconds(20);
  absl::Duration jitter = absl::Microseconds(10);
  double bytes_per_s = 1e9;
  // The sender may not touch a payload before it has arrived, as with a zero-copy send.
  bool lends = false;
};

class Network {
 public:
  // As SO_KEEPALIVE in lib/transport/tcp/socket.cc.
  static constexpr absl::Duration kKeepalive = absl::Seconds(15);

  Network(World* world, const Path& path) : world_(world), path_(path) {}

  World* world() const { return world_; }
  const Path& path() const { return path_; }
  // The time that a message takes.
  absl::Duration Latency();

  // ---- faults ----
  // Nothing passes between the hosts any more.
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);
  bool IsCut(const std::string& a, const std::string& b) const;
  // Resets the connections between the hosts, perhaps in the middle of a frame.
  void Reset(const std::string& a, const std::string& b);
  // The server sends the node wrong results of the rounds behind those of `last`. False: there is
  // no connection.
  bool Forge(const Process& server, const Process& node, const std::vector<FrameHeader>& last);
  // The node sends the server its last contribution again, with a header that is wrong in one of
  // kWrongHeaders ways. False: it has sent the server no contribution.
  bool SendWrong(const Process& node, const Process& server, uint64_t way);
  static constexpr uint64_t kWrongHeaders = 8;
  // The last result of each partition that was sent to the node.
  std::vector<FrameHeader> LastResults(const Process& node) const;
  // Calls `then` once: when a server's frame of this type leaves for the node's host, or when its
  // first bytes arrive there, and `takes` it. Of each kind the last few are awaited.
  enum class Moment { kLeaves, kArrives };
  struct Awaited {
    std::function<bool(const Process& server, const FrameHeader& header)> takes;
    std::function<void(const Process& server, const FrameHeader& header)> then;
  };
  void Await(Moment moment, FrameType type, const std::string& host, Awaited awaited);
  // The process is dead: its kernel resets its connections. `silent`: the host is dead, and says
  // nothing.
  void OnDeath(const Process& process, bool silent);

  // ---- listening ----
  // A port of a process, as the kernel knows it.
  struct Listener {
    std::shared_ptr<Process> process;
    std::weak_ptr<std::vector<ShardEnd>> shards;  // expires when the port is closed
  };
  // Returns the port.
  uint16_t Listen(const std::string& host, Listener listener);
  void Unlisten(const std::string& host, uint16_t port);
  const Listener* Find(const std::string& host, uint16_t port) const;

  // ---- connections ----
  void NoteFrame(Moment moment, const Process& server, const Process& node,
                 const FrameHeader& header);
  void NoteRelayedSum() { ++relayed_sums_; }
  // That relays have sent to owners.
  uint64_t relayed_sums() const { return relayed_sums_; }
  void Add(const std::shared_ptr<Connection>& connection);

 private:
  using Hosts = std::pair<std::string, std::string>;
  static Hosts Key(const std::string& a, const std::string& b) {
    return a < b ? Hosts(a, b) : Hosts(b, a);
  }
  std::vector<std::shared_ptr<Connection>> Between(const Hosts& hosts);
  // The accepted connections of a node to a server.
  std::vector<std::shared_ptr<Connection>> Between(const Process& node, const Process& server);

  static constexpr size_t kAwaited = 8;  // of each kind

  World* const world_;
  const Path path_;
  std::map<Hosts, uint64_t> cut_;  // with the number of the cut
  uint64_t cuts_ = 0;
  uint64_t relayed_sums_ = 0;
  std::map<std::pair<std::string, uint16_t>, Listener> listeners_;
  uint16_t next_port_ = 7000;
  std::list<std::weak_ptr<Connection>> connections_;
  // By the node's process.
  std::map<std::string, std::map<PartitionId, FrameHeader>> last_results_;
  // By the node's host.
  std::map<std::tuple<Moment, FrameType, std::string>, std::list<Awaited>> awaited_;
};

// A process's view of its host.
class SimMachine final : public Machine {
 public:
  SimMachine(Network* network, std::shared_ptr<Process> process)
      : network_(network), process_(std::move(process)) {}
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) override {
    return Loop::Make(process_, name);
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override;
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                     std::vector<ShardEnd> shards) override;
  absl::Time ClusterNow() const override { return network_->world()->Now(); }

 private:
  Network* const network_;
  const std::shared_ptr<Process> process_;
};

}  // namespace addend::simulation
