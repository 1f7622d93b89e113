#include <utility>

#include "lib/base/clock.h"
#include "lib/transport/tcp/factory.h"
#include "lib/transport/this_machine/factory.h"

namespace addend {
namespace {

class RealMachine final : public Machine {
 public:
  RealMachine(std::chrono::nanoseconds most_spin, SharedMemoryOptions shared_memory)
      : most_spin_(most_spin), shared_memory_(std::move(shared_memory)) {}
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) override {
    return EventLoop::Start(name, EventLoop::kMailboxCapacity, most_spin_);
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeTcpTransport(loop);
  }
  std::shared_ptr<Transport> MakeSharedMemory(EventLoop* loop) override {
    if (!shared_memory_.enabled) return nullptr;
    return MakeSharedMemoryTransport(loop, shared_memory_.folder);
  }
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                     std::vector<ShardEnd> shards) override {
    return OpenTcpPort(bind, std::move(shards));
  }
  absl::Time ClusterNow() const override { return addend::ClusterNow(); }

 private:
  const std::chrono::nanoseconds most_spin_;
  const SharedMemoryOptions shared_memory_;
};

}  // namespace

Machine* ThisMachine() {
  static auto* const machine =
      new RealMachine(std::chrono::nanoseconds::zero(), {.enabled = false, .folder = {}});
  return machine;
}

std::unique_ptr<Machine> MakeMachine(std::chrono::nanoseconds most_spin,
                                     SharedMemoryOptions shared_memory) {
  return std::make_unique<RealMachine>(most_spin, std::move(shared_memory));
}

}  // namespace addend
