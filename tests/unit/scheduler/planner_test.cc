#include "services/scheduler/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_format.h"
#include "lib/base/strings.h"
#include "lib/summation/table_bytes.h"

namespace addend {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlannerJob MakeJob(uint32_t nodes, uint32_t cpu_servers) {
  PlannerJob job;
  job.node_bps.assign(nodes, 0);
  for (uint32_t i = 0; i < nodes + cpu_servers; ++i) {
    PlannerServer server;
    server.id = ServerId(i + 1);
    server.name = absl::StrFormat("server %d", i + 1);
    if (i < nodes) server.node = NodeId(i);
    job.servers.push_back(server);
  }
  return job;
}

v1::TensorDescriptor Floats(int64_t elements) {
  v1::TensorDescriptor tensor;
  tensor.set_name("w");
  tensor.add_shape(elements);
  return tensor;
}

TEST(PlannerTest, SharesAreThoseOfTheTheorem) {
  // A CPU machine takes 2(n-1)/(n^2+kn-2k); the GPU machines share the rest (Equations 1 and 2).
  const auto targets = TargetShares(MakeJob(4, 2), 1e6);
  ASSERT_TRUE(targets.ok());
  const double n = 4, k = 2;
  const double cpu = 2 * (n - 1) / (n * n + k * n - 2 * k);
  EXPECT_NEAR(targets->shares[4], cpu, 1e-9);
  EXPECT_NEAR(targets->shares[0], (1 - k * cpu) / n, 1e-9);
  EXPECT_FALSE(targets->t_opt_s.has_value());
}

TEST(PlannerTest, UnknownBandwidthCountsAsTheSlowestKnown) {
  PlannerJob job = MakeJob(3, 1);
  job.node_bps = {1e10, 0, 4e9};
  PlannerJob filled = job;
  filled.node_bps = {1e10, 4e9, 4e9};
  filled.servers[3].bandwidth_bps = 4e9;
  const auto a = TargetShares(job, 1e6);
  const auto b = TargetShares(filled, 1e6);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->shares, b->shares);
  EXPECT_TRUE(a->t_opt_s.has_value());
}

TEST(PlannerTest, RatiosChangeTheSharesAndAddATime) {
  PlannerJob job = MakeJob(8, 4);
  job.node_bps.assign(8, 10e9);
  for (size_t i = 8; i < 12; ++i) job.servers[i].bandwidth_bps = 10e9;
  const auto raw = TargetShares(job, 1e6);
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(raw->t_opt_encoded_s, raw->t_opt_s);
  job.ratios = {0.5, 1};
  const auto encoded = TargetShares(job, 1e6);
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->t_opt_s, raw->t_opt_s);
  EXPECT_NEAR(*encoded->t_opt_encoded_s / *raw->t_opt_s, (1.5 * 56 / 74) / (112.0 / 88), 1e-9);
  EXPECT_NEAR(encoded->shares[0], 4.0 / 74, 1e-9);
  EXPECT_EQ(RecommendServers(job), 8u);
  job.ratios = {0.1, 1};
  EXPECT_EQ(RecommendServers(job), 0u);
}

TEST(PlannerTest, ServerOfSeveralJobsCountsWithItsPart) {
  PlannerJob shared = MakeJob(3, 1);
  shared.servers[3].jobs = 3;
  EXPECT_LT(TargetShares(shared, 1)->shares[3], TargetShares(MakeJob(3, 1), 1)->shares[3]);
}

