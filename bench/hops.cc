// Two threads wake each other in turn; a hop is half of such a turn. The ways are those of a
// push-pull: a trainer's message to the agent and the event back (SEQPACKET), a task posted to
// another loop (eventfd), a waiting caller (futex), a frame to another machine (TCP).
#include "bench/hops.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/report.h"
#include "bench/tcp_pair.h"
#include "lib/base/clock.h"
#include "lib/base/fd.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr int kTurns = 2000;
constexpr int kMeasurements = 5;
constexpr size_t kMessageBytes = 64;
constexpr size_t kFrameBytes = 4096 + 96;

// Both ends of a way to wake a thread. End 0 and end 1 belong to a thread each.
class Way {
 public:
  virtual ~Way() = default;
  virtual void Wake(int end) = 0;  // of the other end
  virtual void Wait(int end) = 0;
};

class Futex final : public Way {
 public:
  void Wake(int end) override {
    std::atomic<uint32_t>& word = words_[1 - end].value;
    word.store(1);
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void Wait(int end) override {
    std::atomic<uint32_t>& word = words_[end].value;
    while (word.exchange(0) == 0) {
      ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }
  }

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  Word words_[2];
};

// A thread that looks at the word all the time.
class Polling final : public Way {
 public:
  void Wake(int end) override { words_[1 - end].value.store(1, std::memory_order_release); }
  void Wait(int end) override {
    while (words_[end].value.exchange(0, std::memory_order_acquire) == 0) {
    }
  }

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  Word words_[2];
};

// Waits with epoll, as loops do.
class Sleeper {
 public:
  bool Begin(int fd) {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    return epoll_.valid() && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  void Wait() const {
    epoll_event event;
    while (::epoll_wait(epoll_.get(), &event, 1, -1) < 0 && errno == EINTR) {
    }
  }

 private:
  UniqueFd epoll_;
};

class EventFd final : public Way {
 public:
  bool Begin() {
    for (int end = 0; end < 2; ++end) {
      fds_[end] = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!fds_[end].valid() || !sleepers_[end].Begin(fds_[end].get())) return false;
    }
    return true;
  }
  void Wake(int end) override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fds_[1 - end].get(), &one, sizeof(one));
  }
  void Wait(int end) override {
    sleepers_[end].Wait();
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(fds_[end].get(), &count, sizeof(count));
  }

 private:
  UniqueFd fds_[2];
  Sleeper sleepers_[2];
};

// A message of `bytes` on a connected pair of sockets.
class Sockets final : public Way {
 public:
  explicit Sockets(size_t bytes) : bytes_(bytes), from_(bytes), to_{Buffer(bytes), Buffer(bytes)} {}
  bool Begin(std::pair<UniqueFd, UniqueFd> ends) {
    fds_[0] = std::move(ends.first);
    fds_[1] = std::move(ends.second);
    return sleepers_[0].Begin(fds_[0].get()) && sleepers_[1].Begin(fds_[1].get());
  }
  void Wake(int end) override {
    [[maybe_unused]] const ssize_t sent =
        ::send(fds_[end].get(), from_.data(), bytes_, MSG_NOSIGNAL);
  }
  void Wait(int end) override {
    for (size_t got = 0; got < bytes_;) {
      sleepers_[end].Wait();
      const ssize_t more = ::recv(fds_[end].get(), to_[end].data() + got, bytes_ - got, 0);
      if (more <= 0) return;
      got += static_cast<size_t>(more);
    }
  }

 private:
  using Buffer = std::vector<char>;
  const size_t bytes_;
  const Buffer from_;
  Buffer to_[2];
  UniqueFd fds_[2];
  Sleeper sleepers_[2];
};

absl::StatusOr<std::unique_ptr<Way>> MakeEventFd() {
  auto way = std::make_unique<EventFd>();
  if (!way->Begin()) return absl::InternalError("cannot make an eventfd");
  return way;
}

