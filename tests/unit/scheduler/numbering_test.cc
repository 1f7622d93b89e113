#include "services/scheduler/numbering.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

constexpr uint32_t kNodes = 4;

// Agents on hosts of two racks, whose numbers are even or odd.
class NumberingTest : public testing::Test {
 protected:
  absl::StatusOr<v1::NumberNodeResponse> Ask(uint32_t host, const Job* job = nullptr) {
    const std::string address = absl::StrFormat("10.0.0.%d:7270", host);
    v1::NumberNodeRequest request;
    request.set_incarnation(100 + host);
    request.mutable_node()->set_job("job");
    request.mutable_node()->set_hostname(absl::StrFormat("host%d", host));
    request.mutable_node()->set_control_address(address);
    request.mutable_node()->mutable_settings()->set_num_nodes(kNodes);
    for (const v1::ProbeTarget& target : asked_[host]) {
      v1::Probe& probe = *request.add_probes();
      probe.set_address(target.address());
      const int other = std::stoi(target.address().substr(7));
      probe.set_latency_s(other % 2 == static_cast<int>(host % 2) ? 1e-5 : 2e-5);
    }
    map_.Hear(now_, {"a node of job", address, "", places_[host], 0});
    auto answer = numbering_.Ask(now_, request, job, &map_);
    if (answer.ok()) asked_[host] = answer->probe();
    return answer;
  }
  // All of them ask until they have their numbers.
  std::map<uint32_t, uint32_t> Number(const std::vector<uint32_t>& hosts) {
    std::map<uint32_t, uint32_t> ranks;
    for (int i = 0; i < 100 && ranks.size() < hosts.size(); ++i, now_ += absl::Seconds(0.5)) {
      for (const uint32_t host : hosts) {
        const auto answer = Ask(host);
        EXPECT_TRUE(answer.ok()) << answer.status();
        if (answer.ok() && answer->numbered()) ranks[host] = answer->node_rank();
      }
    }
    return ranks;
  }

  Numbering numbering_;
  NetworkMap map_{/*measures=*/true};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::map<uint32_t, NetworkMap::Targets> asked_;
  std::map<uint32_t, std::string> places_;
};

TEST_F(NumberingTest, AnAgentWaitsForTheOthersOfItsJob) {
  ASSERT_TRUE(Ask(1).ok());
  const auto answer = Ask(2);
  ASSERT_TRUE(answer.ok());
  EXPECT_FALSE(answer->numbered());
  EXPECT_EQ(answer->waits_for(), "2 of the 4 nodes of job 'job' are missing");
}

TEST_F(NumberingTest, EveryNodeGetsItsOwnNumber) {
  std::set<uint32_t> numbers;
  for (const auto& [host, rank] : Number({1, 2, 3, 4})) numbers.insert(rank);
  EXPECT_EQ(numbers, (std::set<uint32_t>{0, 1, 2, 3}));
}

TEST_F(NumberingTest, TheyMeasureTheNetworkFirst) {
  for (uint32_t host = 1; host <= 4; ++host) ASSERT_TRUE(Ask(host).ok());
  const auto answer = Ask(1);
  ASSERT_TRUE(answer.ok());
  EXPECT_FALSE(answer->numbered());
  EXPECT_NE(answer->waits_for().find("measure the network"), std::string::npos);
  EXPECT_EQ(Number({1, 2, 3, 4}).size(), 4);
  EXPECT_GE(map_.TimesMeasured("10.0.0.1", "10.0.0.4"), 8);
}

TEST_F(NumberingTest, NeighboursAreNumberedTogether) {
  places_ = {{1, "b"}, {2, "a"}, {3, "b"}, {4, "a"}};
  auto ranks = Number({1, 2, 3, 4});
  EXPECT_EQ(ranks[1] / 2, ranks[3] / 2);
  EXPECT_EQ(ranks[2] / 2, ranks[4] / 2);
}

TEST_F(NumberingTest, ToldPlacesNeedNoMeasurement) {
  places_ = {{1, "b"}, {2, "a"}, {3, "b"}, {4, "a"}};
  for (uint32_t host = 1; host <= 4; ++host) ASSERT_TRUE(Ask(host).ok());
  const auto answer = Ask(1);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->numbered());
}

TEST_F(NumberingTest, ASurplusAgentIsRefused) {
  for (uint32_t host = 1; host <= 4; ++host) ASSERT_TRUE(Ask(host).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(5).status()));
}

TEST_F(NumberingTest, AnAgentThatAsksNoMoreMakesRoom) {
  for (uint32_t host = 1; host <= 4; ++host) ASSERT_TRUE(Ask(host).ok());
  now_ += absl::Seconds(6);
  EXPECT_EQ(Number({2, 3, 4, 5}).size(), 4);
}

TEST_F(NumberingTest, ANumberThatAJobDoesNotUseIsGivenAtOnce) {
  Jobs jobs;
  Job& job = jobs.Create("job");
  for (const uint32_t rank : {0, 1, 3}) {
    job.nodes[NodeId(rank)].rank = NodeId(rank);
    job.nodes[NodeId(rank)].info.set_incarnation(rank + 1);
  }
  const auto answer = Ask(7, &job);
  ASSERT_TRUE(answer.ok());
  ASSERT_TRUE(answer->numbered()) << answer->waits_for();
  EXPECT_EQ(answer->node_rank(), 2);
  job.nodes[NodeId(2)].info.set_incarnation(107);
  EXPECT_TRUE(absl::IsFailedPrecondition(Ask(8, &job).status()));
}

TEST_F(NumberingTest, ANumberWhoseAgentIsGoneIsWaitedFor) {
  ASSERT_EQ(Number({1, 2, 3, 4}).size(), 4);
  auto answer = Ask(5);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_NE(answer->waits_for().find("all 4 numbers"), std::string::npos);
  now_ += absl::Seconds(6);
  for (const uint32_t host : {1, 2, 3}) Ask(host).IgnoreError();
  answer = Ask(5);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_NE(answer->waits_for().find("measure"), std::string::npos) << answer->waits_for();
}

TEST_F(NumberingTest, HostsThatCannotMeasureEachOtherAreNumberedAfterAWhile) {
  for (int i = 0; i < 50; ++i, now_ += absl::Seconds(0.5)) {
    for (uint32_t host = 1; host <= 4; ++host) {
      asked_[host].Clear();  // nothing is told
      const auto answer = Ask(host);
      ASSERT_TRUE(answer.ok());
      if (answer->numbered()) {
        EXPECT_GT(i, 30);
        return;
      }
    }
  }
  FAIL() << "no number";
}

}  // namespace
}  // namespace addend