TEST(PlannerTest, JobIsUnchangedByAPlanThatFails) {
  PlannerJob job = MakeJob(0, 1);
  job.node_bps = {0, 0};
  job.servers[0].load.free_bytes = 1000;
  const v1::TensorDescriptor tensor = Floats(10000);
  const v1::TensorDescriptor* tensors[] = {&tensor};
  const auto plans = PlanTensors(tensors, 4096, &job);
  EXPECT_EQ(plans.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(job.servers[0].load.load_bytes, 0u);
  EXPECT_EQ(job.servers[0].load.free_bytes, 1000u);
}

TEST(PlannerTest, NoRoomListsServersButNotThousands) {
  const std::string few = Message(NoRoom(Floats(10000), 4096, MakeJob(2, 1)));
  EXPECT_THAT(few, AllOf(HasSubstr("server 1 has"), HasSubstr("server 3 has")));
  const std::string many = Message(NoRoom(Floats(10000), 4096, MakeJob(0, 1000)));
  EXPECT_THAT(many, AllOf(HasSubstr("server 8 has"), Not(HasSubstr("server 9 has")),
                          HasSubstr("992 further servers")));
}

TEST(PlannerTest, PartitionsOfAPlanCoverTheTensor) {
  PlannerJob job = MakeJob(2, 1);
  const v1::TensorDescriptor tensor = Floats(10001);
  const v1::TensorDescriptor* tensors[] = {&tensor};
  const auto plans = PlanTensors(tensors, 4096, &job);
  ASSERT_TRUE(plans.ok());
  uint64_t payload = 0;
  uint64_t memory = 0;
  ForEachPartition(plans->front(), job.nodes, [&](const PlannedPartition& partition) {
    payload += partition.payload_bytes;
    memory += partition.accumulator_bytes;
  });
  EXPECT_EQ(payload, 40004u);
  EXPECT_EQ(memory, 80008u + 10 * PartitionTableBytes(job.nodes));
  uint64_t loads = 0;
  for (const PlannerServer& server : job.servers) loads += server.load.load_bytes;
  EXPECT_EQ(loads, 40004u);
}

TEST(PlannerTest, TablesOfPartitionsTakeRoomAsOnTheServer) {
  for (const v1::ReduceOp op : {v1::SUM, v1::ACCUMULATE}) {
    PlannerJob job = MakeJob(0, 1);
    job.node_bps.assign(1024, 0);
    job.nodes = 1024;
    v1::TensorDescriptor tensor = Floats(10 * 1024);
    tensor.set_op(op);
    const v1::TensorDescriptor* tensors[] = {&tensor};
    const uint64_t table =
        op == v1::SUM ? PartitionTableBytes(1024) : LatestPartitionTableBytes(1024);
    const uint64_t accumulators = op == v1::SUM ? 5 : 2;  // with 1024 nodes
    const uint64_t needed = 10 * (accumulators * 4096 + table);
    job.servers[0].load.free_bytes = needed - 1;
    EXPECT_TRUE(absl::IsResourceExhausted(PlanTensors(tensors, 4096, &job).status()));
    job.servers[0].load.free_bytes = needed;
    const auto plans = PlanTensors(tensors, 4096, &job);
    ASSERT_TRUE(plans.ok()) << plans.status();
    EXPECT_EQ(job.servers[0].load.free_bytes, 0u);
    std::vector<PlannedPartition> partitions;
    ForEachPartition(plans->front(), 1024, [&](const PlannedPartition& partition) {
      EXPECT_EQ(partition.accumulator_bytes, MemoryBytesOf(plans->front(), partition.index, 1024));
      partitions.push_back(partition);
    });
    EXPECT_TRUE(absl::IsResourceExhausted(ReassignPartitions(partitions, &job).status()));
    job.servers[0].load.free_bytes = needed;
    EXPECT_TRUE(ReassignPartitions(partitions, &job).ok());
    EXPECT_EQ(job.servers[0].load.free_bytes, 0u);
  }
}

TEST(PlannerTest, DescribesForPeople) {
  v1::TensorDescriptor tensor;
  EXPECT_EQ(Describe(tensor), "float32 [] sum");
  tensor.add_shape(3);
  tensor.add_shape(4);
  tensor.set_dtype(v1::BFLOAT16);
  tensor.set_op(v1::AVERAGE);
  EXPECT_EQ(Describe(tensor), "bfloat16 [3,4] average");
}

TEST(PlannerTest, OrderOfSummationIsThatOfTheJobsNodes) {
  v1::TensorDescriptor tensor = Floats(3);
  EXPECT_TRUE(CheckNumerics(tensor, 8).ok()) << "an older agent names no order";
  EXPECT_THAT(Message(CheckNumerics(tensor, 9)), HasSubstr("in a job of 9 nodes by 'tree8'"));
  tensor.set_reduction_tree("tree8 int8");
  EXPECT_TRUE(CheckNumerics(tensor, 9).ok());
  EXPECT_THAT(Message(CheckNumerics(tensor, 8)), HasSubstr("by 'flat int8'"));
}

TEST(PlannerTest, UnknownTreeAndEndlessNamesAreRefused) {
  v1::TensorDescriptor tensor = Floats(3);
  EXPECT_TRUE(CheckDescriptor(tensor, 4096).ok());
  tensor.set_reduction_tree("ring");
  EXPECT_THAT(Message(CheckDescriptor(tensor, 4096)), HasSubstr("'ring'"));
  tensor.set_reduction_tree("flat");
  tensor.set_name(std::string(5000, 'n'));
  EXPECT_FALSE(CheckDescriptor(tensor, 4096).ok());
  EXPECT_LT(Message(CheckDescriptor(tensor, 4096)).size(), 400u);
}

}  // namespace
}  // namespace addend