absl::StatusOr<std::unique_ptr<Way>> MakeSeqpacket() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::InternalError("cannot make a pair of local sockets");
  }
  auto way = std::make_unique<Sockets>(kMessageBytes);
  if (!way->Begin({UniqueFd(fds[0]), UniqueFd(fds[1])})) {
    return absl::InternalError("cannot wait for a local socket");
  }
  return way;
}

absl::StatusOr<std::unique_ptr<Way>> MakeTcp() {
  ADDEND_ASSIGN_OR_RETURN(auto ends, ConnectTcpPair());
  const int on = 1;
  ::setsockopt(ends.first.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(ends.second.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  auto way = std::make_unique<Sockets>(kFrameBytes);
  if (!way->Begin(std::move(ends))) return absl::InternalError("cannot wait for a connection");
  return way;
}

// Where the two threads are.
struct Pins {
  const char* name;
  std::optional<int> cpu[2];
};

void PinThisThread(std::optional<int> cpu) {
  if (!cpu) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(*cpu, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
}

// The median of a few measurements, in microseconds.
double HopUs(Way* way, const Pins& pins) {
  std::vector<double> measured;
  for (int repeat = 0; repeat < kMeasurements; ++repeat) {
    std::thread other([&] {
      PinThisThread(pins.cpu[1]);
      for (int turn = 0; turn < kTurns; ++turn) {
        way->Wait(1);
        way->Wake(1);
      }
    });
    double us = 0;
    std::thread one([&] {
      PinThisThread(pins.cpu[0]);
      const absl::Time began = SteadyNow();
      for (int turn = 0; turn < kTurns; ++turn) {
        way->Wake(0);
        way->Wait(0);
      }
      us = absl::ToDoubleMicroseconds(SteadyNow() - began) / (2.0 * kTurns);
    });
    one.join();
    other.join();
    measured.push_back(us);
  }
  return Percentile(measured, 0.5);
}

// The CPUs of this process.
std::vector<int> Cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

absl::Status RunHops(const BenchOptions& options) {
  struct Kind {
    const char* name;
    std::function<absl::StatusOr<std::unique_ptr<Way>>()> make;
  };
  const Kind kinds[] = {
      {"futex", [] { return std::make_unique<Futex>(); }},
      {"eventfd", MakeEventFd},
      {"seqpacket", MakeSeqpacket},
      {"tcp_4kb", MakeTcp},
      {"polling", [] { return std::make_unique<Polling>(); }},
  };
  const std::vector<int> cpus = Cpus();
  std::vector<Pins> places;
  if (!cpus.empty()) places.push_back({"same_cpu_us", {cpus[0], cpus[0]}});
  if (cpus.size() > 1) places.push_back({"across_us", {cpus[0], cpus[1]}});
  places.push_back({"free_us", {}});
  nlohmann::ordered_json table;
  for (const Kind& kind : kinds) {
    for (const Pins& pins : places) {
      const bool polls = std::strcmp(kind.name, "polling") == 0;
      if (polls && (cpus.size() < 2 || pins.cpu[0] == pins.cpu[1])) continue;  // they need one each
      ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<Way> way, kind.make());
      table[kind.name][pins.name] = HopUs(way.get(), pins);
    }
  }
  if (options.json) {
    std::puts(table.dump(2).c_str());
    return absl::OkStatus();
  }
  std::printf("microseconds from one thread's call to the other's return\n%-12s", "");
  for (const Pins& pins : places) std::printf("%14s", pins.name);
  for (const auto& [name, row] : table.items()) {
    std::printf("\n%-12s", name.c_str());
    for (const Pins& pins : places) {
      row.contains(pins.name) ? std::printf("%14.2f", row[pins.name].get<double>())
                              : std::printf("%14s", "-");
    }
  }
  std::puts("");
  return absl::OkStatus();
}

}  // namespace addend
