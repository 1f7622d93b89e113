// The executor over the emulation: the contributions that it brings to host memory, and the results
// that it brings back.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/support/emulated_cuda/emulated.h"
#include "tests/unit/cuda/ranks.h"

namespace addend::client {
namespace {

using Ranks = std::vector<std::unique_ptr<Rank>>;

constexpr DType kAllDTypes[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                                DType::kBFloat16, DType::kInt32,   DType::kInt64};
constexpr ReduceOp kSums[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax};

// A sanitizer looks at every byte, ten times as slowly: there, groups and sizes that differ in
// kind.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

class DeviceExecutorTest : public ::testing::Test {
 protected:
  // Calls `body(ranks)` for every layout of groups of one to four.
  template <class Body>
  void ForAllGroups(bool ordered, const Body& body) {
    for (uint32_t members = 1; members <= 4; members += kIsSlow ? 2 : 1) {
      for (const Layout& layout : LayoutsOf(members)) {
        SCOPED_TRACE(layout.name + ", members " + std::to_string(members));
        Ranks ranks = MakeRanks(layout, members, ordered);
        body(ranks);
        if (HasFatalFailure()) return;
      }
    }
  }

  // A random, non-empty set of members.
  uint64_t SomeOf(const Ranks& ranks) {
    return 1 + random_() % ((uint64_t{1} << ranks.size()) - 1);
  }
  // Around the sizes of chunks, of the type in host memory.
  uint64_t LargeSize(DType dtype) {
    const uint64_t chunk = ipc::ChunkElements(SizeOf(dtype));
    const uint64_t sizes[] = {chunk - 1, chunk, chunk + 1, 3 * chunk + 5};
    return kIsSlow ? chunk + 5 : sizes[random_() % 4];
  }
  DType AnyDType() { return kAllDTypes[random_() % 6]; }
  ReduceOp AnySum() { return kSums[random_() % 4]; }

