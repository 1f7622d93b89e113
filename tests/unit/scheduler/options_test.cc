// The flags of addend-scheduler.
#include "services/scheduler/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/flags/reflection.h"
#include "absl/strings/str_format.h"
#include "lib/auth/job_proof.h"

namespace addend {
namespace {

using testing::HasSubstr;

class SchedulerOptionsTest : public testing::Test {
 protected:
  static void Set(const std::string& flag, const std::string& value) {
    std::string error;
    ASSERT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << flag << error;
  }
  static SchedulerOptions Read() {
    const auto options = ReadSchedulerOptions();
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : SchedulerOptions();
  }
  static std::string Refusal() { return std::string(ReadSchedulerOptions().status().message()); }

  const absl::FlagSaver saver_;
};

TEST_F(SchedulerOptionsTest, FlagsReachTheirOptions) {
  EXPECT_EQ(Read().listen.port, 7070);
  EXPECT_EQ(Read().http.port, 7080);
  EXPECT_EQ(Read().health_listen->port, 7081);
  EXPECT_TRUE(Read().react_to_stragglers);
  EXPECT_EQ(Read().servers_digest, "");
  Set("listen", "127.0.0.1:1");
  Set("http", "127.0.0.1:2");
  Set("health_listen", "off");
  Set("store", "memory");
  Set("lease", "7s");
  Set("react_to_stragglers", "false");
  Set("token_lifetime", "2h");
  Set("port_file", "ports");
  const SchedulerOptions options = Read();
  EXPECT_EQ(options.listen.port, 1);
  EXPECT_EQ(options.http.port, 2);
  EXPECT_FALSE(options.health_listen.has_value());
  EXPECT_EQ(options.store, "memory");
  EXPECT_EQ(options.lease, absl::Seconds(7));
  EXPECT_FALSE(options.react_to_stragglers);
  EXPECT_EQ(options.token_lifetime, absl::Hours(2));
  EXPECT_EQ(options.port_file, "ports");
}

TEST_F(SchedulerOptionsTest, DurationsHaveTheirRange) {
  for (const char* good : {"100ms", "1h"}) {
    Set("lease", good);
    EXPECT_EQ(Refusal(), "") << good;
  }
  Set("lease", "99ms");
  EXPECT_EQ(Refusal(), "--lease=99ms must be between 100ms and 1h");
  Set("lease", "1h1ms");
  EXPECT_THAT(Refusal(), HasSubstr("must be between 100ms and 1h"));
  Set("lease", "5s");
  for (const char* good : {"1s", "24h"}) {
    Set("token_lifetime", good);
    EXPECT_EQ(Refusal(), "") << good;
  }
  Set("token_lifetime", "999ms");
  EXPECT_EQ(Refusal(), "--token-lifetime=999ms must be between 1s and 24h");
  Set("token_lifetime", "24h1ms");
  EXPECT_THAT(Refusal(), HasSubstr("must be between 1s and 24h"));
}

TEST_F(SchedulerOptionsTest, SecretOfTheServersIsKeptAsTheDigestOfItsProof) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / absl::StrFormat("addend-secret-%d", ::getpid());
  const std::string secret(32, 's');
  std::ofstream(file) << secret;
  Set("server_secret_file", file.string());
  EXPECT_EQ(Read().servers_digest, auth::DigestOf(auth::JoinProof(secret, auth::kOfServers)));
  std::filesystem::remove(file);
  EXPECT_THAT(Refusal(), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace addend
