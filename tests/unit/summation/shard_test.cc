// A shard's roll-call of a job, and its send queue for a node that does not read: no sockets.
#include "lib/summation/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "lib/auth/link_proof.h"
#include "lib/base/clock.h"
#include "lib/memory/arena.h"

namespace addend {
namespace {

constexpr JobId kJob{7};
constexpr TensorId kTensor{1};

// The link of a node that reads nothing: no frame is ever sent whole.
class UnreadLink final : public Link {
 public:
  void Send(const FrameHeader& header, Bytes payload, Done done) override {
    if (header.type == FrameType::kChallenge) {
      std::copy(payload.begin(), payload.end(), server_nonce.begin());
    }
    unsent_.push_back(std::move(done));
  }
  void Close(absl::Status why) override { closed = std::move(why); }
  std::string peer() const override { return "a test"; }
  absl::Duration sending_time() const override { return absl::ZeroDuration(); }
  absl::Status Encrypt(const LinkKeys&) override { return absl::UnimplementedError("a test"); }
  void LimitInFlight(size_t) override {}
  void Share(uint64_t) override {}

  auth::Secret server_nonce{};
  absl::Status closed;

 private:
  std::vector<Done> unsent_;
};

class ShardTest : public testing::Test {
 protected:
  ShardTest() {
    Do([this] { shard_->SetJob(job_, memory_); });
  }
  template <typename Task>
  void Do(Task task) {
    shard_->loop()->Run(task);
  }
  // `version` 0: the owner from the first round on, else the nodes have to report.
  void Add(uint32_t count, uint64_t version) {
    const auto arena = *Arena::Create(64);
    PartitionMemory memory;
    for (int slot = 0; slot < 2; ++slot) {
      memory.accumulator[slot] = memory.result[slot] = arena->memory().data() + 4 * slot;
    }
    memory.keep_alive = arena;
    Do([&] {
      for (uint32_t i = 0; i < count; ++i, ++added_) {
        shard_->AddPartition(
            kJob, std::make_shared<Partition>(PartitionSpec{.id = PartitionId(kTensor, added_),
                                                            .name = "t",
                                                            .elements = 1,
                                                            .nodes = 2,
                                                            .lost = job_.lost,
                                                            .version = PlanVersion(version)},
                                              memory));
      }
    });
  }
  std::vector<uint32_t> Waiting() {
    std::vector<OpenRoundInfo> open;
    Do([&] { shard_->RollCall(kJob, 1000, &open); });
    std::vector<uint32_t> indices;
    for (const OpenRoundInfo& round : open) indices.push_back(round.partition);
    std::sort(indices.begin(), indices.end());
    return indices;
  }

  // Opens the link of node 0, on the loop.
  Sink* Join(UnreadLink* link) {
    auth::LinkTerms terms;
    terms.claim = {.job = kJob,
                   .generation = Generation(1),
                   .node = NodeId(0),
                   .expires_unix_s = absl::ToUnixSeconds(absl::Now() + absl::Minutes(10))};
    terms.node_nonce = auth::NewSecret();
    const auto opening =
        auth::Encode({.expires_unix_s = terms.claim.expires_unix_s, .nonce = terms.node_nonce});
    Sink* const sink = shard_->Accept(link, *shard_->tcp());
    EXPECT_TRUE(sink->OnFrame(Header(FrameType::kHello), Payload(Bytes(opening))).ok());
    terms.server_nonce = link->server_nonce;
    const auth::Secret proof = auth::ProofOf(
        auth::Side::kNode, auth::TokenSecret(auth::BytesOf(job_.key), terms.claim), terms);
    EXPECT_TRUE(sink->OnFrame(Header(FrameType::kProof), Payload(Bytes(proof))).ok());
    return sink;
  }
  static FrameHeader Header(FrameType type) {
    FrameHeader header;
    header.type = type;
    header.job = kJob;
    header.generation = Generation(1);
    return header;
  }
  size_t Queued() const {
    LinkCounts counts;
    shard_->AddLinks(&counts);
    return counts.queued;
  }

