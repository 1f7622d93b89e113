// Needs an RDMA device: tests/rdma runs it in a virtual machine.
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "lib/memory/arena.h"
#include "lib/transport/rdma/rdma_transport.h"
#include "tests/conformance/conformance.h"

namespace addend {
namespace {

using rdma::Signal;
using rdma::Signals;

// A signalling channel inside the process: each end receives the other's signals, and notices when
// the other is gone.
class LocalSignals final : public Signals {
 public:
  static std::pair<std::unique_ptr<LocalSignals>, std::unique_ptr<LocalSignals>> MakePair() {
    auto shared = std::make_shared<Shared>();
    return {std::unique_ptr<LocalSignals>(new LocalSignals(shared, 0)),
            std::unique_ptr<LocalSignals>(new LocalSignals(shared, 1))};
  }
  ~LocalSignals() override { Tell(absl::UnavailableError("the other end has gone")); }
  void Listen(ListenFn listen) override {
    MutexLock lock(&shared_->mu);
    shared_->listeners[end_] = std::move(listen);
    for (auto& word : shared_->unheard[end_]) shared_->listeners[end_](std::move(word));
    shared_->unheard[end_].clear();
  }
  void Say(Signal signal) override { Tell(std::move(signal)); }

 private:
  struct Shared {
    Mutex mu;
    ListenFn listeners[2] ABSL_GUARDED_BY(mu);
    std::deque<absl::StatusOr<Signal>> unheard[2] ABSL_GUARDED_BY(mu);
  };
  LocalSignals(std::shared_ptr<Shared> shared, int end) : shared_(std::move(shared)), end_(end) {}
  void Tell(absl::StatusOr<Signal> word) {
    MutexLock lock(&shared_->mu);
    if (shared_->listeners[1 - end_]) {
      shared_->listeners[1 - end_](std::move(word));
    } else {
      shared_->unheard[1 - end_].push_back(std::move(word));
    }
  }

  const std::shared_ptr<Shared> shared_;
  const int end_;
};

rdma::Devices AllDevices() {
  auto devices = rdma::OpenDevices({});
  return devices.ok() ? *devices : rdma::Devices();
}

// The server listens on the last device and the client connects from the first, or both use all.
class RdmaWorld : public World {
 public:
  explicit RdmaWorld(bool all) : all_(all), devices_(AllDevices()) {}
  static bool HasDevice() {
    static const bool has = !AllDevices().empty();
    return has;
  }
  std::shared_ptr<Transport> MakeTransport(EventLoop* loop) override {
    const bool first = loops_.empty();
    loops_.push_back(loop);
    auto dial = [this](const Address& peer) { return Dial(peer); };
    const rdma::Devices one = {first ? devices_.front() : devices_.back()};
    auto made = *MakeRdmaTransport(loop, all_ ? devices_ : one, std::move(dial));
    transports_.push_back(made);
    return made;
  }
  Address ListenAddress() override { return {.host = "server", .port = 1}; }
  Address NobodyListens() override { return {.host = "nobody", .port = 1}; }

 private:
  // Stands for the server's service: receives the offer, and hands the channel to the shard.
  class Dialled final : public Signals {
   public:
    explicit Dialled(RdmaWorld* world) : world_(world) {
      std::tie(here_, there_) = LocalSignals::MakePair();
    }
    void Listen(ListenFn listen) override { here_->Listen(std::move(listen)); }
    void Say(Signal signal) override {
      if (!signal.ends) return here_->Say(std::move(signal));
      world_->loops_[1]
          ->Post([world = world_, ends = *signal.ends, there = std::move(there_)]() mutable {
            if (auto server = world->transports_[1].lock()) {
              server->Answer("client", /*owner=*/1, ends, std::move(there));
            }
          })
          .IgnoreError();
    }

   private:
    RdmaWorld* const world_;
    std::unique_ptr<LocalSignals> here_, there_;
  };
  std::unique_ptr<Signals> Dial(const Address& peer) {
    if (peer.host == "nobody") return LocalSignals::MakePair().first;  // the other end has gone
    return std::make_unique<Dialled>(this);
  }

