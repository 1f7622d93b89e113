// The metrics of an agent, in Prometheus' text format.
#include "services/worker_agent/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <string>

#include "lib/base/failure.h"

namespace addend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

// Node 3 of a job, with two local ranks.
class AgentMetricsTest : public ::testing::Test {
 protected:
  AgentMetricsTest() {
    agent_.set_job("j");
    agent_.set_node_rank(3);
    numbers_.nonfinite = {0, 0};
  }
  void AddLink(const std::string& transport, bool connected) {
    v1::LinkInfo* const link = agent_.add_links();
    link->set_transport(transport);
    link->set_connected(connected);
  }
  std::string Export() const {
    return prometheus::TextSerializer().Serialize(
        AgentMetrics::FamiliesOf(agent_, numbers_, limit_bytes_));
  }
  // The export has this line.
  void ExpectLine(const std::string& line) const {
    EXPECT_THAT("\n" + Export(), HasSubstr("\n" + line + "\n"));
  }

  v1::GetAgentResponse agent_;
  AgentNumbers numbers_;
  uint64_t limit_bytes_ = 0;
};

TEST_F(AgentMetricsTest, RoundsHaveTheirDurationAndTheShortestDurationPossible) {
  numbers_.rounds.seconds.Observe(2 * kSecond);
  numbers_.rounds.seconds.Observe(3 * kSecond);
  numbers_.rounds.optimal_s = 4.5;
  numbers_.rounds.last_optimal_s = 1.5;
  ExpectLine("# TYPE addend_round_seconds histogram");
  ExpectLine("addend_round_seconds_count{job_name=\"j\",node=\"3\"} 2");
  ExpectLine("addend_round_seconds_sum{job_name=\"j\",node=\"3\"} 5");
  ExpectLine("# TYPE addend_optimal_seconds_total counter");
  ExpectLine("addend_optimal_seconds_total{job_name=\"j\",node=\"3\"} 4.5");
  ExpectLine("# TYPE addend_round_optimal_seconds gauge");
  ExpectLine("addend_round_optimal_seconds{job_name=\"j\",node=\"3\"} 1.5");
}

TEST_F(AgentMetricsTest, EfficiencyIsOfTheRecentRoundsAndAbsentWithoutThem) {
  EXPECT_THAT(Export(), Not(HasSubstr("addend_efficiency_ratio{")));
  numbers_.rounds.recent = {{1, 0.5}, {3, 2.5}};
  ExpectLine("# TYPE addend_efficiency_ratio gauge");
  ExpectLine("addend_efficiency_ratio{job_name=\"j\",node=\"3\"} 0.75");
}

TEST_F(AgentMetricsTest, EveryPartOfARoundHasItsHistogram) {
  int64_t seconds = 0;
  for (DurationHistogram& part : numbers_.parts) part.Observe(++seconds * kSecond);
  ExpectLine("# TYPE addend_round_part_seconds histogram");
  seconds = 0;
  for (const char* part : {"intra_node", "queue", "push", "sum", "pull"}) {
    ExpectLine(std::string("addend_round_part_seconds_sum{job_name=\"j\",node=\"3\",part=\"") +
               part + "\"} " + std::to_string(++seconds));
  }
}

TEST_F(AgentMetricsTest, TrafficIsCountedByItsWay) {
  agent_.mutable_traffic()->set_network_bytes_sent(11);
  agent_.mutable_traffic()->set_network_bytes_received(12);
  agent_.mutable_traffic()->set_local_bytes(13);
  agent_.mutable_traffic()->set_copied_bytes(14);
  ExpectLine("addend_agent_network_bytes_total{direction=\"sent\"} 11");
  ExpectLine("addend_agent_network_bytes_total{direction=\"received\"} 12");
  ExpectLine("addend_agent_local_bytes_total 13");
  ExpectLine("addend_agent_copied_bytes_total 14");
}

TEST_F(AgentMetricsTest, LinksAreOfTheOpenConnectionsToOtherProcesses) {
  AddLink("tcp", true);
  AddLink("tcp", false);
  AddLink("rdma", true);
  AddLink("rdma", true);
  AddLink("rdma", false);
  AddLink("shm", true);
  AddLink("inproc", true);
  agent_.set_rdma_fallbacks(5);
  ExpectLine("addend_agent_links{transport=\"tcp\"} 1");
  ExpectLine("addend_agent_links{transport=\"rdma\"} 2");
  ExpectLine("addend_agent_links{transport=\"shm\"} 1");
  EXPECT_THAT(Export(), Not(HasSubstr("inproc")));
  ExpectLine("addend_agent_rdma_fallbacks_total 5");
}

