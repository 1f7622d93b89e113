// The conversation beside a link over RDMA, through a real gRPC server.
#include "lib/server/link_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/mutex.h"
#include "lib/base/strings.h"
#include "lib/rpc/server.h"

namespace addend {
namespace {

using rdma::Signal;
using rdma::Signals;

// The signals that an end receives. A signal may still come when the listener is gone.
class Ear {
 public:
  Signals::ListenFn listen() {
    return [heard = heard_](absl::StatusOr<Signal> word) {
      MutexLock lock(&heard->mu);
      heard->words.push_back(std::move(word));
      heard->cv.NotifyAll();
    };
  }
  // The word of this number; waits for it.
  absl::StatusOr<Signal> Word(size_t number) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(&heard_->mu);
    while (heard_->words.size() <= number && heard_->cv.WaitUntil(&heard_->mu, deadline)) {
    }
    if (number < heard_->words.size()) return heard_->words[number];
    return absl::DeadlineExceededError("no such word");
  }

 private:
  struct Heard {
    Mutex mu;
    CondVar cv;
    std::vector<absl::StatusOr<Signal>> words ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
};

class Service final : public v1::Summation::WithCallbackMethod_Converse<v1::Summation::Service> {
 public:
  grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* Converse(
      grpc::CallbackServerContext* context) override {
    const auto begin = [this](LinkRequest request, std::unique_ptr<Signals> rest) {
      MutexLock lock(&mu_);
      request_ = std::move(request);
      rest_ = std::move(rest);
      cv_.NotifyAll();
    };
    return AnswerCall(context, Incarnation(5), begin, patience_);
  }
  std::chrono::milliseconds patience_ = kFirstWordPatience;
  std::unique_ptr<Signals> Accepted() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(&mu_);
    while (rest_ == nullptr && cv_.WaitUntil(&mu_, deadline)) {
    }
    return std::move(rest_);
  }
  LinkRequest request_;

 private:
  Mutex mu_;
  CondVar cv_;
  std::unique_ptr<Signals> rest_ ABSL_GUARDED_BY(mu_);
};

class LinkSignalsTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = *RpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service_});
    node_ = caller_.Call(absl::StrFormat("127.0.0.1:%d", server_->port()),
                         [this](const v1::LinkChallenge& challenge, uint32_t shard) {
                           challenge_ = challenge;
                           v1::LinkAccess access;
                           access.set_job_id(7);
                           access.set_generation(2);
                           access.set_node_rank(4);
                           access.set_expires_unix_s(1000);
                           access.set_proof(absl::StrFormat("of shard %d", shard));
                           return access;
                         });
    node_->Listen(node_ear_.listen());
  }
  void Begin() {
    node_->Say({.ends = Offer(), .goodbye = std::nullopt});
    accepted_ = service_.Accepted();
    ASSERT_NE(accepted_, nullptr);
    accepted_->Listen(server_ear_.listen());
  }
  static Signal::Ends Offer() {
    rdma::PortAddress port{.device = "mlx5_0:1",
                           .fabric = rdma::Fabric::kRoceV2,
                           .gid = {1, 2, 3},
                           .lid = 4,
                           .mtu_bytes = 4096};
    return {.version = 1,
            .shard = 3,
            .lanes = {rdma::LaneAddress{port, 0xabcdef, 0x123456}, std::nullopt}};
  }

  Service service_;
  std::unique_ptr<RpcServer> server_;
  LinkCaller caller_;
  v1::LinkChallenge challenge_;  // that the node has answered
  Ear node_ear_, server_ear_;
  std::unique_ptr<Signals> node_, accepted_;
};

TEST_F(LinkSignalsTest, ASilentCallerIsDropped) {
  service_.patience_ = std::chrono::milliseconds(50);
  Ear ear;
  const auto silent = caller_.Call(absl::StrFormat("127.0.0.1:%d", server_->port()),
                                   [](const auto&, uint32_t) { return v1::LinkAccess(); });
  silent->Listen(ear.listen());
  EXPECT_TRUE(absl::IsCancelled(ear.Word(0).status())) << ear.Word(0).status();
}

