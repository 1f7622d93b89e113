// The Unix socket of the agent and the trainers connected to it (lib/client/ipc.h), with the queues
// in shared memory beside each connection (lib/client/ring.h): frames messages, and leaves their
// meaning to TrainerEvents. Belongs to the agent's core thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/client/messages.h"
#include "lib/client/ring.h"
#include "lib/memory/segment.h"
#include "lib/shard/event_loop.h"
#include "services/worker_agent/trainer.h"

namespace addend {

// Limit of the bytes queued for a trainer that does not read. A trainer that reads has at most a
// result of each tensor in its queue, about 100 bytes each.
inline constexpr size_t kMaxUnreadTrainerBytes = 64 << 20;

class TrainerLink final : public Trainer, private FdHandler {
 public:
  TrainerLink(EventLoop* loop, UniqueFd fd, TrainerEvents* events,
              std::function<void(TrainerLink*)> gone);
  ~TrainerLink() override;
  absl::Status Open();

  void Close(absl::Status why) override;
  int32_t pid() const override { return pid_; }

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<Segment>> segments;
  };
  // Queues the bytes that the socket does not take now, up to kMaxUnreadTrainerBytes; above that
  // the connection is closed.
  void Write(const ipc::Encoded& message, std::vector<std::shared_ptr<Segment>> segments) override;
  struct Packet {
    std::vector<std::byte> bytes;
    UniqueFd fd;
  };
  void Queue(const ipc::Message& fixed, std::string_view text,
             std::vector<std::shared_ptr<Segment>> segments);
  std::shared_ptr<Segment> MakeRings();
  bool WriteToRing(const ipc::Message& message);
  void OnReady(uint32_t events) override;
  void Flush();
  bool SendOne(const Outgoing& message);
  void Serve(bool readable);
  absl::Status ReadSome(bool readable);
  absl::Status ReadOne(bool* found);
  absl::Status TakeFromRing();
  absl::Status ReadSocket(bool* found);
  absl::Status OnPacket(std::span<const std::byte> packet, UniqueFd fd);
  absl::Status OnEnd();
  absl::Status Parse(std::span<const std::byte> packet, UniqueFd fd);
  void StayAwake();
  void SleepOrServe();
  bool IsDue() const;

  EventLoop* const loop_;
  const UniqueFd fd_;
  TrainerEvents* const events_;
  const std::function<void(TrainerLink*)> gone_;
  int32_t pid_ = 0;
  uint16_t version_ = 0;  // of the trainer's first message that this agent speaks; 0: no such yet
  std::deque<Outgoing> outgoing_;
  size_t outgoing_bytes_ = 0;
  bool want_write_ = false;
  bool closing_ = false;

  bool wants_rings_ = false;        // the trainer has said so
  std::shared_ptr<Segment> rings_;  // null: all messages go by the socket
  std::optional<ipc::RingReader> in_;
  std::optional<ipc::RingWriter> out_;
  uint64_t received_ = 0;       // messages by the socket, since there are queues
  uint64_t sent_ = 0;           // the same
  std::optional<Packet> held_;  // received, but entries of the queue come before it
  bool awake_ = false;          // looks into the queue at the end of this turn
  bool asleep_ = false;         // waits for a bell
  // Expires with the link: the end of a closing must not outlive it.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class TrainerPort final : public TrainerDoor, private FdHandler {
 public:
  // Listens on `path`, whose permissions are `mode`. A socket file without a listener is replaced.
  // INVALID_ARGUMENT when the path cannot be used. On the loop's thread, like all methods.
  static absl::StatusOr<std::unique_ptr<TrainerPort>> Listen(EventLoop* loop,
                                                             const std::string& path, uint32_t mode,
                                                             TrainerEvents* events);
  // Closes all connections without a further event and removes the socket file.
  ~TrainerPort() override;
  const std::list<std::unique_ptr<TrainerLink>>& links() const { return links_; }

 private:
  TrainerPort(EventLoop* loop, UniqueFd fd, std::string path, TrainerEvents* events);
  void OnReady(uint32_t events) override;

  EventLoop* const loop_;
  const UniqueFd fd_;
  const std::string path_;
  TrainerEvents* const events_;
  std::list<std::unique_ptr<TrainerLink>> links_;
};

}  // namespace addend
