// Real threads, TCP, and the clock of the cluster.
#include "lib/base/clock.h"
#include "lib/transport/tcp/factory.h"

namespace addend {
namespace {

class RealMachine final : public Machine {
 public:
  explicit RealMachine(std::chrono::nanoseconds most_spin) : most_spin_(most_spin) {}
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) override {
    return EventLoop::Start(name, EventLoop::kMailboxCapacity, most_spin_);
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeTcpTransport(loop);
  }
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                     std::vector<ShardEnd> shards) override {
    return OpenTcpPort(bind, std::move(shards));
  }
  absl::Time ClusterNow() const override { return addend::ClusterNow(); }

 private:
  const std::chrono::nanoseconds most_spin_;
};

}  // namespace

Machine* ThisMachine() {
  static auto* const machine = new RealMachine(std::chrono::nanoseconds::zero());
  return machine;
}

std::unique_ptr<Machine> MakeMachine(std::chrono::nanoseconds most_spin) {
  return std::make_unique<RealMachine>(most_spin);
}

}  // namespace addend
