// A port of an RDMA NIC, with the state that all shards of the process share: its protection
// domains and the memory registered in them. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/base/bytes.h"
#include "lib/base/mutex.h"
#include "lib/memory/mappings.h"
#include "lib/shard/event_loop.h"
#include "lib/transport/rdma/address.h"
#include "lib/transport/rdma/domain.h"
#include "lib/transport/rdma/verbs.h"

namespace addend::rdma {

struct DeviceOptions {
  std::vector<std::string> names;  // "mlx5_0" or "mlx5_0:1" (with a port); empty: all usable ports
  int gid_index = -1;  // -1: the RoCEv2 entry of the GID table, preferably of an IPv4 address
  uint8_t traffic_class = 0;  // of the IP header: DSCP * 4
};

class Device;
using Devices = std::vector<std::shared_ptr<Device>>;

// Opens the devices with an active port, in the order of `names`. NOT_FOUND: there is no such
// device; the message has the reasons. PERMISSION_DENIED: there is a device, but this process may
// not use it.
absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options);

class Device final : public UnmapObserver, private FdHandler {
 public:
  static absl::StatusOr<std::shared_ptr<Device>> Open(ibv_device* device, uint8_t port,
                                                      const DeviceOptions& options);
  ~Device() override;

  const PortAddress& address() const { return address_; }
  const std::string& name() const { return address_.device; }
  uint8_t port() const { return port_; }
  uint8_t gid_index() const { return gid_index_; }
  uint8_t traffic_class() const { return traffic_class_; }
  ibv_mtu mtu() const { return mtu_; }
  ibv_context* context() const { return context_.get(); }
  // The largest payload of a write, in bytes.
  uint32_t largest_write() const { return largest_write_; }
  bool active() const { return active_.load(); }

  // The domain of `owner`, created at the first call. A later call releases domains that have no
  // user and no registered memory.
  absl::StatusOr<std::shared_ptr<Domain>> DomainOf(uint64_t owner);
  // The owner of the links that the process itself makes.
  static constexpr uint64_t kSelf = 0;
  // Registers `memory` in the process's own domain, like Domain::Register().
  absl::StatusOr<Registered> Register(Bytes memory, Access access);
  // The registered bytes of all domains.
  uint64_t registered_bytes() const { return registered_bytes_.load(); }

  // Called on the device's own thread when the device or a queue pair (0: all of them) has failed.
  using TellFn = std::function<void(uint32_t queue_pair, const absl::Status& why)>;
  class FailureListener {
   public:
    explicit FailureListener(TellFn tell) : tell_(std::move(tell)) {}
    void Tell(uint32_t queue_pair, const absl::Status& why) {
      MutexLock lock(&mu_);
      if (tell_) tell_(queue_pair, why);
    }
    // No call is made after this returns.
    void Stop() {
      MutexLock lock(&mu_);
      tell_ = nullptr;
    }

   private:
    Mutex mu_;
    TellFn tell_ ABSL_GUARDED_BY(mu_);
  };
  // `tell` is called until the returned object is destroyed or stopped.
  std::shared_ptr<FailureListener> OnFailure(TellFn tell);

 private:
  Device(ibv_context* context, uint8_t port, uint8_t traffic_class)
      : context_(context), port_(port), traffic_class_(traffic_class) {}
  absl::Status ReadPort(const ibv_port_attr& attributes);
  absl::Status ChooseGid(int wanted);
  absl::Status Begin();
  absl::Status Probe();
  void BeforeUnmap(const Mapping& mapping) override;
  void OnReady(uint32_t events) override;
  void OnEvent(const ibv_async_event& event);

  // Constant after Open().
  const Owned<ibv_context> context_;
  const uint8_t port_;
  const uint8_t traffic_class_;
  PortAddress address_;
  uint8_t gid_index_ = 0;
  ibv_mtu mtu_ = IBV_MTU_1024;
  uint32_t largest_write_ = 0;
  std::unique_ptr<EventLoop> loop_;  // receives the failure events

  std::atomic<bool> active_{true};
  std::atomic<uint64_t> registered_bytes_{0};
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Domain>> domains_ ABSL_GUARDED_BY(mu_);  // by owner
  std::vector<std::weak_ptr<FailureListener>> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace addend::rdma
