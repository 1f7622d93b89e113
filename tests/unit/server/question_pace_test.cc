// However often a process is asked, its shards are asked at a bounded rate.
#include "lib/server/question_pace.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(QuestionPaceTest, AfterABurstTheRateIsLimited) {
  QuestionPace pace;
  const QuestionPace::Time begin{std::chrono::hours(1)};
  int answered = 0;
  for (int i = 0; i < 1000; ++i) answered += pace.Next(begin).ok();
  EXPECT_EQ(answered, kQuestionsAtOnce);
  answered = 0;
  for (int ms = 1; ms <= 1000; ++ms) {
    answered += pace.Next(begin + std::chrono::milliseconds(ms)).ok();
  }
  EXPECT_NEAR(answered, kQuestionsPerSecond, 1);
}

TEST(QuestionPaceTest, TooFrequentQuestionsAreRefused) {
  QuestionPace pace;
  const QuestionPace::Time begin{std::chrono::hours(1)};
  grpc::Status status;
  while (status.ok()) status = pace.Next(begin);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("ask again"), std::string::npos);
}

}  // namespace
}  // namespace addend
