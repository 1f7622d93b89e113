// On a single processor the colocated server lives on the agent's thread: their messages to each
// other then wake no thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/shard/guest_loop.h"
#include "lib/transport/machine.h"

namespace addend {

// This machine, but for its loops, which are guests of one loop.
class OneLoopMachine final : public Machine {
 public:
  // Both outlive this.
  OneLoopMachine(Machine* machine, EventLoop* host) : machine_(machine), host_(host) {}
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) override {
    return MakeGuestLoop(host_, name);
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return machine_->MakeTransport(loop);
  }
  std::shared_ptr<Transport> MakeSharedMemory(EventLoop* loop) override {
    return machine_->MakeSharedMemory(loop);
  }
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                     std::vector<ShardEnd> shards) override {
    return machine_->OpenPort(bind, std::move(shards));
  }
  absl::Time ClusterNow() const override { return machine_->ClusterNow(); }

 private:
  Machine* const machine_;
  EventLoop* const host_;
};

}  // namespace addend
