// Rounds of push-pull through the C ABI, against the fake agent.
#include <cstring>
#include <set>
#include <thread>

#include "tests/unit/client/fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;

TEST_F(ClientTest, RanksKnowTheirPlace) {
  Start(3);
  EXPECT_EQ(addend_rank(contexts_[2]), 2);
  EXPECT_EQ(addend_size(contexts_[2]), 3);
  EXPECT_EQ(addend_local_rank(contexts_[2]), 2);
  EXPECT_EQ(addend_local_size(contexts_[2]), 3);
  EXPECT_EQ(addend_node_rank(contexts_[2]), 0);
  EXPECT_EQ(addend_num_nodes(contexts_[2]), 1);
}

TEST_F(ClientTest, EveryRankReceivesTheSum) {
  Start(3);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {2, 2});
    const std::vector<float> in = {1.0f + rank, 2, 3, 4};
    std::vector<float> out(4);
    ASSERT_EQ(Await(Push(tensor, in.data(), out.data())), ADDEND_OK);
    EXPECT_THAT(out, ElementsAre(6, 6, 9, 12));
  });
}

TEST_F(ClientTest, ManyRoundsAlternateBetweenTheSlots) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {5}, ADDEND_INT64, ADDEND_MAX);
    for (int64_t round = 0; round < 200; ++round) {
      std::vector<int64_t> values(5, round * 10 + rank);
      ASSERT_EQ(Await(Push(tensor, values.data(), values.data())), ADDEND_OK);
      ASSERT_THAT(values, testing::Each(round * 10 + 1));
    }
  });
  addend_statistics statistics;
  addend_get_statistics(contexts_[0], &statistics);
  EXPECT_EQ(statistics.rounds, 200u);
  EXPECT_EQ(statistics.copied_in_bytes, 200u * 40);
  EXPECT_EQ(statistics.copied_out_bytes, 200u * 40);
}

TEST_F(ClientTest, QueuedPushesOfOneNameGoInOrder) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {3}, ADDEND_INT32);
    constexpr int kRounds = 50;
    std::vector<std::vector<int32_t>> in(kRounds);
    std::vector<std::vector<int32_t>> out(kRounds, std::vector<int32_t>(3));
    std::vector<addend_handle*> handles;
    for (int i = 0; i < kRounds; ++i) {
      in[i].assign(3, i * (rank + 1));
      handles.push_back(Push(tensor, in[i].data(), out[i].data()));
    }
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(Await(handles[i]), ADDEND_OK);
      ASSERT_THAT(out[i], testing::Each(3 * i));
    }
  });
}

TEST_F(ClientTest, QueuedPushInPlaceSeesTheFormerResult) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {1});
    float value = 1;
    std::vector<addend_handle*> handles;
    for (int i = 0; i < 5; ++i) handles.push_back(Push(tensor, &value, &value));
    for (addend_handle* handle : handles) ASSERT_EQ(Await(handle), ADDEND_OK);
    EXPECT_EQ(value, 32);
  });
}

TEST_F(ClientTest, TensorComputedInPlaceIsNotCopied) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {1024});
    void* data;
    size_t bytes;
    ASSERT_EQ(addend_alloc(tensor, &data, &bytes), ADDEND_OK);
    ASSERT_EQ(bytes, 4096u);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 1024; ++i) static_cast<float*>(data)[i] = i;
      addend_handle* const handle = Push(tensor, data, nullptr);
      ASSERT_EQ(addend_wait(handle, kLongS), ADDEND_OK);
      EXPECT_EQ(static_cast<const float*>(addend_result(handle))[1023], 2046);
      addend_release(handle);
    }
    addend_statistics statistics;
    addend_get_statistics(contexts_[rank], &statistics);
    EXPECT_EQ(statistics.copied_in_bytes, 0u);
    EXPECT_EQ(statistics.copied_out_bytes, 0u);
  });
}

