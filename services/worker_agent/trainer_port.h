// The Unix socket of the agent and the trainers connected to it (lib/client/ipc.h). Belongs to the
// agent's core thread. Knows messages, not what they mean.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/fd.h"
#include "lib/client/ipc.h"
#include "lib/memory/segment.h"
#include "lib/shard/event_loop.h"

namespace addend {

// A message as received; the views are valid during the call.
struct TrainerMessage {
  ipc::Message fixed;
  std::span<const int64_t> dims;
  std::string_view text;
  UniqueFd fd;  // that came with it; further ones are closed
};

class TrainerLink;

class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  // An error closes the connection: the trainer broke the protocol.
  virtual absl::Status OnMessage(TrainerLink* trainer, TrainerMessage message) = 0;
  // The last event of a trainer; the link is gone when it returns.
  virtual void OnTrainerGone(TrainerLink* trainer, const absl::Status& why) = 0;
};

class TrainerLink final : public FdHandler {
 public:
  TrainerLink(EventLoop* loop, UniqueFd fd, TrainerEvents* events,
              std::function<void(TrainerLink*)> gone);
  ~TrainerLink() override;
  absl::Status Open();

  // Never blocks: what the socket does not take now is queued. `segments`: descriptors to pass.
  void Send(ipc::Message message, std::string_view text = {},
            std::vector<std::shared_ptr<Segment>> segments = {});
  // Sends what is queued, as far as the socket takes it, and closes. OnTrainerGone follows.
  void Close(absl::Status why);
  int32_t pid() const { return pid_; }

  // ---- what the agent knows of it ----
  int32_t local_rank = -1;  // once admitted
  bool said_goodbye = false;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<Segment>> segments;
  };
  void OnReady(uint32_t events) override;
  void Flush();
  bool SendOne(const Outgoing& message);
  absl::Status ReadSome();
  absl::Status Parse(std::span<const std::byte> packet, UniqueFd fd);

  EventLoop* const loop_;
  const UniqueFd fd_;
  TrainerEvents* const events_;
  const std::function<void(TrainerLink*)> gone_;
  int32_t pid_ = 0;
  std::deque<Outgoing> outgoing_;
  bool want_write_ = false;
  bool closing_ = false;
  // Expires with the link: the end of a closing must not outlive it.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class TrainerPort final : private FdHandler {
 public:
  // Listens on `path`, whose permissions are `mode`. A socket file that nobody listens on is
  // replaced. INVALID_ARGUMENT when the path cannot be used. On the loop's thread, like all
  // methods.
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
