// A trainer as the agent's objects see it, and the messages that it sends. trainer_port.h has the
// trainers that connect to the agent's socket.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/fd.h"
#include "lib/client/messages.h"
#include "lib/memory/segment.h"

namespace addend {

class Trainer {
 public:
  virtual ~Trainer() = default;
  // `message`: of the agent's structs in messages.h. `segments`: descriptors to pass. Never blocks.
  template <typename Typed>
  void Send(const Typed& message, std::vector<std::shared_ptr<Segment>> segments = {}) {
    Write(message.Encode(), std::move(segments));
  }
  // Sends the queued messages, as far as the socket takes them, and closes. OnTrainerGone follows.
  virtual void Close(absl::Status why) = 0;
  virtual int32_t pid() const = 0;

  int32_t local_rank = -1;      // from the admission on
  bool guards = false;          // it sets guards (ipc.h)
  bool launched_apart = false;  // from other ranks of the node, in a pod of its own
  bool said_goodbye = false;

 private:
  // The views in `message`, which has no dimensions, are valid during the call.
  virtual void Write(const ipc::Encoded& message,
                     std::vector<std::shared_ptr<Segment>> segments) = 0;
};

// The place where trainers connect; destroyed, it closes all connections without a further event.
class TrainerDoor {
 public:
  virtual ~TrainerDoor() = default;
};

class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  // The views in `message` are valid during the call. `fd`: the first descriptor that came with the
  // message. An error closes the connection: the trainer broke the protocol.
  virtual absl::Status OnMessage(Trainer* trainer, const ipc::Encoded& message, UniqueFd fd) = 0;
  // The last event of a trainer, which is destroyed afterwards.
  virtual void OnTrainerGone(Trainer* trainer, const absl::Status& why) = 0;
};

}  // namespace addend