TEST_F(LinkSignalsTest, TheFirstMessageHasIdentityProofAndEnds) {
  Begin();
  const auth::LinkTerms& terms = service_.request_.terms;
  EXPECT_EQ(terms.claim.job, JobId(7));
  EXPECT_EQ(terms.claim.generation, Generation(2));
  EXPECT_EQ(terms.claim.node, NodeId(4));
  EXPECT_EQ(terms.claim.expires_unix_s, 1000);
  EXPECT_EQ(terms.server, Incarnation(5));
  EXPECT_EQ(terms.shard, 3u);
  EXPECT_EQ(service_.request_.proof, "of shard 3");
  EXPECT_EQ(challenge_.nonce(), auth::TextOf(terms.server_nonce)) << "the number it has signed";
  EXPECT_EQ(challenge_.incarnation(), 5u);
  EXPECT_EQ(service_.request_.offer.shard, 3u);
  ASSERT_EQ(service_.request_.offer.lanes.size(), 2u);
  EXPECT_EQ(service_.request_.offer.lanes[0]->port, Offer().lanes[0]->port);
  EXPECT_EQ(service_.request_.offer.lanes[0]->queue_pair, 0xabcdefu);
  EXPECT_EQ(service_.request_.offer.lanes[0]->first_psn, 0x123456u);
  EXPECT_FALSE(service_.request_.offer.lanes[1].has_value());
  accepted_->Say({.ends = Offer(), .goodbye = std::nullopt});
  const auto answer = node_ear_.Word(0);
  ASSERT_TRUE(answer.ok() && answer->ends.has_value()) << answer.status();
  EXPECT_EQ(answer->ends->lanes.size(), 2u);
}

TEST_F(LinkSignalsTest, AGoodbyeArrivesWithItsCodesAlthoughTheConversationEndsAtOnce) {
  Begin();
  accepted_->Say({.ends = std::nullopt,
                  .goodbye = rdma::PathFailure(WithKind(absl::ResourceExhaustedError("no memory"),
                                                        FailureKind::kPermission))});
  accepted_.reset();
  const auto word = node_ear_.Word(0);
  ASSERT_TRUE(word.ok() && word->goodbye.has_value()) << word.status();
  EXPECT_EQ(word->goodbye->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(*word->goodbye), "no memory");
  EXPECT_EQ(ExitCodeOf(*word->goodbye), TraitsOf(FailureKind::kPermission).exit_status);
  EXPECT_TRUE(rdma::IsPathFailure(*word->goodbye));
  EXPECT_TRUE(rdma::IsSaidByPeer(*word->goodbye));
}

TEST_F(LinkSignalsTest, EachEndLearnsThatTheOtherHasGone) {
  Begin();
  node_.reset();
  EXPECT_FALSE(server_ear_.Word(0).ok());
  accepted_.reset();
}

TEST_F(LinkSignalsTest, AServerThatStopsIsNoticed) {
  Begin();
  accepted_.reset();
  server_.reset();
  EXPECT_FALSE(node_ear_.Word(0).ok());
}

TEST_F(LinkSignalsTest, AMissingServerIsTheReportedReason) {
  const uint16_t port = server_->port();
  node_.reset();
  server_.reset();
  const auto nobody = caller_.Call(absl::StrFormat("127.0.0.1:%d", port), {});
  nobody->Listen(server_ear_.listen());
  const auto word = server_ear_.Word(0);
  EXPECT_TRUE(absl::IsUnavailable(word.status())) << word.status();
}

TEST_F(LinkSignalsTest, AFirstMessageWithoutEndsIsRefused) {
  node_->Say({.ends = std::nullopt, .goodbye = absl::OkStatus()});
  const auto word = node_ear_.Word(0);
  ASSERT_TRUE(word.ok() && word->goodbye.has_value()) << word.status();
  EXPECT_TRUE(absl::IsInvalidArgument(*word->goodbye));
}

}  // namespace
}  // namespace addend