TEST_F(ClientTest, RankWithoutDataCountsAsZeros) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {1}, ADDEND_FLOAT32, ADDEND_AVERAGE);
    const float in = 3;
    float out = -1;
    ASSERT_EQ(Await(Push(tensor, rank == 0 ? &in : nullptr, &out)), ADDEND_OK);
    EXPECT_EQ(out, 1.5f);
  });
}

TEST_F(ClientTest, BroadcastTakesTheOnlyContribution) {
  Start(3);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {2}, ADDEND_INT32, ADDEND_BROADCAST);
    std::vector<int32_t> values = {rank, 7 * rank};
    ASSERT_EQ(Await(Push(tensor, rank == 1 ? values.data() : nullptr, values.data())), ADDEND_OK);
    EXPECT_THAT(values, ElementsAre(1, 7));
  });
}

TEST_F(ClientTest, TensorsWithoutElementsHaveRounds) {
  Start(2);
  OnAllRanks([&](int rank) {
    addend_tensor* const tensor = Declare(rank, "t", {3, 0, 5});
    float unused = 1;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(Await(Push(tensor, &unused, &unused)), ADDEND_OK);
    EXPECT_EQ(unused, 1);
  });
}

TEST_F(ClientTest, ScalarsAndUnusualNamesAreFine) {
  Start(1);
  for (const char* name : {"λ₂ 🙂", "a/b c\n", "x.y:z[0]"}) {
    addend_tensor* const tensor = Declare(0, name, {});
    float value = 2;
    EXPECT_EQ(Await(Push(tensor, &value, &value)), ADDEND_OK);
  }
}

TEST_F(ClientTest, SecondDeclarationIsTheSameTensor) {
  Start(1);
  EXPECT_EQ(Declare(0, "t", {4}), Declare(0, "t", {4}));
}

TEST_F(ClientTest, UndeclaredNameMayComeBackWithAnotherShape) {
  Start(2);
  OnAllRanks([&](int rank) {
    for (int64_t size = 1; size < 20; ++size) {
      addend_tensor* const tensor = Declare(rank, "t", {size});
      std::vector<float> values(size, 1);
      ASSERT_EQ(Await(Push(tensor, values.data(), values.data())), ADDEND_OK);
      ASSERT_THAT(values, testing::Each(2));
      ASSERT_EQ(addend_undeclare(tensor), ADDEND_OK) << addend_last_error();
    }
  });
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.tensors == 0; }));
}

TEST_F(ClientTest, PollAndTimeoutReportAnOperationUnderWay) {
  Start(1);
  agent_->HoldResults(true);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float value = 1;
  addend_handle* const handle = Push(tensor, &value, &value);
  EXPECT_EQ(addend_poll(handle), 0);
  EXPECT_EQ(addend_wait(handle, 0.01), ADDEND_ERROR_TIMEOUT);
  EXPECT_THAT(addend_last_error(), testing::HasSubstr("\"t\""));
  agent_->HoldResults(false);
  EXPECT_EQ(addend_wait(handle, -1), ADDEND_OK);
  EXPECT_EQ(addend_poll(handle), 1);
  addend_release(handle);
}

TEST_F(ClientTest, TaggedHandlesComeBackOnceEach) {
  Start(1);
  std::vector<addend_handle*> handles;
  float value = 1;
  for (uint64_t i = 0; i < 20; ++i) {
    addend_tensor* const tensor = Declare(0, std::to_string(i).c_str(), {1});
    handles.push_back(Push(tensor, &value, nullptr));
    addend_set_tag(handles.back(), 100 + i);
  }
  std::set<uint64_t> tags;
  for (int i = 0; i < 20; ++i) {
    uint64_t tag = 0;
    ASSERT_EQ(addend_next_done(contexts_[0], kLongS, &tag), ADDEND_OK);
    tags.insert(tag);
  }
  EXPECT_EQ(tags.size(), 20u);
  uint64_t tag = 0;
  EXPECT_EQ(addend_next_done(contexts_[0], 0.01, &tag), ADDEND_ERROR_TIMEOUT);
  for (addend_handle* handle : handles) addend_release(handle);
}

