// A job on a shard without sockets, threads or the machine's clock: the test delivers the frames of
// the nodes, reads the frames that the server sends, and runs the deferred tasks.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "lib/memory/arena.h"
#include "lib/summation/node_port.h"
#include "lib/summation/shard_context.h"
#include "lib/transport/transport.h"

namespace addend {

inline constexpr JobId kFixtureJob{7};
inline constexpr TensorId kFixtureTensor{1};

inline PartitionId PartitionAt(uint32_t index) { return PartitionId(kFixtureTensor, index); }

// A link that keeps all frames. Their Dones run in Finish().
class RecordingLink final : public Link {
 public:
  struct Frame {
    FrameHeader header;
    std::vector<std::byte> payload;
    std::vector<float> values() const {
      std::vector<float> floats(payload.size() / sizeof(float));
      std::memcpy(floats.data(), payload.data(), payload.size());
      return floats;
    }
  };
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    frames.push_back({header, {payload.begin(), payload.end()}});
    unsent_.push_back(std::move(done));
  }
  void Close(absl::Status why) override {
    if (!closed.has_value()) closed = std::move(why);
  }
  std::string peer() const override { return "a test"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::UnimplementedError("a test"); }
  void LimitInFlight(size_t bytes) override { in_flight = bytes; }
  void Share(uint64_t group) override { shared = group; }

  // The node reads everything.
  void Finish() {
    while (!unsent_.empty()) {
      Done done = std::move(unsent_.front());
      unsent_.pop_front();
      if (done) done(absl::OkStatus());
    }
  }
  std::vector<Frame> Take(FrameType type) const {
    std::vector<Frame> found;
    for (const Frame& frame : frames) {
      if (frame.header.type == type) found.push_back(frame);
    }
    return found;
  }
  size_t Count(FrameType type) const { return Take(type).size(); }
  std::vector<FrameType> Types() const {
    std::vector<FrameType> types;
    for (const Frame& frame : frames) types.push_back(frame.header.type);
    return types;
  }
  // The node reads all that was sent.
  void ReadAll() {
    Finish();
    frames.clear();
  }
  const FrameHeader& Last() const { return frames.back().header; }

  std::vector<Frame> frames;
  std::optional<absl::Status> closed;
  size_t in_flight = 0;
  uint64_t shared = 0;

 private:
  std::deque<Done> unsent_;
};

class JobFixture : public testing::Test {
 protected:
  // A node's end and the server's port for it.
  struct Node {
    RecordingLink link;
    NodePort port;
    Node(const Traits* traits, const SendLimits& limits) : port(&link, traits, limits) {}
    ~Node() {
      link.Finish();
      port.Detach(absl::CancelledError("the test ends"));
    }
  };

  FrameHeader Header(FrameType type, uint32_t node, uint32_t partition = 0, uint64_t round = 0) {
    FrameHeader header;
    header.type = type;
    header.op = op_;
    header.job = kFixtureJob;
    header.generation = spec_.generation;
    header.sender = node;
    header.partition = PartitionAt(partition);
    header.plan_version = plan_;
    header.round = Round(round);
    return header;
  }
  // A partition of a single float. `version` 0: this server is the owner from the first round on;
  // else the nodes have to report.
  PartitionSpec Spec(uint32_t index, uint64_t version = 0) const {
    return {.id = PartitionAt(index),
            .name = "t",
            .op = op_,
            .elements = 1,
            .nodes = spec_.num_nodes,
            .lost = spec_.lost,
            .aborted = spec_.failed,
            .version = PlanVersion(version)};
  }
  std::shared_ptr<Partition> Summed(uint32_t index, uint64_t version = 0) const {
    const std::shared_ptr<Arena> arena = *Arena::Create(8);
    PartitionMemory memory;
    for (int slot = 0; slot < 2; ++slot) {
      memory.accumulator[slot] = memory.result[slot] = arena->memory().data() + 4 * slot;
    }
    memory.keep_alive = arena;
    return std::make_shared<Partition>(Spec(index, version), memory);
  }
  std::unique_ptr<Node> MakeNode() const { return std::make_unique<Node>(&traits_, limits_); }
  // Runs the tasks that are deferred now.
  void EndTurn() {
    auto tasks = std::exchange(deferred_, {});
    for (auto& task : tasks) task();
  }
  // Delivers a frame as a transport does: asks for a place, copies, and hands over.
  template <typename Receiver>
  absl::Status Deliver(Receiver* receiver, Node* node, FrameHeader header,
                       const std::vector<float>& values = {}) {
    const Bytes payload = std::as_bytes(std::span<const float>(values));
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    MutableBytes room;
    if (!payload.empty()) {
      const auto place = receiver->Place(&node->port, header);
      if (!place.ok()) return place.status();
      room = *place;
      if (!room.empty()) std::memcpy(room.data(), payload.data(), room.size());
    }
    return receiver->OnFrame(&node->port, header, Payload(Bytes(room)));
  }

  ReduceOp op_ = ReduceOp::kSum;
  PlanVersion plan_;  // that the nodes follow
  JobSpec spec_{.id = kFixtureJob,
                .generation = Generation(1),
                .plan_version = PlanVersion(1),
                .key = "secret",
                .num_nodes = 2};
  Traits traits_{.name = "test", .reach = "test"};
  SendLimits limits_;
  MemoryBudget budget_{0};
  std::shared_ptr<JobMemory> memory_ = std::make_shared<JobMemory>(&budget_, 0);
  ServerIdentity server_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::deque<absl::AnyInvocable<void()>> deferred_;
  std::vector<Auditor::Finding> findings_;
  ShardContext context_{
      &server_, &budget_, [this](const Auditor::Finding& finding) { findings_.push_back(finding); },
      [this](absl::AnyInvocable<void()> task) { deferred_.push_back(std::move(task)); },
      [this] { return now_; }};
};

}  // namespace addend
