#include "bench/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "lib/base/failure.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

ChildProcess Start(const std::string& script) {
  const std::string log = ::testing::TempDir() + "/child_process_test." + std::to_string(getpid());
  unlink(log.c_str());
  absl::StatusOr<ChildProcess> child = ChildProcess::Start({.name = "the child",
                                                            .words = {"/bin/sh", "-c", script},
                                                            .environment = {{"WORD", "plum"}},
                                                            .log = log});
  EXPECT_TRUE(child.ok());
  return *std::move(child);
}

int Await(ChildProcess* child) {
  std::optional<int> status;
  while (!(status = child->Poll())) usleep(1000);
  return *status;
}

TEST(ChildProcessTest, StatusAndLogAreReported) {
  ChildProcess child = Start("echo the $WORD is ripe >&2; exit 65");
  EXPECT_EQ(Await(&child), 65);
  EXPECT_EQ(KindOf(child.Failure()), FailureKind::kMismatch);
  EXPECT_THAT(Message(child.Failure()), HasSubstr("the plum is ripe"));
  EXPECT_THAT(Message(child.Failure()), HasSubstr("the child ended with status 65"));
}

TEST(ChildProcessTest, SignalIsATemporaryFailure) {
  ChildProcess child = Start("kill -9 $$");
  EXPECT_EQ(Await(&child), 128 + SIGKILL);
  EXPECT_EQ(KindOf(child.Failure()), FailureKind::kTemporary);
}

TEST(ChildProcessTest, DestructorKills) {
  const std::string pid_file = ::testing::TempDir() + "/child_process_test.pid";
  unlink(pid_file.c_str());
  {
    ChildProcess child = Start("echo $$ > " + pid_file + ".new; mv " + pid_file + ".new " +
                               pid_file + "; exec sleep 1000");
    while (access(pid_file.c_str(), F_OK) != 0) usleep(1000);
    EXPECT_FALSE(child.Poll().has_value());
  }
  FILE* const file = fopen(pid_file.c_str(), "r");
  int pid = 0;
  ASSERT_EQ(fscanf(file, "%d", &pid), 1);
  fclose(file);
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(ChildProcessTest, MissingProgramIsNamed) {
  absl::StatusOr<ChildProcess> child =
      ChildProcess::Start({.name = "nothing",
                           .words = {"/nonexistent/program"},
                           .environment = {},
                           .log = ::testing::TempDir() + "/child_process_test.missing"});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(Await(&*child), 127);
  EXPECT_THAT(Message(child->Failure()), HasSubstr("/nonexistent/program"));
}

}  // namespace
}  // namespace addend
