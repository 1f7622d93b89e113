// Admission, members' keys, and the tokens that nodes get.
#include <gmock/gmock.h>

#include "lib/auth/job_proof.h"
#include "lib/auth/token.h"
#include "tests/unit/scheduler/cluster_fixture.h"

namespace addend {
namespace {

using testing::HasSubstr;

class TrustTest : public ClusterTest {
 protected:
  // As a server makes it.
  static auth::Secret TokenOf(const FakeNode& node, int64_t expires) {
    return auth::TokenSecret(auth::BytesOf(std::string(32, 't')),
                             {.job = JobId(node.job_id),
                              .generation = Generation(node.generation),
                              .node = NodeId(node.info.node_rank()),
                              .expires_unix_s = expires});
  }
  // The last that the node was given.
  static const v1::NodeToken& LastToken(const FakeNode& node) {
    const v1::NodeToken* last = &v1::NodeToken::default_instance();
    for (const v1::NodeUpdate& update : node.updates) {
      if (update.has_token()) last = &update.token();
    }
    return *last;
  }
  absl::Status TryNode(const std::string& job, uint32_t rank, const std::string& secret) {
    v1::RegisterNodeRequest request = NodeRequest(job, rank, 2);
    if (!secret.empty()) request.set_join_proof(auth::JoinProof(secret, auth::OfJob(job)));
    return RegisterOnce(request);
  }
  absl::Status RegisterOnce(const v1::RegisterNodeRequest& request) {
    auto [response, decision] = membership_->RegisterNode(now_, request);
    Apply(std::move(decision));
    return response.status();
  }
  absl::Status TryColocated(const std::string& job, uint32_t rank, const std::string& secret) {
    return TryServer(job, rank, secret.empty() ? "" : auth::JoinProof(secret, auth::OfJob(job)));
  }
  absl::Status TryServer(const std::string& job, uint32_t rank, const std::string& proof) {
    return RegisterOnce(ServerRequest(job, rank, proof));
  }
  v1::RegisterServerRequest ServerRequest(const std::string& job, uint32_t rank,
                                          const std::string& proof) {
    v1::RegisterServerRequest request;
    request.set_protocol_version(1);
    request.set_member_key(kKey);
    request.set_incarnation(next_++);
    request.set_shards(1);
    request.set_hostname("somewhere");
    request.set_colocated_job(job);
    request.set_colocated_node(rank);
    request.add_endpoints()->set_port(7073);
    request.set_join_proof(proof);
    return request;
  }
  absl::Status RegisterOnce(const v1::RegisterServerRequest& request) {
    auto [response, decision] = membership_->RegisterServer(now_, request);
    Apply(std::move(decision));
    return response.status();
  }
};

TEST_F(TrustTest, FirstUpdateOfANodeBringsItsToken) {
  const auto nodes = AddJob("a", 2);
  for (const FakeNode* node : nodes) {
    ASSERT_TRUE(node->updates.front().has_token());
    const v1::NodeToken& token = node->updates.front().token();
    EXPECT_EQ(token.expires_unix_s(), absl::ToUnixSeconds(now_ + absl::Hours(1)));
    EXPECT_EQ(token.secret(), auth::TextOf(TokenOf(*node, token.expires_unix_s())));
  }
  EXPECT_NE(LastToken(*nodes[0]).secret(), LastToken(*nodes[1]).secret());
}

TEST_F(TrustTest, TokenIsRenewedLongBeforeItExpires) {
  const auto nodes = AddJob("a", 1);
  const int64_t first = LastToken(*nodes[0]).expires_unix_s();
  Pass(absl::Minutes(29));
  EXPECT_EQ(LastToken(*nodes[0]).expires_unix_s(), first);
  Pass(absl::Minutes(2));
  const v1::NodeToken& second = LastToken(*nodes[0]);
  EXPECT_GT(second.expires_unix_s(), first);
  EXPECT_EQ(second.secret(), auth::TextOf(TokenOf(*nodes[0], second.expires_unix_s())));
}

TEST_F(TrustTest, FirstUpdateOfAGenerationBringsItsToken) {
  const auto nodes = AddJob("a", 1);
  Idle(*nodes[0]);
  ASSERT_EQ(nodes[0]->generation, 2u);
  for (const v1::NodeUpdate& update : nodes[0]->updates) {
    if (update.generation() != 2) continue;
    ASSERT_TRUE(update.has_token());
    EXPECT_EQ(update.token().secret(),
              auth::TextOf(TokenOf(*nodes[0], update.token().expires_unix_s())));
    break;
  }
}

TEST_F(TrustTest, JobWithASecretRefusesMembersWithoutIt) {
  ASSERT_TRUE(TryNode("a", 0, "sixteen bytes or more").ok());
  const absl::Status without = TryNode("a", 1, "");
  EXPECT_EQ(without.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(without.message()), HasSubstr("brings no secret"));
  const absl::Status wrong = TryNode("a", 1, "some other sixteen bytes");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("another secret"));
  EXPECT_EQ(TryColocated("a", 1, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(TryColocated("a", 1, "sixteen bytes or more").ok());
  EXPECT_TRUE(TryNode("a", 1, "sixteen bytes or more").ok());
}

TEST_F(TrustTest, SecretOfAJobOpensNoOtherJob) {
  ASSERT_TRUE(TryNode("a", 0, "sixteen bytes or more").ok());
  v1::RegisterNodeRequest request = NodeRequest("a", 1, 2);
  request.set_join_proof(auth::JoinProof("sixteen bytes or more", auth::OfJob("b")));
  EXPECT_EQ(RegisterOnce(request).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TrustTest, JobWithoutASecretRefusesMembersWithASecret) {
  ASSERT_TRUE(TryNode("a", 0, "").ok());
  EXPECT_EQ(TryNode("a", 1, "sixteen bytes or more").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TrustTest, SecretOfAJobSurvivesARestart) {
  ASSERT_TRUE(TryNode("a", 0, "sixteen bytes or more").ok());
  Restart();
  EXPECT_EQ(TryNode("a", 1, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(TryNode("a", 1, "sixteen bytes or more").ok());
}

TEST_F(TrustTest, ProofIsNotStored) {
  ASSERT_TRUE(TryNode("a", 0, "sixteen bytes or more").ok());
  ASSERT_TRUE(TryColocated("a", 0, "sixteen bytes or more").ok());
  const std::string proof = auth::JoinProof("sixteen bytes or more", auth::OfJob("a"));
  const auto stored = store_.Load();
  ASSERT_TRUE(stored.ok());
  for (const auto& [key, value] : *stored) {
    EXPECT_EQ(value.find(proof), std::string::npos) << key;
  }
}

// It could be anybody's: the job did not exist that it says it is of.
TEST_F(TrustTest, EarlyColocatedServerWithoutTheSecretGetsNothing) {
  ASSERT_TRUE(TryColocated("a", 0, "").ok());
  ASSERT_TRUE(TryNode("a", 1, "sixteen bytes or more").ok());
  v1::RegisterNodeRequest request = NodeRequest("a", 0, 2);
  request.set_colocated_server_id(1);
  request.set_join_proof(auth::JoinProof("sixteen bytes or more", auth::OfJob("a")));
  ASSERT_TRUE(RegisterOnce(request).ok());
  const auto status = membership_->GetStatus(now_, {});
  EXPECT_THAT(status.jobs(0).reason(), HasSubstr("registered"));
  EXPECT_EQ(status.jobs(0).state(), v1::FORMING);
}

TEST_F(TrustTest, CpuServersNeedTheServersSecret) {
  servers_digest_ = auth::DigestOf(auth::JoinProof("sixteen bytes or more", auth::kOfServers));
  Start();
  const absl::Status without = TryServer("", 0, "");
  EXPECT_EQ(without.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(without.message()), HasSubstr("--server-secret-file"));
  EXPECT_FALSE(TryServer("", 0, auth::JoinProof("another secret file", auth::kOfServers)).ok());
  EXPECT_TRUE(TryServer("", 0, auth::JoinProof("sixteen bytes or more", auth::kOfServers)).ok());
}

TEST_F(TrustTest, DrainNeedsTheServersOwnKeyOrTheServersSecret) {
  const std::string proof = auth::JoinProof("sixteen bytes or more", auth::kOfServers);
  servers_digest_ = auth::DigestOf(proof);
  Start();
  v1::RegisterServerRequest server = ServerRequest("", 0, proof);
  ASSERT_TRUE(RegisterOnce(server).ok());
  const auto drain = [&](const std::string& key, const std::string& with) {
    v1::DrainRequest request;
    request.set_server_id(membership_->GetStatus(now_, {}).servers(0).server_id());
    request.set_member_key(key);
    request.set_join_proof(with);
    return membership_->Drain(now_, request).answer;
  };
  EXPECT_EQ(drain("", "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(drain("another key", auth::JoinProof("another secret file", auth::kOfServers)).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(drain(server.member_key(), "").ok());
  EXPECT_TRUE(drain("", proof).ok());
}

// The status shows everybody's incarnation.
TEST_F(TrustTest, ServerCannotMoveToAnotherNode) {
  v1::RegisterServerRequest server = ServerRequest("", 0, "");
  ASSERT_TRUE(RegisterOnce(server).ok());
  EXPECT_TRUE(RegisterOnce(server).ok());  // its scheduler was away
  server.set_colocated_job("j");
  server.set_colocated_node(1);
  const absl::Status moved = RegisterOnce(server);
  EXPECT_EQ(moved.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(moved.message(), HasSubstr("beside another node than before"));
}

TEST_F(TrustTest, CallsNeedTheMembersKey) {
  v1::RegisterNodeRequest request = NodeRequest("a", 0, 1);
  request.set_member_key("known to this node alone: 32 by.");
  ASSERT_TRUE(RegisterOnce(request).ok());
  v1::HeartbeatRequest beat;
  beat.mutable_member()->set_job_id(1);
  beat.mutable_member()->set_incarnation(request.incarnation());
  EXPECT_EQ(membership_->Heartbeat(now_, beat).answer.code(), absl::StatusCode::kNotFound);
  v1::WatchRequest watch;
  *watch.mutable_member() = beat.member();
  EXPECT_EQ(membership_->WatchNode(now_, watch, 9).answer.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(membership_->Leave(now_, beat.member()).answer.code(), absl::StatusCode::kNotFound);
  beat.mutable_member()->set_key("known to this node alone: 32 by.");
  EXPECT_TRUE(membership_->Heartbeat(now_, beat).answer.ok());
  request.set_member_key("somebody else's key of 32 bytes.");
  EXPECT_EQ(RegisterOnce(request).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TrustTest, ColocatedServerOfANodeOutsideTheJobIsRefused) {
  ASSERT_TRUE(TryNode("a", 0, "").ok());
  EXPECT_TRUE(TryColocated("a", 1, "").ok());
  const absl::Status beyond = TryColocated("a", 2, "");
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("node 2 of job 'a', which has 2 nodes"));
}

TEST_F(TrustTest, ColocatedServersThatDoNotFitTheirJobGiveWayWhenItBegins) {
  ASSERT_TRUE(TryColocated("a", 0, "sixteen bytes or more").ok());
  ASSERT_TRUE(TryColocated("a", 0, "some other sixteen bytes").ok());
  ASSERT_TRUE(TryColocated("a", 7, "sixteen bytes or more").ok());
  ASSERT_TRUE(TryColocated("b", 7, "").ok());
  ASSERT_TRUE(TryNode("a", 1, "sixteen bytes or more").ok());
  const v1::GetStatusResponse status = Status();
  ASSERT_EQ(status.servers_size(), 2);
  EXPECT_EQ(status.servers(0).server_id(), 1u);
  EXPECT_EQ(status.servers(1).job(), "b");
}

TEST_F(TrustTest, EmptyJobMayReturnWithMoreNodes) {
  Kill(AddJob("a", 1)[0]);
  Pass(absl::Seconds(11));
  ASSERT_EQ(Status().jobs_size(), 1);
  EXPECT_TRUE(TryColocated("a", 1, "").ok());
  EXPECT_TRUE(TryNode("a", 1, "").ok());
}

}  // namespace
}  // namespace addend
