// The simulated Unix socket between a trainer and its agent: whole messages, in order, with
// descriptors.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/client/socket.h"
#include "services/worker_agent/trainer.h"
#include "tests/simulation/process.h"

namespace addend::simulation {

class TrainerEnd;

struct TrainerSocket {
  TrainerEnd* end = nullptr;         // the agent's; null: closed
  std::shared_ptr<Process> trainer;  // null: closed
  std::function<void()> readable;    // on the trainer's process
  std::deque<client::Packet> inbox;  // of the trainer
  bool hung_up = false;              // by the agent, behind the inbox

  // The trainer sends a message.
  void Send(const ipc::Encoded& message);
  // The trainer closes its end, or dies.
  void Close();
};

// The agent's end.
class TrainerEnd final : public Trainer {
 public:
  TrainerEnd(Loop* loop, TrainerEvents* events, std::function<void(TrainerEnd*)> gone);
  ~TrainerEnd() override;
  const std::shared_ptr<TrainerSocket>& socket() const { return socket_; }

  void Close(absl::Status why) override;
  int32_t pid() const override { return 1; }

  // A message has arrived, on the loop.
  void OnMessage(const ipc::Encoded& message);
  // The trainer is gone.
  void OnHangUp();
  // The agent is gone, without an event.
  void Hang();
  Loop* loop() const { return loop_; }

 private:
  void Write(const ipc::Encoded& message, std::vector<std::shared_ptr<Segment>> segments) override;
  void TellHungUp();

  Loop* const loop_;
  TrainerEvents* const events_;
  const std::function<void(TrainerEnd*)> gone_;
  const std::shared_ptr<TrainerSocket> socket_ = std::make_shared<TrainerSocket>();
  bool closing_ = false;
};

}  // namespace addend::simulation
