// The recent events.
#include "services/scheduler/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace addend {
namespace {

using testing::ElementsAre;
using testing::Pair;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

v1::Incident Incident(const std::string& kind) {
  v1::Incident incident;
  incident.set_kind(kind);
  incident.set_text("text");
  return incident;
}

TEST(EventLogTest, EventsAreNumberedInOrder) {
  EventLog log;
  log.Add(kNow, event_kind::kJoined, "a", "first");
  log.Add(kNow + absl::Seconds(1), event_kind::kLost, "", "second");
  ASSERT_EQ(log.events().size(), 2u);
  const v1::Event& first = log.events()[0];
  EXPECT_EQ(first.number(), 1u);
  EXPECT_EQ(first.unix_s(), 1.7e9);
  EXPECT_EQ(first.kind(), "joined");
  EXPECT_EQ(first.job(), "a");
  EXPECT_EQ(first.text(), "first");
  EXPECT_EQ(log.events()[1].number(), 2u);
  EXPECT_EQ(log.events()[1].unix_s(), 1.7e9 + 1);
}

TEST(EventLogTest, LastEventsAreKeptAndAllAreCounted) {
  EventLog log;
  for (size_t i = 0; i <= EventLog::kLastEvents; ++i) log.Add(kNow, "lost", "a", "text");
  EXPECT_EQ(log.events().size(), EventLog::kLastEvents);
  EXPECT_EQ(log.events().front().number(), 2u);
  EXPECT_THAT(log.counts(), ElementsAre(Pair("lost", EventLog::kLastEvents + 1)));
}

TEST(EventLogTest, LongTextsAreShortened) {
  EventLog log;
  log.Add(kNow, "lost", "a", std::string(EventLog::kMaxTextBytes, 't'));
  log.Add(kNow, "lost", "a", std::string(EventLog::kMaxTextBytes + 1, 't'));
  EXPECT_EQ(log.events()[0].text(), std::string(EventLog::kMaxTextBytes, 't'));
  EXPECT_LE(log.events()[1].text().size(), EventLog::kMaxTextBytes);
  EXPECT_TRUE(log.events()[1].text().ends_with("..."));
}

TEST(EventLogTest, UnknownKindsOfIncidentsShareALabel) {
  EventLog log;
  for (const char* kind : {"nonfinite", "audit_mismatch", "rdma_fallback", "stall", "x", "y"}) {
    log.AddIncident(kNow, Incident(kind), "a");
  }
  EXPECT_THAT(log.counts(),
              ElementsAre(Pair("audit_mismatch", 1), Pair("incident", 2), Pair("nonfinite", 1),
                          Pair("rdma_fallback", 1), Pair("stall", 1)));
  EXPECT_EQ(log.events().back().job(), "a");
  EXPECT_EQ(log.events().back().text(), "text");
}

}  // namespace
}  // namespace addend
