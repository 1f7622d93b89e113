// Measures the copies between a GPU and host memory, as libaddend makes them for push-pulls,
// against plain copies of pinned memory: the same bytes, to the host and back at the same time,
// alternating.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/mutex.h"
#include "lib/base/units.h"
#include "lib/client/device.h"
#include "lib/options/options.h"

ABSL_FLAG(addend::ByteSize, bytes, (addend::ByteSize{uint64_t{64} << 20}), "Of a tensor.");
ABSL_FLAG(uint32_t, tensors, 8, "That are pushed one after the other in a round.");
ABSL_FLAG(uint32_t, rounds, 10, "Of each kind, in turn; one more of each before them.");
ABSL_FLAG(bool, json, false, "Print JSON instead of a line.");

extern "C" addend::client::DeviceExecutor* addend_make_device_executor(
    uint32_t version, addend::client::DeviceSink* sink, char* why, size_t why_bytes);

namespace addend {
namespace {

using client::DeviceExecutor;
using client::DeviceRound;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] =
    "copies between a GPU and host memory, as push-pulls make them, beside plain copies\n"
    "  addend-bench-gpu --bytes=64MiB --tensors=8 --rounds=10";

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "addend-bench-gpu: %s\n", why.c_str());
  std::exit(TraitsOf(FailureKind::kInvalid).exit_status);
}

void Check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) Die(absl::StrFormat("%s: %s", call, cudaGetErrorString(status)));
}

// The staged chunks, for the only thread that answers them.
class Mailbox final : public client::DeviceSink {
 public:
  virtual ~Mailbox() = default;
  void Staged(uint64_t round, uint64_t bytes) override {
    const MutexLock lock(&mu_);
    staged_.emplace_back(round, bytes);
    there_.NotifyOne();
  }
  // This benchmark fetches nothing.
  void Fetched(uint32_t, uint64_t, uint64_t, uint64_t) override {}
  void Failed(const char* why) override { Die(why); }
  std::pair<uint64_t, uint64_t> Take() {
    const MutexLock lock(&mu_);
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
    while (staged_.empty()) {
      if (!there_.WaitUntil(&mu_, deadline)) Die("the GPU has not copied anything for 30 s");
    }
    const auto one = staged_.front();
    staged_.pop_front();
    return one;
  }

 private:
  Mutex mu_;
  CondVar there_;
  std::deque<std::pair<uint64_t, uint64_t>> staged_ ABSL_GUARDED_BY(mu_);
};

