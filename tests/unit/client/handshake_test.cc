// When the lines about the start of a job are printed: by a clock of the test.
#include "lib/client/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace addend::client {
namespace {

int64_t now_ms = 0;
int64_t TestNowMs() { return now_ms; }

class ProgressPrinterTest : public ::testing::Test {
 protected:
  ProgressPrinterTest() { now_ms = 1000; }

  static std::string Printed(const std::function<void()>& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }

  ProgressPrinter start_{ProgressPrinter::When::kStart, &TestNowMs};
  ProgressPrinter running_{ProgressPrinter::When::kRunning, &TestNowMs};
};

TEST_F(ProgressPrinterTest, TheLastTextOfTheFirstTwoSecondsIsPrintedAtTheirEnd) {
  EXPECT_EQ(start_.HeldBackForMs(), -1);
  EXPECT_EQ(Printed([&] {
              start_.Print("waiting for node 0 of job blue");
              now_ms += 1500;
              start_.Print("waiting for node 1 of job blue");
            }),
            "");
  EXPECT_EQ(start_.HeldBackForMs(), 500);
  now_ms += 600;
  EXPECT_EQ(start_.HeldBackForMs(), 0);
  EXPECT_EQ(Printed([&] { start_.Release(); }), "addend: waiting for node 1 of job blue, 2 s\n");
  EXPECT_EQ(start_.HeldBackForMs(), -1);
}

TEST_F(ProgressPrinterTest, LaterAChangeIsPrintedAtOnceAndTheSameTextAfterTenSeconds) {
  Printed([&] { start_.Print("waiting for node 1"); });
  now_ms += 2000;
  EXPECT_EQ(Printed([&] { start_.Release(); }), "addend: waiting for node 1, 2 s\n");
  now_ms += 500;
  EXPECT_EQ(Printed([&] { start_.Print("waiting for node 1"); }), "");
  EXPECT_EQ(Printed([&] { start_.Print("waiting for node 2"); }),
            "addend: waiting for node 2, 2 s\n");
  now_ms += 10000;
  EXPECT_EQ(Printed([&] { start_.Print("waiting for node 2"); }),
            "addend: waiting for node 2, 12 s\n");
}

TEST_F(ProgressPrinterTest, WhileTheJobRunsNothingIsHeldBackAndNoTimeIsSaid) {
  EXPECT_EQ(Printed([&] { running_.Print("rank 1 has not pushed it"); }),
            "addend: rank 1 has not pushed it\n");
  EXPECT_EQ(Printed([&] { running_.Print("rank 1 has not pushed it"); }), "");
  EXPECT_EQ(running_.HeldBackForMs(), -1);
}

}  // namespace
}  // namespace addend::client
