#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lib/trace/clock.h"
#include "lib/trace/duration_histogram.h"
#include "lib/trace/ring.h"

namespace addend {
namespace {

using testing::ElementsAre;

std::vector<int> Contents(const TraceRing<int>& ring) {
  std::vector<int> contents;
  ring.NewestFirst([&](int record) {
    contents.push_back(record);
    return true;
  });
  return contents;
}

TEST(TraceRingTest, KeepsTheNewestAndShowsThemNewestFirst) {
  TraceRing<int> ring(3);
  EXPECT_THAT(Contents(ring), ElementsAre());
  ring.Add(1);
  ring.Add(2);
  EXPECT_THAT(Contents(ring), ElementsAre(2, 1));
  ring.Add(3);
  ring.Add(4);
  ring.Add(5);
  EXPECT_THAT(Contents(ring), ElementsAre(5, 4, 3));
  EXPECT_EQ(ring.size(), 3u);
}

TEST(TraceRingTest, AVisitorCanStopTheVisit) {
  TraceRing<int> ring(4);
  for (int i = 0; i < 4; ++i) ring.Add(i);
  int seen = 0;
  ring.NewestFirst([&](int) { return ++seen < 2; });
  EXPECT_EQ(seen, 2);
}

TEST(TraceRingTest, IsEmptyOnceCleared) {
  TraceRing<int> ring(2);
  ring.Add(1);
  ring.Clear();
  EXPECT_EQ(ring.size(), 0u);
  EXPECT_THAT(Contents(ring), ElementsAre());
}

// The bucket that counts an observation of so many nanoseconds.
size_t BucketOf(int64_t ns) {
  DurationHistogram histogram;
  histogram.Observe(ns);
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    if (histogram.counts()[i] == 1) return i;
  }
  return SIZE_MAX;
}

TEST(DurationHistogramTest, ABoundBelongsToItsOwnBucket) {
  EXPECT_EQ(BucketOf(-5), 0u);
  EXPECT_EQ(BucketOf(0), 0u);
  EXPECT_EQ(BucketOf(1), 0u);
  for (size_t i = 0; i < DurationHistogram::kBounds; ++i) {
    EXPECT_EQ(BucketOf(DurationHistogram::BoundNs(i)), i);
    EXPECT_EQ(BucketOf(DurationHistogram::BoundNs(i) + 1), i + 1);
  }
  EXPECT_EQ(BucketOf(INT64_MAX), DurationHistogram::kBounds);
}

TEST(DurationHistogramTest, AddsUpWhatItHasSeen) {
  DurationHistogram a, b;
  a.Observe(100);
  a.Observe(-7);  // not counted
  b.Observe(1'000'000'000);
  a.Add(b);
  EXPECT_EQ(a.count(), 3u);
  EXPECT_EQ(a.sum_ns(), 1'000'000'100u);
}

TEST(TraceClockTest, NeverGoesBack) {
  const int64_t before = TraceNow();
  EXPECT_GE(TraceNow(), before);
}

}  // namespace
}  // namespace addend
