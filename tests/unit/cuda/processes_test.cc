// Ranks as processes, as they are in training: the same executor, joined across processes.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "tests/unit/cuda/ranks.h"

namespace addend::client {
namespace {

constexpr uint32_t kMembers = 3;
constexpr uint64_t kElements = 2 * (ipc::kChunkBytes / 4) + 77;
constexpr uint64_t kRounds = 3;

// The agent's shared memory for real ranks. A new mapping is all zeros.
struct Shared {
  char id[kDeviceIdBytes];
  std::atomic<uint32_t> has_id;
  std::atomic<uint32_t> staged;
  int32_t contribution[kElements];
  int32_t result[kElements];
};

bool AwaitAtLeast(const std::atomic<uint32_t>& counter, uint32_t value) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (counter < value) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

int32_t Input(uint32_t member, uint64_t round, uint64_t i) {
  return static_cast<int32_t>((i + 1) * 2654435761u * (member + 1) + round);
}

bool RunRound(Rank& rank, Shared* shared, uint64_t number) {
  std::vector<int32_t> in(kElements);
  std::vector<int32_t> out(kElements);
  for (uint64_t i = 0; i < kElements; ++i) in[i] = Input(rank.member, number, i);
  DeviceRound round;
  round.id = number;
  round.elements = kElements;
  round.dtype = round.caller_dtype = DType::kInt32;
  round.in = in.data();
  round.out = out.data();
  round.contribution = reinterpret_cast<std::byte*>(shared->contribution);
  round.result = reinterpret_cast<const std::byte*>(shared->result);
  if (!rank.executor->Begin(&round, rank.stream)) return false;
  if (!rank.executor->Contribute(&round, (1u << kMembers) - 1)) return false;
  if (!rank.ear.AwaitStaged(number, 4 * kElements)) return false;
  ++shared->staged;
  if (!AwaitAtLeast(shared->staged, static_cast<uint32_t>(2 * number - 1) * kMembers)) {
    return false;
  }
  // Stands for the servers: the result is twice the node's contribution.
  if (rank.member == 0) {
    for (uint64_t i = 0; i < kElements; ++i) {
      uint32_t sum = 0;
      for (uint32_t m = 0; m < kMembers; ++m) sum += static_cast<uint32_t>(Input(m, number, i));
      if (shared->contribution[i] != static_cast<int32_t>(sum)) return false;
      shared->result[i] = static_cast<int32_t>(2 * sum);
    }
  }
  ++shared->staged;
  if (!AwaitAtLeast(shared->staged, static_cast<uint32_t>(2 * number) * kMembers)) return false;
  bool complete = false;
  if (!rank.executor->Arrived(&round, 4000, 4 * kElements - 4000, &complete)) return false;
  if (!rank.executor->Arrived(&round, 0, 4000, &complete) || !complete) return false;
  if (!rank.executor->WaitOn(&round, rank.stream) || !rank.AwaitStream()) return false;
  rank.executor->End(&round);
  return std::memcmp(out.data(), shared->result, sizeof(shared->result)) == 0;
}

// The exit status of a rank: 0, or which step failed.
int RunRank(uint32_t member, const Layout& layout, bool ordered, Shared* shared) {
  Rank rank(member);
  if (member == 0) {
    if (!rank.executor->MakeId(shared->id)) return 10;
    shared->has_id = 1;
  }
  if (!AwaitAtLeast(shared->has_id, 1)) return 11;
  if (!rank.Join(layout, kMembers, shared->id, ordered)) return 12;
  for (uint64_t number = 1; number <= kRounds; ++number) {
    if (!RunRound(rank, shared, number)) return 20 + static_cast<int>(number);
  }
  return 0;
}

TEST(DeviceProcessesTest, RanksOfSeveralProcessesAggregate) {
  for (const bool ordered : {true, false}) {
    for (const Layout& layout : LayoutsOf(kMembers)) {
      SCOPED_TRACE(layout.name);
      void* const memory =
          mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(memory, MAP_FAILED);
      std::vector<pid_t> children;
      for (uint32_t member = 0; member < kMembers; ++member) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) _exit(RunRank(member, layout, ordered, static_cast<Shared*>(memory)));
        children.push_back(child);
      }
      for (const pid_t child : children) {
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
      }
      munmap(memory, sizeof(Shared));
    }
  }
}

}  // namespace
}  // namespace addend::client
