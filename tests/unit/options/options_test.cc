#include "lib/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"

ABSL_FLAG(std::string, data_listen, "default", "Where to listen.");
ABSL_FLAG(bool, colocated, true, "A switch.");
ABSL_FLAG(uint32_t, shards, 1, "A number.");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(5), "A duration.");
ABSL_FLAG(addend::ByteSize, memory_limit, addend::ByteSize{}, "A size.");

namespace addend {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Program kProgram{"addend-test", "Tests."};

class OptionsTest : public ::testing::Test {
 protected:
  ~OptionsTest() override {
    for (const std::string& name : variables_) ::unsetenv(name.c_str());
  }

  void SetVariable(const std::string& name, const std::string& value) {
    variables_.push_back(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  std::vector<char*> Argv(std::vector<std::string>* arguments) {
    arguments->insert(arguments->begin(), "program");
    std::vector<char*> argv;
    for (std::string& argument : *arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    return argv;
  }

  absl::StatusOr<Parsed> Parse(std::vector<std::string> arguments,
                               std::vector<std::string>* positional = nullptr) {
    auto argv = Argv(&arguments);
    return ParseOptions(kProgram, static_cast<int>(argv.size()) - 1, argv.data(), positional);
  }

  std::string Refusal(std::vector<std::string> arguments) {
    const auto parsed = Parse(std::move(arguments));
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status()));
    EXPECT_EQ(KindOf(parsed.status()), FailureKind::kInvalid);
    return Message(parsed.status());
  }

 private:
  absl::FlagSaver saver_;
  std::vector<std::string> variables_;
};

TEST_F(OptionsTest, DashAndUnderscoreAreTheSame) {
  ASSERT_TRUE(Parse({"--data-listen=a"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_data_listen), "a");
  ASSERT_TRUE(Parse({"--data_listen", "b"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_data_listen), "b");
  ASSERT_TRUE(Parse({"--data-listen="}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_data_listen), "");
}

TEST_F(OptionsTest, BooleansHaveThreeForms) {
  ASSERT_TRUE(Parse({"--nocolocated"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_colocated));
  ASSERT_TRUE(Parse({"--colocated"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_colocated));
  ASSERT_TRUE(Parse({"--colocated=false"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_colocated));
}

TEST_F(OptionsTest, ADurationWithoutUnitIsInSeconds) {
  ASSERT_TRUE(Parse({"--lease=1.5"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_lease), absl::Milliseconds(1500));
  ASSERT_TRUE(Parse({"--lease=2m"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_lease), absl::Minutes(2));
}

TEST_F(OptionsTest, TheCommandLineWinsOverTheEnvironment) {
  SetVariable("ADDEND_SHARDS", "3");
  SetVariable("ADDEND_DATA_LISTEN", "env");
  ASSERT_TRUE(Parse({"--shards=4", "--shards=5"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_shards), 5u);
  EXPECT_EQ(absl::GetFlag(FLAGS_data_listen), "env");
  EXPECT_EQ(absl::GetFlag(FLAGS_lease), absl::Seconds(5));
}

TEST_F(OptionsTest, AnEmptyVariableIsNotSet) {
  SetVariable("ADDEND_SHARDS", "");
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_shards), 1u);
}

TEST_F(OptionsTest, UnknownFlagsAreRefusedWithASuggestion) {
  EXPECT_EQ(Refusal({"--data-lisen=x"}),
            "--data-lisen on the command line is not a flag of addend-test: did you mean "
            "--data-listen?");
  EXPECT_THAT(Refusal({"--something-else"}), HasSubstr("addend-test --help lists the flags"));
  EXPECT_THAT(Refusal({"-shards=2"}), HasSubstr("-shards=2 on the command line"));
  EXPECT_THAT(Refusal({"--noshards"}), HasSubstr("not a flag"));
}

TEST_F(OptionsTest, BadValuesNameFlagOriginValueAndExpectation) {
  EXPECT_EQ(Refusal({"--shards=many"}),
            "--shards=many on the command line is not valid: expected a whole number from 0 to "
            "4294967295");
  EXPECT_THAT(Refusal({"--shards=-1"}), HasSubstr("--shards=-1"));
  EXPECT_THAT(Refusal({"--lease", "long"}), AllOf(HasSubstr("--lease long"), HasSubstr("60s")));
  EXPECT_THAT(Refusal({"--colocated=perhaps"}), HasSubstr("expected true or false"));
  EXPECT_EQ(Refusal({"--memory-limit=8Gigs"}),
            "--memory-limit=8Gigs on the command line is not valid: '8Gigs' is not a size such as "
            "4096, 128KiB or 8GiB");
  SetVariable("ADDEND_LEASE", "soon");
  EXPECT_THAT(Refusal({}), HasSubstr("ADDEND_LEASE=soon in the environment is not valid"));
}

TEST_F(OptionsTest, AMissingValueIsRefused) {
  EXPECT_THAT(Refusal({"--shards"}), HasSubstr("write --shards=VALUE"));
}

TEST_F(OptionsTest, PositionalArgumentsNeedAPlace) {
  EXPECT_THAT(Refusal({"file"}), HasSubstr("'file' on the command line is not expected"));
  std::vector<std::string> positional;
  ASSERT_TRUE(Parse({"plan", "--shards=2", "--", "--shards"}, &positional).ok());
  EXPECT_THAT(positional, ElementsAre("plan", "--shards"));
}

TEST_F(OptionsTest, MisspeltVariablesCauseAWarning) {
  SetVariable("ADDEND_MEMORY_LIMITT", "1GB");
  SetVariable("ADDEND_SERVICE_HOST", "10.0.0.1");  // Kubernetes' own
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "addend-test: warning: ADDEND_MEMORY_LIMITT in the environment has no effect; did you "
            "mean ADDEND_MEMORY_LIMIT?\n");
}

TEST_F(OptionsTest, HelpShowsOnlyTheProgramsFlagsEvenWithUnknownFlags) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(*Parse({"--help", "--nonsense"}), Parsed::kExit);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("--data-listen=default\n      Where to listen."));
  EXPECT_THAT(text, Not(HasSubstr("flagfile")));
}

TEST_F(OptionsTest, PrintConfigNamesTheOrigins) {
  SetVariable("ADDEND_SHARDS", "3");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(*Parse({"--print-config", "--lease=7s"}), Parsed::kExit);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("shards=3  # environment ADDEND_SHARDS\n"));
  EXPECT_THAT(text, HasSubstr("lease=7s  # command line\n"));
  EXPECT_THAT(text, HasSubstr("colocated=true  # default\n"));
}

TEST_F(OptionsTest, AProgramEndsWithItsStatus) {
  std::vector<std::string> arguments = {"--shards=2"};
  auto argv = Argv(&arguments);
  const auto run = [&](absl::Status status) {
    return RunProgram(kProgram, 2, argv.data(), [&] { return status; });
  };
  EXPECT_EQ(run(absl::OkStatus()), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(MakeFailure(FailureKind::kUnreachable, "Nobody is there.")), 76);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "addend-test: Nobody is there.\n");
}

TEST_F(OptionsTest, AProgramWithBadOptionsDoesNotRun) {
  std::vector<std::string> arguments = {"--shards=x"};
  auto argv = Argv(&arguments);
  bool ran = false;
  EXPECT_EQ(RunProgram(kProgram, 2, argv.data(),
                       [&] {
                         ran = true;
                         return absl::OkStatus();
                       }),
            64);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace addend
