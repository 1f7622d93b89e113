// Real threads, TCP, and the clock of the cluster.
#include "lib/base/clock.h"
#include "lib/transport/tcp/factory.h"

namespace addend {
namespace {

class RealMachine final : public Machine {
 public:
  absl::StatusOr<std::unique_ptr<EventLoop>> StartLoop(const std::string& name) override {
    return EventLoop::Start(name);
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    return MakeTcpTransport(loop);
  }
  absl::StatusOr<std::unique_ptr<DataPort>> OpenPort(const Address& bind,
                                                     std::vector<ShardEnd> shards) override {
    return OpenTcpPort(bind, std::move(shards));
  }
  absl::Time ClusterNow() const override { return addend::ClusterNow(); }
};

}  // namespace

Machine* ThisMachine() {
  static auto* const machine = new RealMachine();
  return machine;
}

}  // namespace addend