  std::mt19937_64 random_{Seed()};
};

TEST_F(DeviceExecutorTest, SumsInOrderBitForBitAsTheHost) {
  ForAllGroups(true, [&](Ranks& ranks) {
    uint32_t tensor = 0;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kSums) {
        for (const uint64_t elements : {0, 1, 7, 1000, 5003}) {
          Case c;
          c.elements = elements;
          c.dtype = c.caller_dtype = dtype;
          c.op = op;
          c.with_data = SomeOf(ranks);
          c.in_place = random_() % 2 == 0;
          c.tensor = tensor++;
          RunOnce(ranks, c, random_);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_F(DeviceExecutorTest, SumsTensorsOfSeveralChunks) {
  ForAllGroups(true, [&](Ranks& ranks) {
    for (const uint64_t with_data : {~uint64_t{0}, SomeOf(ranks)}) {
      Case c;
      c.dtype = c.caller_dtype = AnyDType();
      c.elements = LargeSize(c.dtype);
      c.op = AnySum();
      c.with_data = with_data;
      c.in_place = random_() % 2 == 0;
      c.tensor = static_cast<uint32_t>(random_() % 100);
      RunOnce(ranks, c, random_);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_F(DeviceExecutorTest, SumsWithNcclWhereOrderDoesNotMatter) {
  ForAllGroups(false, [&](Ranks& ranks) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kSums) {
        Case c;
        c.elements = 1 + random_() % 9000;
        c.dtype = c.caller_dtype = dtype;
        c.op = op;
        // The members that all contribute are NCCL's, those that do not all are summed in order;
        // and so are minima of floats, where a NaN has to win.
        const bool all = random_() % 4 != 0;
        c.with_data = all ? ~uint64_t{0} : SomeOf(ranks);
        const bool picks = op == ReduceOp::kMin || op == ReduceOp::kMax;
        c.exact = !picks;
        c.tensor = static_cast<uint32_t>(random_() % 100);
        RunOnce(ranks, c, random_);
        if (HasFatalFailure()) return;
      }
    }
    Case large;
    large.dtype = large.caller_dtype = AnyDType();
    large.elements = LargeSize(large.dtype);
    large.exact = true;
    RunOnce(ranks, large, random_);
  });
}

// The emulated NCCL adds from the last rank on, so a sum in its order differs from the host's.
TEST_F(DeviceExecutorTest, OrderedSumsHaveToBeRequestedWithNccl) {
  Case c;
  c.elements = 10'000;
  for (const bool ordered : {true, false}) {
    Ranks ranks = MakeRanks({"scattered", true, {}}, 3, ordered);
    PushPull push_pull(c, 3, random_);
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Begin(*rank));
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Contribute(*rank));
    for (auto& rank : ranks) {
      ASSERT_TRUE(rank->ear.AwaitStaged(push_pull.id(), push_pull.bytes()));
    }
    EXPECT_EQ(push_pull.contribution() == push_pull.expected(), ordered);
    push_pull.End(ranks);
  }
}

TEST_F(DeviceExecutorTest, BroadcastBringsTheBytesOfTheMemberWithData) {
  ForAllGroups(true, [&](Ranks& ranks) {
    for (const uint64_t elements : {uint64_t{1}, uint64_t{777}, LargeSize(DType::kFloat32)}) {
      Case c;
      c.elements = elements;
      c.op = ReduceOp::kBroadcast;
      c.with_data = uint64_t{1} << random_() % ranks.size();
      RunOnce(ranks, c, random_);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_F(DeviceExecutorTest, TwoContributionsToABroadcastAreRefused) {
  Ranks ranks = MakeRanks({"roots", false, {0, 1}}, 2, true);
  Case c;
  c.elements = 10;
  c.op = ReduceOp::kBroadcast;
  PushPull push_pull(c, 2, random_);
  ASSERT_TRUE(push_pull.Begin(*ranks[0]));
  EXPECT_FALSE(push_pull.Contribute(*ranks[0]));
  EXPECT_THAT(ranks[0]->executor->Error(), ::testing::HasSubstr("contribute to a broadcast"));
  push_pull.End(ranks);
}

TEST_F(DeviceExecutorTest, ConvertsOnTheDevice) {
  ForAllGroups(true, [&](Ranks& ranks) {
    const uint64_t large = random_() % 2;  // a random type
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const bool is_large = (dtype == DType::kFloat16) == (large == 0);
      for (const uint64_t elements :
           {uint64_t{0}, uint64_t{1}, uint64_t{4099}, is_large ? LargeSize(dtype) : 4100}) {
        Case c;
        c.elements = elements;
        c.dtype = dtype;
        c.op = AnySum();
        c.with_data = SomeOf(ranks);
        c.in_place = random_() % 2 == 0;
        RunOnce(ranks, c, random_);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_F(DeviceExecutorTest, OtherConversionsAreRefused) {
  Ranks ranks = MakeRanks({"scattered", true, {}}, 1, true);
  DeviceRound round;
  round.caller_dtype = DType::kFloat32;
  round.dtype = DType::kFloat64;
  EXPECT_FALSE(ranks[0]->executor->Begin(&round, ranks[0]->stream));
  EXPECT_THAT(ranks[0]->executor->Error(), ::testing::HasSubstr("but not float32 as float64"));
  round.caller_dtype = DType::kFloat16;
  round.dtype = DType::kFloat32;
  EXPECT_FALSE(ranks[0]->executor->Begin(&round, ranks[0]->stream));
  EXPECT_THAT(ranks[0]->executor->Error(), ::testing::HasSubstr("but not float16 as float32"));
}

TEST_F(DeviceExecutorTest, AMemberAndItsAgentAgreeOnTheMembersWithData) {
  Ranks ranks = MakeRanks({"scattered", true, {}}, 2, true);
  Case c;
  c.elements = 10;
  PushPull push_pull(c, 2, random_);
  ASSERT_TRUE(push_pull.Begin(*ranks[0]));
  EXPECT_FALSE(ranks[0]->executor->Contribute(&push_pull.round(0), 2));
  EXPECT_THAT(ranks[0]->executor->Error(), ::testing::HasSubstr("has data for a round"));
  push_pull.End(ranks);
}

TEST_F(DeviceExecutorTest, AGroupWithoutDataStagesToo) {
  ForAllGroups(true, [&](Ranks& ranks) {
    Case c;
    c.elements = ipc::ChunkElements(4) + 1;
    c.with_data = 0;
    RunOnce(ranks, c, random_);
  });
}

TEST_F(DeviceExecutorTest, StagedIsReportedForEveryChunkInOrder) {
  ForAllGroups(true, [&](Ranks& ranks) {
    Case c;
    c.elements = 2 * ipc::ChunkElements(4) + 5;
    PushPull push_pull(c, static_cast<uint32_t>(ranks.size()), random_);
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Begin(*rank));
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Contribute(*rank));
    for (auto& rank : ranks) {
      ASSERT_TRUE(rank->ear.AwaitStaged(push_pull.id(), push_pull.bytes()));
      EXPECT_THAT(rank->ear.StagedOf(push_pull.id()),
                  ::testing::ElementsAre(ipc::kChunkBytes, 2 * ipc::kChunkBytes,
                                         2 * ipc::kChunkBytes + 20));
    }
    push_pull.End(ranks);
  });
}

TEST_F(DeviceExecutorTest, NothingIsReadBeforeTheCallersStreamIsReady) {
  ForAllGroups(true, [&](Ranks& ranks) {
    Case c;
    c.elements = 1000;
    PushPull push_pull(c, static_cast<uint32_t>(ranks.size()), random_);
    // The callers' streams write `in` late.
    std::vector<Bytes> computed;
    for (auto& rank : ranks) {
      auto* const in = const_cast<void*>(push_pull.round(rank->member).in);
      const uint64_t bytes = push_pull.bytes();
      computed.emplace_back(static_cast<std::byte*>(in), static_cast<std::byte*>(in) + bytes);
      std::memset(in, 0, bytes);
    }
    emulated_cuda_set("bytes_per_s", 200'000);
    for (auto& rank : ranks) {
      cudaMemcpyAsync(const_cast<void*>(push_pull.round(rank->member).in),
                      computed[rank->member].data(), push_pull.bytes(), cudaMemcpyDeviceToDevice,
                      rank->stream);
      ASSERT_TRUE(push_pull.Begin(*rank));
    }
    for (auto& rank : ranks) ASSERT_TRUE(push_pull.Contribute(*rank));
    for (auto& rank : ranks) {
      ASSERT_TRUE(rank->ear.AwaitStaged(push_pull.id(), push_pull.bytes()));
    }
    emulated_cuda_set("bytes_per_s", 0);
    EXPECT_TRUE(push_pull.contribution() == push_pull.expected());
    push_pull.End(ranks);
  });
}

TEST_F(DeviceExecutorTest, SeveralTensorsAreInFlight) {
  for (const bool ordered : {true, false}) {
    ForAllGroups(ordered, [&](Ranks& ranks) {
      std::vector<std::unique_ptr<PushPull>> rounds;
      for (uint32_t tensor = 0; tensor < 8; ++tensor) {
        Case c;
        c.tensor = tensor;
        c.elements = 1 + random_() % 60'000;
        c.dtype = tensor % 3 == 0 ? DType::kFloat16 : DType::kFloat32;
        c.exact = !ordered;
        rounds.push_back(
            std::make_unique<PushPull>(c, static_cast<uint32_t>(ranks.size()), random_));
        for (auto& rank : ranks) ASSERT_TRUE(rounds.back()->Begin(*rank));
      }
      std::shuffle(rounds.begin(), rounds.end(), random_);
      for (auto& round : rounds) {
        for (auto& rank : ranks) ASSERT_TRUE(round->Contribute(*rank));
      }
      std::shuffle(rounds.begin(), rounds.end(), random_);
      for (auto& round : rounds) {
        for (auto& rank : ranks) {
          ASSERT_TRUE(rank->ear.AwaitStaged(round->id(), round->bytes()));
        }
        EXPECT_TRUE(round->contribution() == round->expected());
        round->Arrive(ranks, random_);
        for (auto& rank : ranks) ASSERT_TRUE(round->WaitOn(*rank));
      }
      for (auto& rank : ranks) {
        ASSERT_TRUE(rank->AwaitStream());
        for (auto& round : rounds) EXPECT_TRUE(round->HasResult(*rank));
      }
      for (auto& round : rounds) round->End(ranks);
    });
  }
}

// Where a NIC reads contributions from the GPU of the root.
TEST_F(DeviceExecutorTest, DirectContributionsAreInExportedMemoryAndFetchedOnDemand) {
  for (uint32_t members = 1; members <= 3; members += 2) {
    SCOPED_TRACE(members);
    Ranks ranks = MakeRanks({"one root", false, {members - 1}}, members, true);
    DeviceExecutor& root = *ranks.back()->executor;
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      Case c;
      c.dtype = dtype;
      c.elements = ipc::ChunkElements(SizeOf(dtype)) + 1001;
      c.tensor = static_cast<uint32_t>(SizeOf(dtype));
      PushPull push_pull(c, members, random_);
      std::byte* memory = nullptr;
      int dmabuf = -1;
      ASSERT_TRUE(root.Export(push_pull.bytes(), &memory, &dmabuf)) << root.Error();
      const Bytes untouched = push_pull.contribution();
      DeviceRound& round = push_pull.round(members - 1);
      round.number = 12;
      round.direct = memory;
      for (auto& rank : ranks) ASSERT_TRUE(push_pull.Begin(*rank));
      for (auto& rank : ranks) ASSERT_TRUE(push_pull.Contribute(*rank));
      for (auto& rank : ranks) {
        ASSERT_TRUE(rank->ear.AwaitStaged(push_pull.id(), push_pull.bytes()));
      }
      EXPECT_TRUE(push_pull.contribution() == untouched) << "host memory is left alone";
      Bytes seen(push_pull.bytes());
      ASSERT_EQ(::pread(dmabuf, seen.data(), seen.size(), 0), static_cast<ssize_t>(seen.size()));
      EXPECT_TRUE(seen == push_pull.expected());
      ::close(dmabuf);

      const uint64_t offset = 4096 * c.tensor;
      ASSERT_TRUE(root.Fetch(&round, offset, 8192)) << root.Error();
      EXPECT_THAT(ranks.back()->ear.AwaitFetched(offset),
                  ::testing::ElementsAre(c.tensor, 12, 8192));
      Bytes wanted = untouched;
      std::copy_n(push_pull.expected().begin() + offset, 8192, wanted.begin() + offset);
      EXPECT_TRUE(push_pull.contribution() == wanted);
      push_pull.Arrive(ranks, random_);
      for (auto& rank : ranks) ASSERT_TRUE(push_pull.WaitOn(*rank));
      push_pull.End(ranks);
      for (auto& rank : ranks) {
        ASSERT_TRUE(rank->AwaitStream());
        EXPECT_TRUE(push_pull.HasResult(*rank));
      }
      EXPECT_EQ(emulated_cuda_count("exported"), 1u);
      root.Unexport(memory);
      EXPECT_EQ(emulated_cuda_count("exported"), 0u);
    }
  }
}

TEST_F(DeviceExecutorTest, ADeviceWithoutExportedMemoryWorks) {
  Ranks ranks = MakeRanks({"one root", false, {0}}, 1, true);
  emulated_cuda_set("export_fails", 1);
  std::byte* memory = nullptr;
  int dmabuf = -1;
  EXPECT_FALSE(ranks[0]->executor->Export(1 << 20, &memory, &dmabuf));
  emulated_cuda_set("export_fails", 0);
  EXPECT_THAT(ranks[0]->executor->Error(), ::testing::HasSubstr("gives no dma-buf"));
  Case c;
  c.elements = 1000;
  RunOnce(ranks, c, random_);
}

// The result slot of round r is free when round r+1 is told as staged.
TEST_F(DeviceExecutorTest, StagedReportsThatTheFormerResultWasTaken) {
  Ranks ranks = MakeRanks({"scattered", true, {}}, 1, true);
  Case c;
  c.elements = 1000;
  PushPull first(c, 1, random_);
  c.elements = 1;
  PushPull second(c, 1, random_);
  ASSERT_TRUE(first.Begin(*ranks[0]));
  ASSERT_TRUE(first.Contribute(*ranks[0]));
  ASSERT_TRUE(ranks[0]->ear.AwaitStaged(first.id(), first.bytes()));
  emulated_cuda_set("bytes_per_s", 40'000);  // 100 ms for the result
  first.Arrive(ranks, random_);
  ASSERT_TRUE(second.Begin(*ranks[0]));
  ASSERT_TRUE(second.Contribute(*ranks[0]));
  ASSERT_TRUE(ranks[0]->ear.AwaitStaged(second.id(), second.bytes()));
  emulated_cuda_set("bytes_per_s", 0);
  EXPECT_TRUE(first.HasResult(*ranks[0]));
  first.End(ranks);
  second.End(ranks);
}

TEST_F(DeviceExecutorTest, TheSteadyStateNeitherWaitsNorAllocates) {
  for (const bool ordered : {true, false}) {
    ForAllGroups(ordered, [&](Ranks& ranks) {
      const auto run = [&](int rounds) {
        for (int i = 0; i < rounds; ++i) {
          Case c;
          c.elements = 300;
          c.caller_dtype = i % 2 == 0 ? DType::kFloat32 : DType::kFloat16;
          c.dtype = DType::kFloat16;
          c.exact = true;
          c.tensor = static_cast<uint32_t>(i % 2);
          RunOnce(ranks, c, random_);
        }
      };
      run(6);
      const uint64_t synchronisations = emulated_cuda_count("synchronisations");
      const uint64_t allocations = emulated_cuda_count("allocations");
      run(100);
      EXPECT_EQ(emulated_cuda_count("synchronisations"), synchronisations);
      EXPECT_EQ(emulated_cuda_count("allocations"), allocations);
    });
  }
}

TEST_F(DeviceExecutorTest, InvalidResultsAreRefused) {
  Ranks ranks = MakeRanks({"scattered", true, {}}, 1, true);
  Case c;
  c.elements = 100;
  PushPull push_pull(c, 1, random_);
  Rank& rank = *ranks[0];
  DeviceRound& round = push_pull.round(0);
  ASSERT_TRUE(push_pull.Begin(rank));
  ASSERT_TRUE(push_pull.Contribute(rank));
  EXPECT_FALSE(push_pull.WaitOn(rank));
  round.result = push_pull.result().data();
  bool complete = true;
  EXPECT_FALSE(rank.executor->Arrived(&round, 200, 204, &complete));
  EXPECT_THAT(rank.executor->Error(), ::testing::HasSubstr("a result of 400 bytes"));
  EXPECT_FALSE(complete);
  EXPECT_TRUE(rank.executor->Arrived(&round, 0, 300, &complete));
  EXPECT_FALSE(rank.executor->Arrived(&round, 200, 104, &complete));
  EXPECT_THAT(rank.executor->Error(), ::testing::HasSubstr("told twice"));
  push_pull.End(ranks);
  ranks.clear();  // with the copies under way
}

}  // namespace
}  // namespace addend::client
