// A trainer as the agent's objects see it, and the messages that it sends. trainer_port.h has the
// trainers that connect to the agent's socket.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/fd.h"
#include "lib/client/ipc.h"
#include "lib/memory/segment.h"

namespace addend {

// A message as received; the views are valid during the call.
struct TrainerMessage {
  ipc::Message fixed;
  std::span<const int64_t> dims;
  std::string_view text;
  UniqueFd fd;  // the first descriptor that came with the message
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  // Never blocks. `segments`: descriptors to pass.
  virtual void Send(ipc::Message message, std::string_view text = {},
                    std::vector<std::shared_ptr<Segment>> segments = {}) = 0;
  // Sends the queued messages, as far as the socket takes them, and closes. OnTrainerGone follows.
  virtual void Close(absl::Status why) = 0;
  virtual int32_t pid() const = 0;

  int32_t local_rank = -1;  // from the admission on
  bool said_goodbye = false;
};

class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  // An error closes the connection: the trainer broke the protocol.
  virtual absl::Status OnMessage(Trainer* trainer, TrainerMessage message) = 0;
  // The last event of a trainer, which is destroyed afterwards.
  virtual void OnTrainerGone(Trainer* trainer, const absl::Status& why) = 0;
};

}  // namespace addend