TEST_F(AgentMetricsTest, ContributionsGoOutAndResultsComeIn) {
  numbers_.bytes_out = 21;
  numbers_.bytes_in = 22;
  numbers_.partitions_out = 23;
  numbers_.partitions_in = 24;
  numbers_.partitions_resent = 25;
  numbers_.direct_bytes = 26;
  numbers_.queued = 27;
  numbers_.credit_bytes = 28;
  ExpectLine("addend_agent_payload_bytes_total{direction=\"out\",job_name=\"j\"} 21");
  ExpectLine("addend_agent_payload_bytes_total{direction=\"in\",job_name=\"j\"} 22");
  ExpectLine("addend_agent_partitions_total{direction=\"out\",job_name=\"j\"} 23");
  ExpectLine("addend_agent_partitions_total{direction=\"in\",job_name=\"j\"} 24");
  ExpectLine("addend_agent_resent_partitions_total{job_name=\"j\"} 25");
  ExpectLine("addend_agent_gpudirect_bytes_total{job_name=\"j\"} 26");
  ExpectLine("addend_agent_queued_partitions 27");
  ExpectLine("addend_agent_send_credit_bytes 28");
}

TEST_F(AgentMetricsTest, StateOfTheNode) {
  for (const bool connected : {true, false, true}) agent_.add_trainers()->set_connected(connected);
  agent_.set_open_rounds(31);
  agent_.set_shared_memory_bytes(32);
  agent_.set_plan_version(33);
  numbers_.oldest_open_s = 1.5;
  numbers_.plan_changes = 34;
  ExpectLine("addend_agent_trainers 2");
  ExpectLine("addend_agent_open_rounds 31");
  ExpectLine("addend_agent_shared_memory_bytes 32");
  ExpectLine("addend_agent_plan_version{job_name=\"j\"} 33");
  ExpectLine("addend_agent_oldest_open_round_seconds 1.5");
  ExpectLine("addend_agent_plan_changes_total 34");
}

TEST_F(AgentMetricsTest, MemoryLimitIsAbsentWithoutOne) {
  EXPECT_THAT(Export(), Not(HasSubstr("\naddend_agent_memory_limit_bytes")));
  limit_bytes_ = 4096;
  ExpectLine("addend_agent_memory_limit_bytes 4096");
}

TEST_F(AgentMetricsTest, TrainersThatSpinAreSeen) {
  numbers_.spun_s = 0.25;
  ExpectLine("addend_trainer_spin_seconds_total{job_name=\"j\",node=\"3\"} 0.25");
}

TEST_F(AgentMetricsTest, NonfiniteContributionsHaveTheirRankInTheJob) {
  numbers_.nonfinite = {41, 42};
  numbers_.nonfinite_results = 43;
  ExpectLine("addend_nonfinite_partitions_total{job_name=\"j\",rank=\"6\"} 41");
  ExpectLine("addend_nonfinite_partitions_total{job_name=\"j\",rank=\"7\"} 42");
  ExpectLine("addend_nonfinite_results_total{job_name=\"j\",node=\"3\"} 43");
}

TEST_F(AgentMetricsTest, FailuresOfEveryCauseAreThereFromTheStart) {
  numbers_.failures = {{"peer_lost", 2}, {"novel", 3}};
  for (const FailureTraits& traits : kFailureTable) {
    const std::string cause(traits.cause);
    ExpectLine("addend_agent_failures_total{cause=\"" + cause +
               (cause == "peer_lost" ? "\"} 2" : "\"} 0"));
  }
  ExpectLine("addend_agent_failures_total{cause=\"novel\"} 3");
}

TEST_F(AgentMetricsTest, CountersHaveTheirSuffixAndGaugesHaveNone) {
  for (const prometheus::MetricFamily& family : AgentMetrics::FamiliesOf(agent_, numbers_, 1)) {
    EXPECT_EQ(family.name.ends_with("_total"), family.type == prometheus::MetricType::Counter)
        << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
  }
}

}  // namespace
}  // namespace addend
