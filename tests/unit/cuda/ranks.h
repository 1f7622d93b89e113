// Ranks of a node, each with an executor over the emulation, and the host memory between them: they
// stand for libaddend and the agent in the tests of the executor.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/client/device.h"

extern "C" addend::client::DeviceExecutor* addend_make_device_executor(
    uint32_t version, addend::client::DeviceSink* sink, char* why, size_t why_bytes);

namespace addend::client {

using Bytes = std::vector<std::byte>;

// The seed of this process's tests: printed, and ADDEND_TEST_SEED sets it.
uint64_t Seed();

// Records an executor's callbacks.
class Ear : public DeviceSink {
 public:
  void Staged(uint64_t round, uint64_t bytes) override;
  void Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) override;
  void Failed(const char* why) override;

  // False after 30 s, or when the device has failed meanwhile.
  bool AwaitStaged(uint64_t round, uint64_t bytes);
  // The reported fetch from this offset: tensor, number and bytes. All 0 after 30 s.
  std::array<uint64_t, 3> AwaitFetched(uint64_t offset);
  // Empty after 30 s.
  std::string AwaitFailure();
  // In the order in which they were told.
  std::vector<uint64_t> StagedOf(uint64_t round);

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> staged_;     // guarded by mu_
  std::unordered_map<uint64_t, std::array<uint64_t, 3>> fetched_;  // guarded by mu_; by offset
  std::string failure_;                                            // guarded by mu_
};

struct Layout {
  std::string name;
  bool scatter = false;
  std::vector<uint32_t> roots;
};
ipc::Group GroupOf(const Layout& layout, uint32_t members, uint32_t member);
// Layouts: scattered, a single root, all members roots in turn.
std::vector<Layout> LayoutsOf(uint32_t members);

// A rank: an executor on a device of its own, and the caller's stream there.
struct Rank {
  explicit Rank(uint32_t member);
  ~Rank();
  bool Join(const Layout& layout, uint32_t members, const char* id, bool ordered);
  // Polls the caller's stream, since the tests count calls that wait; false after 30 s.
  bool AwaitStream() const;

  const uint32_t member;
  Ear ear;
  std::unique_ptr<DeviceExecutor> executor;
  cudaStream_t stream = nullptr;
};

// All ranks of a group, joined.
std::vector<std::unique_ptr<Rank>> MakeRanks(const Layout& layout, uint32_t members, bool ordered);

// The parameters of a push-pull.
struct Case {
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
  DType caller_dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t with_data = ~uint64_t{0};
  bool in_place = false;
  bool exact = false;  // numbers whose sums are the same in every order
  uint32_t tensor = 0;
};
std::string Describe(const Case& c);

// A push-pull of all ranks: its memory, the ranks' contributions, and the expected results.
class PushPull {
 public:
  PushPull(const Case& c, uint32_t members, std::mt19937_64& random);
  ~PushPull();

  // The step of a single rank; false: its Error() has the reason.
  bool Begin(Rank& rank);
  bool Contribute(Rank& rank);
  bool WaitOn(Rank& rank);

  // The expected contents of host memory once all have staged, and the actual contents.
  const Bytes& expected() const { return expected_; }
  const Bytes& contribution() const { return contribution_; }
  uint64_t bytes() const { return contribution_.size(); }
  uint64_t id() const { return id_; }
  Bytes& result() { return result_; }

  // Every part once, in an order of its own, on all ranks alike.
  void Arrive(std::vector<std::unique_ptr<Rank>>& ranks, std::mt19937_64& random);
  bool HasResult(const Rank& rank) const;
  DeviceRound& round(uint32_t member) { return sides_[member].round; }
  void End(std::vector<std::unique_ptr<Rank>>& ranks);

 private:
  struct Side {
    Bytes in;
    Bytes out;
    DeviceRound round;
  };
  void Expect();

  const Case case_;
  const uint64_t id_;
  const uint64_t with_data_;
  std::vector<Side> sides_;
  std::vector<Bytes> narrowed_;  // the ranks' contributions, in the type of host memory
  Bytes contribution_;
  Bytes result_;
  Bytes expected_;
  Bytes wanted_;  // `result_` in the callers' type
};

// Runs a push-pull from beginning to end and checks its results.
void RunOnce(std::vector<std::unique_ptr<Rank>>& ranks, const Case& c, std::mt19937_64& random);

}  // namespace addend::client