TEST_F(ClientTest, ReleasedHandleLeavesTheCallersMemoryAlone) {
  Start(1);
  agent_->HoldResults(true);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float first = 1;
  float second = 2;
  addend_handle* const a = Push(tensor, &first, &first);
  addend_handle* const b = Push(tensor, &second, &second);
  float third = 0;
  addend_handle* const c = Push(tensor, nullptr, &third);
  addend_release(a);
  addend_release(b);
  first = second = -5;
  agent_->HoldResults(false);
  EXPECT_EQ(Await(c), ADDEND_OK);
  EXPECT_EQ(first, -5);
  EXPECT_EQ(second, -5);
}

TEST_F(ClientTest, PrioritiesReachTheAgent) {
  Start(1);
  float value = 1;
  EXPECT_EQ(Await(Push(Declare(0, "a", {1}), &value, nullptr, -3)), ADDEND_OK);
  EXPECT_EQ(Await(Push(Declare(0, "b", {1}), &value, nullptr, 1000)), ADDEND_OK);
  EXPECT_THAT(agent_->counts().priorities, ElementsAre(-3, 1000));
}

TEST_F(ClientTest, PinnedMemoryOutlivesTheContext) {
  Start(1);
  addend_tensor* const tensor = Declare(0, "t", {4});
  void* data;
  addend_pin* pin;
  ASSERT_EQ(addend_alloc(tensor, &data, nullptr), ADDEND_OK);
  ASSERT_EQ(addend_pin_memory(tensor, &pin), ADDEND_OK);
  static_cast<float*>(data)[3] = 42;
  addend_shutdown(contexts_[0]);
  EXPECT_EQ(static_cast<float*>(data)[3], 42);
  addend_unpin(pin);
}

TEST_F(ClientTest, ManyThreadsShareAContext) {
  Start(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        // Half of the names are shared: the second declaration has to find the first.
        const std::string name = std::to_string(i % 2 == 0 ? i : 1000 * t + i);
        addend_tensor* const tensor = Declare(0, name.c_str(), {16});
        std::vector<float> values(16, 1);
        ASSERT_EQ(Await(Push(tensor, values.data(), values.data())), ADDEND_OK);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ClientTest, MoreMessagesThanTheSocketHoldsAreQueued) {
  Start(1);
  agent_->HoldResults(true);
  std::vector<addend_handle*> handles;
  float value = 1;
  for (int i = 0; i < 2000; ++i) {
    handles.push_back(Push(Declare(0, std::to_string(i).c_str(), {1}), &value, nullptr));
  }
  agent_->HoldResults(false);
  for (addend_handle* handle : handles) ASSERT_EQ(Await(handle), ADDEND_OK);
}

TEST_F(ClientTest, LargeTensorArrivesWhole) {
  Start(2);
  OnAllRanks([&](int rank) {
    constexpr int64_t kElements = (int64_t{16} << 20) + 1;
    addend_tensor* const tensor = Declare(rank, "large", {kElements}, ADDEND_INT32);
    std::vector<int32_t> values(kElements);
    for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<int32_t>(i + rank);
    ASSERT_EQ(Await(Push(tensor, values.data(), values.data())), ADDEND_OK);
    for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(values[i], 2 * i + 1);
  });
}

TEST_F(ClientTest, ShutdownIsACleanEndForTheAgent) {
  Start(2);
  addend_shutdown(contexts_[0]);
  EXPECT_TRUE(Eventually([](const auto& c) { return c.shut_down == 1 && c.connected == 1; }));
  EXPECT_EQ(agent_->counts().died, 0);
}

TEST_F(ClientTest, VersionIsThatOfTheBuild) {
  EXPECT_THAT(addend_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace addend
