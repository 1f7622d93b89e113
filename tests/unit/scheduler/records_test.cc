#include "services/scheduler/records.h"

#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "tests/unit/scheduler/job_scope_fixture.h"

namespace addend {
namespace {

// Records are compared with those of the state that is read from them.
class RecordsTest : public JobScopeTest {
 protected:
  RecordsTest() {
    AddNodes(2);
    job_.key = std::string(32, 'k');
    job_.created = now_;
    Server& server = AddServer(1 << 20);
    server.info.add_endpoints()->set_port(1);
    server.secret_digest = "digest";
    for (auto& [rank, node] : job_.nodes) {
      node.info.set_job("a");
      *node.info.mutable_settings() = job_.settings;
    }
    tensor_ = &Published("w", 5000);
    server.draining = true;
  }
  template <typename Message>
  static void ExpectEqual(const Message& a, const Message& b) {
    EXPECT_EQ(a.DebugString(), b.DebugString());
  }
  Jobs EmptyJobs() const {
    Jobs jobs;
    jobs.RestoreNextNumber(jobs_.next_number());
    return jobs;
  }

  DeclaredTensor* tensor_ = nullptr;
};

TEST_F(RecordsTest, StateSurvivesItsRecord) {
  const v1::ServerRecord server = records::RecordOf(*fleet_.Find(ServerId(1)));
  Fleet fleet;
  fleet.RestoreNextNumber(2);
  ExpectEqual(records::RecordOf(*records::From(server, fleet)), server);

  job_.current.state = v1::FAILED;
  job_.current.reason = "why";
  job_.current.failure = TellFailure(FailureKind::kPeerLost);
  job_.current.gone[NodeId(1)] = "lost";
  job_.current.lost[NodeId(1)] = 101;
  const v1::JobRecord job = records::RecordOf(job_);
  ExpectEqual(records::RecordOf(*records::From(job, EmptyJobs())), job);

  job_.nodes.at(NodeId(1)).idle = true;
  const v1::NodeRecord node = records::RecordOf(job_, job_.nodes.at(NodeId(1)));
  ExpectEqual(records::RecordOf(job_, *records::From(node, job_)), node);

  tensor_->differing = Descriptor("w", 6000);
  tensor_->differing_node = NodeId(1);
  const v1::AgreementRecord agreement = records::RecordOf(job_, *tensor_);
  Job empty = *records::From(job, EmptyJobs());
  ExpectEqual(records::RecordOf(job_, *records::From(agreement, empty)), agreement);
}

TEST_F(RecordsTest, ServerWithAnUnknownNumberIsDamage) {
  v1::ServerRecord record = records::RecordOf(*fleet_.Find(ServerId(1)));
  record.set_server_id(fleet_.next_number());
  EXPECT_TRUE(absl::IsDataLoss(records::From(record, Fleet()).status()));
  record.set_server_id(0);
  EXPECT_TRUE(absl::IsDataLoss(records::From(record, fleet_).status()));
}

TEST_F(RecordsTest, SecondJobOfANameIsDamage) {
  v1::JobRecord record = records::RecordOf(job_);
  EXPECT_TRUE(absl::IsDataLoss(records::From(record, jobs_).status()));
  record.set_name("b");
  EXPECT_TRUE(records::From(record, jobs_).ok());
  record.set_job_id(jobs_.next_number());
  EXPECT_TRUE(absl::IsDataLoss(records::From(record, jobs_).status()));
}

TEST_F(RecordsTest, NodeOutsideOfItsJobIsDamage) {
  v1::NodeRecord record = records::RecordOf(job_, job_.nodes.at(NodeId(1)));
  record.mutable_registration()->set_job("b");
  EXPECT_FALSE(records::From(record, job_).ok());
  record.mutable_registration()->set_job("a");
  job_.settings.set_num_nodes(1);
  EXPECT_FALSE(records::From(record, job_).ok());
}

TEST_F(RecordsTest, VersionsOfAPlanAreAtMostThoseOfTheJob) {
  v1::PlanRecord record = records::PlanRecordOf(job_, *tensor_);
  job_.current.tensors.ClearId(*tensor_);
  v1::TensorPlan& plan = *record.mutable_plan();
  plan.mutable_versions()->Resize(plan.servers_size(), job_.plan_version.value());
  EXPECT_TRUE(records::Check(record, job_, *tensor_).ok());
  plan.set_versions(0, job_.plan_version.value() + 1);
  EXPECT_TRUE(absl::IsDataLoss(records::Check(record, job_, *tensor_)));
}

TEST_F(RecordsTest, MovesOfAPlanHaveToFitIt) {
  const v1::PlanRecord good = records::PlanRecordOf(job_, *tensor_);
  job_.current.tensors.ClearId(*tensor_);
  const auto partitions = static_cast<uint32_t>(good.plan().servers_size());
  const auto with_move = [&](uint32_t partition, uint32_t shard, uint64_t version, int count = 1) {
    v1::PlanRecord record = good;
    for (int i = 0; i < count; ++i) {
      v1::PartitionMove& move = *record.mutable_plan()->add_moves();
      move.set_partition(partition);
      move.set_server(1);
      move.set_shard(shard);
      move.set_version(version);
    }
    return records::Check(record, job_, *tensor_).ok();
  };
  const uint64_t newest = job_.plan_version.value();
  EXPECT_TRUE(with_move(0, 0, newest));
  EXPECT_TRUE(with_move(partitions - 1, 0, newest));
  EXPECT_FALSE(with_move(partitions, 0, newest));
  EXPECT_FALSE(with_move(0, 1 << 20, newest));
  EXPECT_FALSE(with_move(0, 0, 0));
  EXPECT_FALSE(with_move(0, 0, newest + 1));
  EXPECT_FALSE(with_move(0, 0, newest, /*count=*/2)) << "the same partition twice";
  tensor_->stage = v1::AgreementRecord::RESERVING;
  EXPECT_FALSE(with_move(0, 0, newest)) << "nothing is published that could move";
}

TEST_F(RecordsTest, PlanHasToFitItsTensor) {
  const v1::PlanRecord good = records::PlanRecordOf(job_, *tensor_);
  job_.current.tensors.ClearId(*tensor_);
  EXPECT_TRUE(records::Check(good, job_, *tensor_).ok());
  const auto refused = [&](auto damage) {
    v1::PlanRecord record = good;
    damage(record.mutable_plan());
    return absl::IsDataLoss(records::Check(record, job_, *tensor_));
  };
  EXPECT_TRUE(refused([](auto* plan) { plan->set_tensor_id(0); }));
  EXPECT_TRUE(refused([&](auto* plan) { plan->set_tensor_id(job_.next_tensor); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->mutable_tensor()->set_name("b"); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->set_partition_elements(0); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->add_servers(1); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->set_shards(0, 1 << 20); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->set_partition_elements(1 << 30); }));
  EXPECT_TRUE(refused([](auto* plan) { plan->add_versions(0); })) << "one for each partition";
  job_.current.tensors.SetId(tensor_, TensorId(good.plan().tensor_id()));
  EXPECT_TRUE(refused([](auto*) {})) << "another tensor has the number";
}

TEST_F(RecordsTest, RelaysOfAPlanHaveToFitIt) {
  const v1::PlanRecord good = records::PlanRecordOf(job_, *tensor_);
  job_.current.tensors.ClearId(*tensor_);
  const auto with_relays = [&](auto damage) {
    v1::PlanRecord record = good;
    v1::RelayPlan& relays = *record.mutable_plan()->mutable_relays();
    const uint32_t nodes = job_.settings.num_nodes();
    for (uint32_t node = 0; node < nodes; ++node) {
      v1::RelayUnit& unit = *relays.add_units();
      unit.set_first(node);
      unit.set_count(1);
      unit.mutable_servers()->Resize(good.plan().servers_size(), 1);
      unit.mutable_shards()->Resize(good.plan().servers_size(), 0);
    }
    damage(&relays);
    return records::Check(record, job_, *tensor_).ok();
  };
  EXPECT_TRUE(with_relays([](auto*) {}));
  EXPECT_TRUE(with_relays([](auto* relays) { relays->mutable_units(0)->set_servers(0, 0); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(0)->clear_servers(); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(0)->clear_shards(); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(0)->set_shards(0, 1 << 20); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(1)->set_first(0); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(1)->set_count(0); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->mutable_units(1)->set_count(0x7fffffff); }));
  EXPECT_FALSE(with_relays([](auto* relays) { relays->clear_units(); })) << "no node has a relay";
}

}  // namespace
}  // namespace addend