// The tensors' memory on both sides, and both methods to copy it.
class Copies {
 public:
  Copies(DeviceExecutor* executor, Mailbox* mailbox, uint64_t bytes, uint32_t tensors)
      : executor_(executor), mailbox_(mailbox), bytes_(bytes), tensors_(tensors) {
    const uint64_t all = bytes * tensors;
    void* const host = mmap(nullptr, 2 * all, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (host == MAP_FAILED) Die("not enough host memory");
    host_ = static_cast<std::byte*>(host);
    executor->Map(host_, 2 * all, /*read_only=*/false);
    Check(cudaMalloc(reinterpret_cast<void**>(&device_), 2 * all), "cudaMalloc");
    Check(cudaStreamCreateWithFlags(&down_, cudaStreamNonBlocking), "cudaStreamCreate");
    Check(cudaStreamCreateWithFlags(&up_, cudaStreamNonBlocking), "cudaStreamCreate");
  }

  // Returns the seconds for all bytes to the host and as many back.
  double Plain() {
    const Clock::time_point began = Clock::now();
    const uint64_t all = bytes_ * tensors_;
    for (uint64_t at = 0; at < all; at += bytes_) {
      Check(cudaMemcpyAsync(host_ + at, device_ + at, bytes_, cudaMemcpyDeviceToHost, down_),
            "cudaMemcpyAsync");
      Check(cudaMemcpyAsync(device_ + all + at, host_ + all + at, bytes_, cudaMemcpyHostToDevice,
                            up_),
            "cudaMemcpyAsync");
    }
    Check(cudaStreamSynchronize(down_), "cudaStreamSynchronize");
    Check(cudaStreamSynchronize(up_), "cudaStreamSynchronize");
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

  // The same with the executor: a part of a result arrives as soon as its contribution is staged.
  double PushPull() {
    const Clock::time_point began = Clock::now();
    const uint64_t all = bytes_ * tensors_;
    std::map<uint64_t, std::unique_ptr<DeviceRound>> rounds;
    for (uint32_t tensor = 0; tensor < tensors_; ++tensor) {
      auto round = std::make_unique<DeviceRound>();
      round->id = ++last_id_;
      round->tensor = tensor + 1;
      round->elements = bytes_ / sizeof(float);
      round->dtype = round->caller_dtype = DType::kFloat32;
      round->op = ReduceOp::kSum;
      round->in = device_ + tensor * bytes_;
      round->out = device_ + all + tensor * bytes_;
      round->contribution = host_ + tensor * bytes_;
      round->result = host_ + all + tensor * bytes_;
      Must(executor_->Begin(round.get(), up_));
      Must(executor_->Contribute(round.get(), 1));
      rounds[round->id] = std::move(round);
    }
    std::map<uint64_t, uint64_t> arrived;
    while (!rounds.empty()) {
      const auto [id, bytes] = mailbox_->Take();
      DeviceRound* const round = rounds.at(id).get();
      bool complete = false;
      Must(executor_->Arrived(round, arrived[id], bytes - arrived[id], &complete));
      arrived[id] = bytes;
      if (!complete) continue;
      Must(executor_->WaitOn(round, up_));
      executor_->End(round);
      rounds.erase(id);
    }
    Check(cudaStreamSynchronize(up_), "cudaStreamSynchronize");
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

 private:
  void Must(bool ok) const {
    if (!ok) Die(executor_->Error());
  }

  DeviceExecutor* const executor_;
  Mailbox* const mailbox_;
  const uint64_t bytes_;
  const uint32_t tensors_;
  std::byte* host_ = nullptr;    // contributions, then results
  std::byte* device_ = nullptr;  // inputs, then outputs
  cudaStream_t down_ = nullptr;
  cudaStream_t up_ = nullptr;
  uint64_t last_id_ = 0;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status Run() {
  const uint64_t bytes = absl::GetFlag(FLAGS_bytes).bytes / sizeof(float) * sizeof(float);
  const uint32_t tensors = absl::GetFlag(FLAGS_tensors);
  const uint32_t rounds = absl::GetFlag(FLAGS_rounds);
  if (bytes == 0 || tensors == 0 || rounds == 0) {
    return absl::InvalidArgumentError(
        "--bytes, --tensors and --rounds must be at least 4, 1 and 1");
  }
  Mailbox mailbox;
  char why[1024] = {};
  const std::unique_ptr<DeviceExecutor> executor(
      addend_make_device_executor(client::kDeviceVersion, &mailbox, why, sizeof(why)));
  if (executor == nullptr) Die(why);
  Copies copies(executor.get(), &mailbox, bytes, tensors);
  copies.Plain();
  copies.PushPull();
  std::vector<double> plain, push_pull;
  for (uint32_t round = 0; round < rounds; ++round) {
    plain.push_back(copies.Plain());
    push_pull.push_back(copies.PushPull());
  }
  const double moved = 2.0 * static_cast<double>(bytes) * tensors;
  const double plain_rate = moved / Median(plain);
  const double rate = moved / Median(push_pull);
  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::json json = {{"gpu", executor->bus_id()},
                                 {"bytes", bytes},
                                 {"tensors", tensors},
                                 {"plain_bytes_per_s", plain_rate},
                                 {"push_pull_bytes_per_s", rate},
                                 {"ratio", rate / plain_rate}};
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf(
        "GPU %s, %u tensors of %.1f MB: plain copies %.1f GB/s in both directions together, those "
        "of "
        "push-pulls %.1f GB/s, ratio %.3f\n",
        executor->bus_id(), tensors, static_cast<double>(bytes) / 1e6, plain_rate / 1e9, rate / 1e9,
        rate / plain_rate);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  return addend::RunProgram({"addend-bench-gpu", addend::kSummary}, argc, argv, addend::Run);
}