  MemoryBudget budget_{0};
  ServerIdentity identity_;
  JobSpec job_{.id = kJob,
               .generation = Generation(1),
               .plan_version = PlanVersion(1),
               .key = "secret",
               .num_nodes = 2};
  std::shared_ptr<JobMemory> memory_ = std::make_shared<JobMemory>(&budget_, 0);
  std::unique_ptr<Shard> shard_ =
      *Shard::Create(ThisMachine(), 0, &budget_, &identity_, {.window_bytes = 1}, nullptr);
  uint32_t added_ = 0;
};

TEST_F(ShardTest, RollCallListsAPartitionFromItsTakeOverToItsLastReport) {
  Add(2, /*version=*/0);
  Add(1, /*version=*/5);
  EXPECT_EQ(Waiting(), std::vector<uint32_t>{2});
  Do([this] { shard_->TakeOver(kJob, PartitionId(kTensor, 0), PlanVersion(6), false); });
  EXPECT_EQ(Waiting(), (std::vector<uint32_t>{0, 2}));
  Do([this] { shard_->DropPartitions(kJob, kTensor, {2}); });
  EXPECT_EQ(Waiting(), std::vector<uint32_t>{0});
}

TEST_F(ShardTest, FailureReachesAllPartitionsOverSeveralTurnsOfTheLoop) {
  Add(300, /*version=*/5);
  job_.failed = true;
  std::vector<OpenRoundInfo> open;
  Do([&] {
    shard_->SetJob(job_, memory_);
    shard_->RollCall(kJob, 1000, &open);
  });
  EXPECT_EQ(open.size(), 300 - JobShard::kAtOnce) << "the other partitions still wait for reports";
  while (!Waiting().empty()) {
  }
}

TEST_F(ShardTest, NodeThatRepeatsReportsWithoutReadingHasASingleAnswerQueued) {
  job_.lost = {NodeId(1)};
  Do([this] { shard_->SetJob(job_, memory_); });
  Add(1, /*version=*/5);
  UnreadLink link;
  Do([&] {
    Sink* const sink = Join(&link);
    FrameHeader report = Header(FrameType::kRecover);
    report.partition = PartitionId(kTensor, 0);
    report.plan_version = PlanVersion(5);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(sink->OnFrame(report, {}).ok());
    EXPECT_LE(Queued(), 1u);
    EXPECT_TRUE(link.closed.ok()) << link.closed;
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(sink->OnFrame(report, {}).ok());
    EXPECT_LE(Queued(), 1u);
    EXPECT_TRUE(absl::IsResourceExhausted(link.closed)) << link.closed;
    sink->OnClosed(absl::CancelledError("the test ends"));
  });
  EXPECT_TRUE(Waiting().empty());
}

// Keeps the last signal.
class KeptSignals final : public rdma::Signals {
 public:
  explicit KeptSignals(rdma::Signal* last) : last_(*last) {}
  void Listen(ListenFn) override { FAIL() << "no link is set up"; }
  void Say(rdma::Signal signal) override { last_ = std::move(signal); }

 private:
  rdma::Signal& last_;
};

TEST_F(ShardTest, CallOverRdmaIsSentToAnotherTransportByAServerWithoutIt) {
  rdma::Signal said;
  Do([&] { shard_->AnswerRdma({}, std::make_unique<KeptSignals>(&said)); });
  EXPECT_FALSE(said.ends.has_value());
  ASSERT_TRUE(said.goodbye.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*said.goodbye));
  EXPECT_TRUE(rdma::IsPathFailure(*said.goodbye));
}

TEST_F(ShardTest, OrdersAboutAnUnknownJobHaveNoEffect) {
  const JobId unknown(99);
  Do([&] {
    shard_->TakeOver(unknown, PartitionId(kTensor, 0), PlanVersion(6), false);
    shard_->HandOver(unknown, kTensor, {0}, PlanVersion(6));
    shard_->DropPartitions(unknown, kTensor, {0});
    shard_->LimitInFlight(unknown, 1, SendLimits::kUnlimited);
    shard_->DropJob(unknown, absl::CancelledError("over"));
    std::map<TensorId, std::string> names;
    shard_->AddNames(unknown, &names);
    EXPECT_TRUE(names.empty());
  });
}

TEST_F(ShardTest, TotalsOfAJobOutliveItsGenerationsAndEndWithIt) {
  const auto totals = [this] {
    std::map<JobId, JobTotals> found;
    Do([&] { shard_->AddTotals(&found); });
    return found;
  };
  job_.name = "a";
  job_.generation = Generation(2);
  Do([this] { shard_->SetJob(job_, memory_); });
  EXPECT_EQ(totals().at(kJob).name, "a");
  Do([this] { shard_->DropJob(kJob, absl::CancelledError("over")); });
  EXPECT_TRUE(totals().empty());
}

TEST_F(ShardTest, PayloadThatIsReceivedWhenItsJobEndsLeavesNoMemoryInUse) {
  UnreadLink link;
  Do([&] {
    Sink* const sink = Join(&link);
    FrameHeader audit = Header(FrameType::kAudit);
    audit.payload_bytes = 4;
    ASSERT_EQ(sink->Place(audit)->size(), 4u);
    EXPECT_GT(budget_.used(), 0u);
    shard_->DropJob(kJob, absl::CancelledError("over"));
    ASSERT_TRUE(absl::IsCancelled(link.closed));
    sink->OnClosed(link.closed);
    EXPECT_EQ(budget_.used(), 0u);
  });
}

// Both times are of this machine, under the same load; without the index the calls take longer.
TEST_F(ShardTest, TimeOfTheRollCallGrowsWithOpenRoundsNotWithPartitions) {
  const absl::Time began = SteadyNow();
  Add(1 << 17, /*version=*/0);
  const absl::Duration adding = SteadyNow() - began;
  Add(1, /*version=*/5);
  const absl::Time called = SteadyNow();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Waiting().size(), 1u);
  EXPECT_LT(SteadyNow() - called, adding);
}

}  // namespace
}  // namespace addend
