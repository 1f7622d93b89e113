#include "lib/member/report_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace addend::internal {
namespace {

Report Declare(uint32_t generation, const std::string& name, uint32_t number = 1) {
  v1::TensorDescriptor tensor;
  tensor.set_name(name);
  return report::Declare(Generation(generation), std::move(tensor), number);
}

int Tensors(const Report& report) { return std::get<v1::DeclareRequest>(report).tensors_size(); }

TEST(ReportQueueTest, GenerationsAreNotMixed) {
  ReportQueue queue;
  queue.Add(Declare(1, "a"));
  queue.Add(Declare(1, "b"));
  queue.Add(Declare(2, "a"));
  Report report;
  ASSERT_TRUE(queue.Take(&report));
  EXPECT_EQ(Tensors(report), 2);
  ASSERT_TRUE(queue.Take(&report));
  EXPECT_EQ(GenerationOf(report), 2u);
}

TEST(ReportQueueTest, DeclarationsKeepTheirNumbersInABatch) {
  ReportQueue queue;
  queue.Add(Declare(1, "a", 7));
  queue.Add(Declare(1, "b", 5));
  Report report;
  ASSERT_TRUE(queue.Take(&report));
  EXPECT_THAT(std::get<v1::DeclareRequest>(report).numbers(), testing::ElementsAre(7, 5));
}

TEST(ReportQueueTest, ABatchHasALimit) {
  ReportQueue queue;
  for (int i = 0; i < 2500; ++i) queue.Add(Declare(1, "t"));
  Report report;
  for (const int expected : {1000, 1000, 500}) {
    ASSERT_TRUE(queue.Take(&report));
    EXPECT_EQ(Tensors(report), expected);
  }
}

TEST(ReportQueueTest, IsEmptyOnlyWhenTheLastReportIsDone) {
  ReportQueue queue;
  const auto now = std::chrono::steady_clock::now();
  EXPECT_TRUE(queue.WaitUntilEmpty(now));
  queue.Add(Declare(1, "a"));
  EXPECT_FALSE(queue.WaitUntilEmpty(now));
  Report report;
  ASSERT_TRUE(queue.Take(&report));
  EXPECT_FALSE(queue.WaitUntilEmpty(now));
  queue.Done();
  EXPECT_TRUE(queue.WaitUntilEmpty(now));
}

TEST(ReportQueueTest, CloseEndsTake) {
  ReportQueue queue;
  queue.Add(Declare(1, "a"));
  queue.Close();
  Report report;
  EXPECT_FALSE(queue.Take(&report));
  EXPECT_FALSE(queue.WaitUntilEmpty(std::chrono::steady_clock::now() + std::chrono::hours(1)));
}

}  // namespace
}  // namespace addend::internal
