// The flags of addend-agent.
#include "services/worker_agent/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/flags/reflection.h"
#include "absl/strings/str_format.h"
#include "lib/base/limits.h"
#include "lib/wire/frame.h"

namespace addend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class AgentOptionsTest : public ::testing::Test {
 protected:
  AgentOptionsTest() {
    Set("job", "j");
    Set("advertise", "10.0.0.1");
    Set("bandwidth", "10Gbps");
  }
  static void Set(const std::string& flag, const std::string& value) {
    std::string error;
    ASSERT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << flag << error;
  }
  static AgentOptions Read() {
    const auto options = ReadAgentOptions();
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : AgentOptions();
  }
  static std::string Refusal() { return std::string(ReadAgentOptions().status().message()); }
  // The least and the largest value of a number are taken, their neighbours refused.
  static void ExpectRange(const std::string& flag, uint64_t least, uint64_t most) {
    const std::string former = absl::FindCommandLineFlag(flag)->CurrentValue();
    for (const uint64_t value : {least, most}) {
      Set(flag, absl::StrFormat("%d", value));
      EXPECT_THAT(Refusal(), Not(HasSubstr(" must be from ")));
    }
    for (const uint64_t value : {least - 1, most + 1}) {
      Set(flag, absl::StrFormat("%d", value));
      std::string name = flag;
      std::replace(name.begin(), name.end(), '_', '-');
      EXPECT_EQ(Refusal(),
                absl::StrFormat("--%s=%d must be from %d to %d", name, value, least, most));
    }
    Set(flag, former);
  }

  const absl::FlagSaver saver_;
};

TEST_F(AgentOptionsTest, JobIsRequiredAndTheRestHasDefaults) {
  const AgentOptions options = Read();
  EXPECT_EQ(options.job, "j");
  EXPECT_EQ(options.node_rank, 0u);
  EXPECT_EQ(options.num_nodes, 1u);
  EXPECT_EQ(options.local_size, 1u);
  EXPECT_EQ(options.door.socket_mode, 0600u);
  EXPECT_EQ(options.listen.grpc.port, 7270);
  EXPECT_EQ(options.listen.data.port, 7271);
  EXPECT_EQ(options.listen.http.port, 7280);
  EXPECT_EQ(options.door.health->port, 7281);
  EXPECT_TRUE(options.colocated_summation);
  EXPECT_EQ(options.shards, 1u);
  EXPECT_EQ(options.partition_bytes, 0u);
  EXPECT_EQ(options.audit_one_in, 1000u);
  EXPECT_EQ(options.stall_timeout, absl::Seconds(300));
  EXPECT_TRUE(options.deterministic_intranode);
  EXPECT_FALSE(options.gpudirect);
  EXPECT_FALSE(options.encrypt_data);
  EXPECT_FALSE(options.intranode.has_value());
  EXPECT_FALSE(options.topology.has_value());
  EXPECT_EQ(options.join_proof, "");
  Set("job", "");
  EXPECT_THAT(Refusal(), HasSubstr("--job is missing"));
}

TEST_F(AgentOptionsTest, FlagsReachTheirOptions) {
  Set("num_nodes", "4");
  Set("node_rank", "3");
  Set("local_size", "8");
  Set("socket", "/tmp/socket");
  Set("socket_mode", "0660");
  Set("listen", "127.0.0.1:1");
  Set("data_listen", "127.0.0.1:2");
  Set("http", "127.0.0.1:3");
  Set("health_listen", "off");
  Set("colocated_summation", "false");
  Set("shards", "2");
  Set("memory_limit", "1KiB");
  Set("partition_bytes", "4KiB");
  Set("on_node_loss", "shrink");
  Set("audit_one_in", "0");
  Set("stall_timeout", "1s");
  Set("port_file", "ports");
  Set("intranode", "reduce-scatter");
  Set("deterministic_intranode", "false");
  Set("gpudirect", "true");
  const AgentOptions options = Read();
  EXPECT_EQ(options.num_nodes, 4u);
  EXPECT_EQ(options.node_rank, 3u);
  EXPECT_EQ(options.local_size, 8u);
  EXPECT_EQ(options.door.socket, "/tmp/socket");
  EXPECT_EQ(options.door.socket_mode, 0660u);
  EXPECT_EQ(options.listen.grpc.port, 1);
  EXPECT_EQ(options.listen.data.port, 2);
  EXPECT_EQ(options.listen.http.port, 3);
  EXPECT_FALSE(options.door.health.has_value());
  EXPECT_FALSE(options.colocated_summation);
  EXPECT_EQ(options.shards, 2u);
  EXPECT_EQ(options.memory_limit_bytes, 1024u);
  EXPECT_EQ(options.partition_bytes, 4096u);
  EXPECT_EQ(options.on_node_loss, "shrink");
  EXPECT_EQ(options.reduction_order, "node");
  EXPECT_EQ(options.audit_one_in, 0u);
  EXPECT_EQ(options.stall_timeout, absl::Seconds(1));
  EXPECT_EQ(options.port_file, "ports");
  EXPECT_TRUE(options.intranode.has_value());
  EXPECT_FALSE(options.deterministic_intranode);
  EXPECT_TRUE(options.gpudirect);
  EXPECT_EQ(options.machine.advertise, "10.0.0.1");
  EXPECT_EQ(options.machine.bandwidth_bps, 10e9);
}