  const bool all_;
  const rdma::Devices devices_;
  std::vector<EventLoop*> loops_;
  std::vector<std::weak_ptr<RdmaTransport>> transports_;
};

std::unique_ptr<World> OneNicEach() { return std::make_unique<RdmaWorld>(false); }
std::unique_ptr<World> AllNics() { return std::make_unique<RdmaWorld>(true); }
// Without a device the suite is empty: tests/rdma looks for "no tests were run".
std::vector<WorldFactory> If(bool possible, WorldFactory world) {
  return possible ? std::vector<WorldFactory>{std::move(world)} : std::vector<WorldFactory>();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);
INSTANTIATE_TEST_SUITE_P(Rdma, TransportConformance,
                         testing::ValuesIn(If(RdmaWorld::HasDevice(), OneNicEach)));
INSTANTIATE_TEST_SUITE_P(RdmaOverAllNics, TransportConformance,
                         testing::ValuesIn(If(AllDevices().size() > 1, AllNics)));

// The process's resources, as counted by the kernel.
struct Held {
  int queue_pairs = 0, regions = 0, descriptors = 0;
};

std::vector<std::string> EntriesOf(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

// Counts the lines of `rdma resource` for this process's threads.
int CountResources(const std::string& kind) {
  const std::string mine = absl::StrJoin(EntriesOf("/proc/self/task"), "|");
  FILE* const pipe = ::popen(
      absl::StrFormat("rdma resource show %s | grep -cE 'pid (%s) '", kind, mine).c_str(), "r");
  int count = -1;
  EXPECT_EQ(std::fscanf(pipe, "%d", &count), 1);
  ::pclose(pipe);
  return count;
}

Held WhatIsHeld() {
  return {.queue_pairs = CountResources("qp"),
          .regions = CountResources("mr"),
          .descriptors = static_cast<int>(EntriesOf("/proc/self/fd").size())};
}

class RdmaLinks : public TransportConformance {
 protected:
  // A link, from the connection until it has ended at both ends.
  void ConnectAndClose() {
    connected_.closed = accepted_.closed = false;
    accepted_.frames.clear();
    accepted_.rooms.clear();
    Connect();
    CloseIt();
  }
  void CloseIt() {
    here_->Run([&] { link_->Close(absl::OkStatus()); });
    ASSERT_TRUE(connected_.WaitFor([&] { return connected_.closed; }));
    ASSERT_TRUE(accepted_.WaitFor([&] { return accepted_.closed; }));
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaLinks);
INSTANTIATE_TEST_SUITE_P(Rdma, RdmaLinks,
                         testing::ValuesIn(If(RdmaWorld::HasDevice(), OneNicEach)));

TEST_P(RdmaLinks, AThousandLinksLeaveNothingBehind) {
  Connect();
  const Held open = WhatIsHeld();
  EXPECT_EQ(open.queue_pairs, 2) << "one at each end";
  EXPECT_GE(open.regions, 2);
  CloseIt();
  const Held before = WhatIsHeld();
  EXPECT_EQ(before.queue_pairs, 0);
  for (int i = 0; i < 1000; ++i) ConnectAndClose();
  const Held after = WhatIsHeld();
  EXPECT_EQ(after.queue_pairs, before.queue_pairs);
  EXPECT_EQ(after.regions, before.regions);
  EXPECT_EQ(after.descriptors, before.descriptors);
}

TEST_P(RdmaLinks, MemoryOfAnArenaIsRegisteredOnceAndForgottenWithIt) {
  auto device = AllDevices().front();
  const uint64_t before = device->registered_bytes();  // the transports' own buffers
  auto arena = *Arena::Create(8 << 20);
  using rdma::Access;
  const auto first = *device->Register(arena->memory().first(4096), Access::kPeerWrites);
  const auto other = *device->Register(arena->memory().last(100), Access::kSend);
  EXPECT_EQ(first.remote_key, other.remote_key);
  EXPECT_EQ(device->registered_bytes(), before + (8u << 20));
  arena.reset();
  EXPECT_EQ(device->registered_bytes(), before);
}

// Both ends of a link, as bare queue pairs. The near end writes.
class RdmaDomains : public testing::TestWithParam<WorldFactory>, private rdma::CompletionTaker {
 protected:
  void SetUp() override {
    device_ = AllDevices().front();
    loop_ = *EventLoop::Start("domains");
    source_ = *Arena::Create(4096);
    std::memset(source_->memory().data(), 'x', 4096);
  }
  void TearDown() override {
    if (loop_ != nullptr) loop_->Stop();
  }
  // The completion status of a write to `target`, through a queue pair whose far end is in the
  // domain of `owner`.
  ibv_wc_status Write(uint64_t owner, MutableBytes target, uint32_t key) {
    loop_->Run([&] {
      const uint32_t me = table_.Add(this);
      queue_ = *rdma::CompletionQueue::Create(loop_.get(), device_, &table_, absl::Seconds(1));
      near_ = *rdma::QueuePair::Create(queue_.get(), *device_->DomainOf(rdma::Device::kSelf), 4, 4);
      far_ = *rdma::QueuePair::Create(queue_.get(), *device_->DomainOf(owner), 4, 4);
      EXPECT_TRUE(near_->Connect(far_->address()).ok() && far_->Connect(near_->address()).ok());
      EXPECT_TRUE(far_->PostReceive({me, rdma::WorkId::Kind::kReceive, 0}, {}, 0).ok());
      const auto memory = *near_->domain()->Register(source_->memory(), rdma::Access::kSend);
      EXPECT_TRUE(near_
                      ->PostWrite({me, rdma::WorkId::Kind::kWrite, 0}, source_->memory(),
                                  memory.local_key,
                                  {reinterpret_cast<uint64_t>(target.data()), key, 7})
                      .ok());
      const absl::Time deadline = absl::Now() + absl::Seconds(20);
      while (!ended_.has_value() && absl::Now() < deadline) queue_->Poll();
      near_.reset();
      far_.reset();
      queue_.reset();
    });
    return std::exchange(ended_, std::nullopt).value_or(IBV_WC_GENERAL_ERR);
  }
  void OnCompletion(const rdma::WorkId& id, const ibv_wc& completion) override {
    if (id.kind == rdma::WorkId::Kind::kWrite) ended_ = completion.status;
  }

  std::shared_ptr<rdma::Device> device_;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<Arena> source_;
  rdma::CompletionTable table_;
  std::unique_ptr<rdma::CompletionQueue> queue_;
  std::unique_ptr<rdma::QueuePair> near_, far_;
  std::optional<ibv_wc_status> ended_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaDomains);
INSTANTIATE_TEST_SUITE_P(Rdma, RdmaDomains,
                         testing::ValuesIn(If(RdmaWorld::HasDevice(), OneNicEach)));

TEST_P(RdmaDomains, AMemoryKeyIsInvalidOnLinksOfAnotherOwner) {
  const auto arena = *Arena::Create(4096);
  const auto domain = *device_->DomainOf(1);
  const auto memory = *domain->Register(arena->memory(), rdma::Access::kPeerWrites);
  const std::vector<std::byte> untouched(arena->memory().begin(), arena->memory().end());
  EXPECT_EQ(Write(/*owner=*/2, arena->memory(), memory.remote_key), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(std::memcmp(arena->memory().data(), untouched.data(), 4096), 0);
  EXPECT_EQ(Write(/*owner=*/1, arena->memory(), memory.remote_key), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(arena->memory().data(), source_->memory().data(), 4096), 0);
}

TEST_P(RdmaDomains, ADomainEndsWithTheLastOfItsMemory) {
  const auto other = *device_->DomainOf(2);
  auto arena = *Arena::Create(4096);
  std::weak_ptr<rdma::Domain> domain = *device_->DomainOf(1);
  ASSERT_TRUE(domain.lock()->Register(arena->memory(), rdma::Access::kReceive).ok());
  EXPECT_EQ(*device_->DomainOf(2), other);
  EXPECT_FALSE(domain.expired()) << "something is registered in it";
  arena.reset();
  EXPECT_EQ(*device_->DomainOf(2), other);
  EXPECT_TRUE(domain.expired());
}

}  // namespace
}  // namespace addend