TEST_F(AgentOptionsTest, RankBaseIsAddedAndMayBeAProduct) {
  Set("num_nodes", "64");
  Set("node_rank", "5");
  for (const auto& [base, rank] :
       {std::pair{"8", 13u}, {"3*8", 29u}, {"2*2*2", 13u}, {"0*9", 5u}}) {
    Set("node_rank_base", base);
    EXPECT_EQ(Read().node_rank, rank) << base;
  }
}

TEST_F(AgentOptionsTest, RankBaseThatIsNoNumberOrTooLargeIsRefused) {
  for (const char* base : {"", "3*", "a", "-1", "65537", "256*257", "65536*65536*65536"}) {
    Set("node_rank_base", base);
    EXPECT_THAT(Refusal(), HasSubstr("or a product such as 3*8, from 0 to 65536")) << base;
  }
  Set("node_rank_base", "256*256");
  EXPECT_THAT(Refusal(), HasSubstr("is node 65536, but must be from 0 to 0")) << "a number";
}

TEST_F(AgentOptionsTest, NodeIsOneOfTheJob) {
  Set("num_nodes", "4");
  Set("node_rank", "4");
  EXPECT_EQ(Refusal(),
            "--node-rank=4 with --node-rank-base=0 is node 4, but must be from 0 to 3 "
            "(--num-nodes=4)");
  Set("node_rank", "65537");
  for (const char* rank : {"65537", "-1", "second", ""}) {
    Set("node_rank", rank);
    EXPECT_THAT(Refusal(), HasSubstr("must be a number from 0 to 65536, or trainers")) << rank;
  }
}

TEST_F(AgentOptionsTest, NodeMayBeThatOfTheTrainers) {
  Set("node_rank", "trainers");
  EXPECT_EQ(Read().node_rank, std::nullopt);
  Set("node_rank_base", "3*8");
  EXPECT_THAT(Refusal(), HasSubstr("--node-rank-base=3*8 has nothing to be added to"));
}

TEST_F(AgentOptionsTest, NumbersHaveTheirRange) {
  Set("node_rank", "0");
  ExpectRange("num_nodes", 1, kMaxNodes);
  ExpectRange("local_size", 1, kMaxLocalSize);
  ExpectRange("shards", 1, 256);
  ExpectRange("partition_bytes", kMinPartitionBytes, kMaxPayloadBytes);
}

TEST_F(AgentOptionsTest, UnknownChoicesAreRefusedWithTheKnown) {
  const auto refusal_of = [](const std::string& flag, const std::string& value) {
    const absl::FlagSaver saver;
    Set(flag, value);
    return Refusal();
  };
  EXPECT_EQ(refusal_of("on_node_loss", "panic"),
            "--on-node-loss=panic is unknown: use fail or shrink");
  EXPECT_EQ(refusal_of("reduction_order", "tree"), "--reduction-order=tree is unknown: use node");
  EXPECT_THAT(refusal_of("reduction_order", "arrival"), HasSubstr("not supported by this version"));
  EXPECT_EQ(refusal_of("socket_mode", "0666"), "--socket-mode=0666 is unknown: use 0600 or 0660");
  EXPECT_THAT(refusal_of("intranode", "ring"), HasSubstr("--intranode: "));
  EXPECT_THAT(refusal_of("topology", "/no/such/file"), HasSubstr("--topology: "));
}

TEST_F(AgentOptionsTest, StallTimeoutIsFiniteAndAtLeastASecond) {
  for (const char* timeout : {"999ms", "inf", "-1s"}) {
    Set("stall_timeout", timeout);
    EXPECT_THAT(Refusal(), HasSubstr("--stall-timeout must be finite")) << timeout;
  }
}

TEST_F(AgentOptionsTest, EncryptionIsForTcpAlone) {
  Set("encrypt_data", "true");
  EXPECT_TRUE(Read().encrypt_data);
  EXPECT_EQ(Read().machine.transport.mode, TransportMode::kTcp);
  Set("transport", "rdma");
  EXPECT_THAT(Refusal(), HasSubstr("--encrypt-data and --transport=rdma exclude each other"));
  Set("encrypt_data", "false");
  EXPECT_EQ(Read().machine.transport.mode, TransportMode::kRdma);
}

TEST_F(AgentOptionsTest, SecretOfTheJobIsProvedAndNotKept) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / absl::StrFormat("addend-secret-%d", ::getpid());
  std::ofstream(file) << std::string(32, 's');
  Set("job_secret_file", file.string());
  const std::string proof = Read().join_proof;
  EXPECT_FALSE(proof.empty());
  EXPECT_THAT(proof, Not(HasSubstr("ssss")));
  Set("job", "another");
  EXPECT_NE(Read().join_proof, proof) << "it proves nothing to another job";
  std::filesystem::remove(file);
  EXPECT_THAT(Refusal(), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace addend
