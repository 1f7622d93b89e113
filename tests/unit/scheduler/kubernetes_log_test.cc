// The scheduler's records in Secrets, and its Lease, over an API server in memory that loses
// calls and answers.
#include "services/scheduler/store/kubernetes_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "services/scheduler/store/kubernetes_lease.h"
#include "services/scheduler/store/kubernetes_store.h"
#include "tests/unit/scheduler/kubernetes_fixture.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using Fault = FakeObjects::Fault;
constexpr auto kRecords = ObjectKind::kSecret;
constexpr auto kLease = ObjectKind::kLease;

absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }
bool Wait(absl::Duration duration) {
  absl::SleepFor(duration);
  return true;
}

class KubernetesLogTest : public testing::Test {
 protected:
  std::unique_ptr<KubernetesLog> Leader(const std::string& name) {
    auto log = std::make_unique<KubernetesLog>(&objects_, "store", name, Wait,
                                               [this] { return std::min(until_, Soon()); });
    EXPECT_TRUE(log->TakeOver().ok());
    EXPECT_TRUE(log->Load().ok());
    return log;
  }
  std::vector<StoreEntry> Read() { return *Leader("reader")->Load(); }
  static absl::Status Put(KubernetesLog* log, const std::string& key, const std::string& value) {
    return log->Apply(std::vector<StoreWrite>{{key, value}});
  }

  FakeObjects objects_;
  absl::Time until_ = absl::InfiniteFuture();
};

TEST_F(KubernetesLogTest, TheNextLeaderReadsWhatWasWritten) {
  auto log = Leader("a");
  const std::string bytes("\0\xff'\"\n", 5);
  ASSERT_TRUE(
      log->Apply(std::vector<StoreWrite>{{"b", "2"}, {"a", "x"}, {"a", bytes}, {"c", ""}}).ok());
  ASSERT_TRUE(log->Apply(std::vector<StoreWrite>{{"b", std::nullopt}, {"d", "4"}}).ok());
  EXPECT_THAT(Read(), ElementsAre(Pair("a", bytes), Pair("c", ""), Pair("d", "4")));
}

TEST_F(KubernetesLogTest, FormerLeaderWritesNothing) {
  auto first = Leader("first");
  ASSERT_TRUE(Put(first.get(), "a", "1").ok());
  auto second = Leader("second");
  for (const size_t bytes : {1, 200'000}) {
    const absl::Status refused = Put(first.get(), "a", std::string(bytes, 'x'));
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(KindOf(refused), FailureKind::kTemporary);
  }
  EXPECT_THAT(Read(), ElementsAre(Pair("a", "1")));
}

TEST_F(KubernetesLogTest, ObjectsStayBelowTheLimitOfKubernetesWhateverIsWritten) {
  auto log = Leader("a");
  const std::string large(5'000'000, 'v');
  std::vector<StoreWrite> writes = {{"large", large}};
  for (int i = 0; i < 1234; ++i) {
    writes.push_back({absl::StrFormat("%04d", i), std::string(3000, 'v')});
  }
  ASSERT_TRUE(log->Apply(writes).ok());
  EXPECT_LT(objects_.LargestBytes(), 1'000'000U);
  const auto entries = Read();
  EXPECT_THAT(entries, SizeIs(writes.size()));
  EXPECT_THAT(entries.back(), Pair("large", large));
}

TEST_F(KubernetesLogTest, LogIsReplacedByItsStateBeforeItGrowsLong) {
  auto log = Leader("a");
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Put(log.get(), "a", std::string(100'000, static_cast<char>('a' + i % 26))).ok());
  }
  // The head, and segments of at most twice the state and a megabyte.
  EXPECT_LE(objects_.Names(kRecords).size(), 15U);
  EXPECT_THAT(Read(), ElementsAre(Pair("a", std::string(100'000, 'v'))));
}

TEST_F(KubernetesLogTest, SegmentsOfABatchThatWasNotCompletedAreDeletedByTheNextLeader) {
  auto log = Leader("a");
  objects_.fault = [](const std::string& call) {
    return call == "PUT store" ? Fault::kLost : Fault::kNone;
  };
  const std::vector<StoreWrite> writes = {{"a", std::string(2'000'000, 'x')}};
  until_ = SteadyNow() + absl::Milliseconds(500);
  EXPECT_EQ(log->Apply(writes).code(), absl::StatusCode::kUnavailable);
  until_ = absl::InfiniteFuture();
  objects_.fault = [](const std::string&) { return Fault::kNone; };
  EXPECT_GT(objects_.Names(kRecords).size(), 1U);
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_THAT(objects_.Names(kRecords), ElementsAre("store"));
}

TEST_F(KubernetesLogTest, LabelThatAnotherProgramAddsToTheHeadChangesNothing) {
  auto log = Leader("a");
  objects_.Touch(kRecords, "store");
  ASSERT_TRUE(Put(log.get(), "a", "1").ok());
  EXPECT_THAT(Read(), ElementsAre(Pair("a", "1")));
}

TEST_F(KubernetesLogTest, DamageIsReportedWithTheWayOut) {
  auto log = Leader("a");
  ASSERT_TRUE(Put(log.get(), "a", std::string(100'000, 'x')).ok());
  const std::string segment = "store-1-1";
  ASSERT_THAT(objects_.Names(kRecords), ElementsAre("store", segment));

  objects_.Set(kRecords, segment, "/data/records", "AAAA");
  absl::Status lost = log->Load().status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(lost), HasSubstr("store-1-1 of the scheduler's records is damaged: delete"));
  objects_.Remove(kRecords, segment);
  EXPECT_THAT(Message(log->Load().status()), HasSubstr("is missing"));

  objects_.Set(kRecords, "store", "/data/head", "AAAA");
  KubernetesLog next(&objects_, "store", "b", Wait, Soon);
  EXPECT_THAT(Message(next.TakeOver()), HasSubstr("store is not the head of"));

  objects_.Remove(kRecords, "store");
  const absl::Status deleted = Put(log.get(), "a", "1");
  EXPECT_EQ(KindOf(deleted), FailureKind::kTemporary);
  EXPECT_THAT(Message(deleted), HasSubstr("was deleted"));
}

TEST_F(KubernetesLogTest, RecordsThatWouldOverloadTheApiServerAreRefused) {
  auto log = Leader("a");
  const absl::Status refused = Put(log.get(), "a", std::string(KubernetesLog::kMaxBytes, 'x'));
  EXPECT_EQ(KindOf(refused), FailureKind::kResources);
  EXPECT_THAT(objects_.Names(kRecords), ElementsAre("store"));
}

TEST_F(KubernetesLogTest, FormerLeaderThatWakesUpInItsCompactionDeletesNothingOfTheNext) {
  auto first = Leader("first");
  ASSERT_TRUE(Put(first.get(), "a", std::string(900'000, 'x')).ok());
  std::unique_ptr<KubernetesLog> second;
  bool woken = false;
  objects_.fault = [&](const std::string& call) {
    if (call == "LIST" && !std::exchange(woken, true)) {  // after the commit of the compaction
      second = Leader("second");
      EXPECT_TRUE(Put(second.get(), "b", std::string(100'000, 'y')).ok());
    }
    return Fault::kNone;
  };
  while (second == nullptr) {
    ASSERT_TRUE(Put(first.get(), "a", std::string(900'000, 'z')).ok());
  }
  EXPECT_THAT(Read(), ElementsAre(Pair("a", std::string(900'000, 'z')),
                                  Pair("b", std::string(100'000, 'y'))));
}

TEST_F(KubernetesLogTest, SegmentsOfALogWhoseHeadWasDeletedAreNotTakenForNewOnes) {
  auto first = Leader("first");
  ASSERT_TRUE(Put(first.get(), "a", std::string(100'000, 'x')).ok());
  objects_.Remove(kRecords, "store");
  objects_.fault = [](const std::string& call) {
    return call == "LIST" ? Fault::kLost : Fault::kNone;
  };
  auto second = Leader("second");
  ASSERT_TRUE(Put(second.get(), "a", std::string(100'000, 'y')).ok());
  EXPECT_THAT(Read(), ElementsAre(Pair("a", std::string(100'000, 'y'))));
}

TEST_F(KubernetesLogTest, FullLogTakesWhatMakesItShorter) {
  auto log = Leader("a");
  const std::string eighth(KubernetesLog::kMaxBytes / 8, 'x');
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(Put(log.get(), absl::StrFormat("%d", i), eighth).ok());
  EXPECT_EQ(KindOf(Put(log.get(), "7", eighth)), FailureKind::kResources);
  log = Leader("b");
  EXPECT_TRUE(Put(log.get(), "0", eighth.substr(1)).ok());
  EXPECT_TRUE(log->Apply(std::vector<StoreWrite>{{"1", std::nullopt}}).ok());
  EXPECT_TRUE(Put(log.get(), "7", eighth.substr(100)).ok());
}

TEST_F(KubernetesLogTest, CompactionThatIsRefusedEndsNoLeader) {
  auto log = Leader("a");
  int posts = 0;
  objects_.fault = [&](const std::string& call) {
    // As a quota that leaves room for the batch's own segment only.
    return call.starts_with("POST") && ++posts > 1 ? Fault::kLost : Fault::kNone;
  };
  std::string value;
  for (int i = 0; i < 40; ++i) {
    posts = 0;
    until_ = SteadyNow() + absl::Milliseconds(300);
    value = std::string(100'000, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(Put(log.get(), "a", value).ok());
  }
  until_ = absl::InfiniteFuture();
  EXPECT_GT(objects_.Names(kRecords).size(), 20U);
  EXPECT_THAT(Read(), ElementsAre(Pair("a", value)));
  objects_.fault = [](const std::string&) { return Fault::kNone; };
  log = Leader("next");
  ASSERT_TRUE(Put(log.get(), "a", value).ok());
  EXPECT_THAT(objects_.Names(kRecords), SizeIs(2));
}

TEST_F(KubernetesLogTest, StaleLeaderIsToldOfTheNextInsteadOfDamage) {
  auto first = Leader("first");
  ASSERT_TRUE(Put(first.get(), "a", std::string(100'000, 'x')).ok());
  KubernetesLog stale(&objects_, "store", "stale", Wait, Soon);
  ASSERT_TRUE(stale.TakeOver().ok());
  auto next = Leader("next");
  for (const auto& name : objects_.Names(kRecords)) {
    if (name != "store") objects_.Remove(kRecords, name);  // as its compaction would
  }
  EXPECT_EQ(stale.Load().status().code(), absl::StatusCode::kAborted);
}

// Random batches, with calls and answers that are lost, and leaders that are deposed.
TEST_F(KubernetesLogTest, EachBatchIsThereAsAWholeOrNotAtAll) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(absl::StrFormat("seed %d", seed));
  std::mt19937 random(seed);
  const auto below = [&random](unsigned n) { return random() % n; };
  std::map<std::string, std::string> expected;
  auto log = Leader("0");
  for (int batch = 0; batch < 150; ++batch) {
    std::vector<StoreWrite> writes;
    auto after = expected;
    for (unsigned i = 0; i < 1 + below(5); ++i) {
      const std::string key = absl::StrFormat("key%d", below(12));
      if (below(4) == 0) {
        writes.push_back({key, std::nullopt});
        after.erase(key);
      } else {
        writes.push_back({key, std::string(below(10) == 0 ? below(600'000) : below(3000),
                                           static_cast<char>('a' + below(26)))});
        after[key] = *writes.back().value;
      }
    }
    objects_.fault = [&](const std::string&) {
      const unsigned what = below(10);
      return what == 0 ? Fault::kLost : what == 1 ? Fault::kNoAnswer : Fault::kNone;
    };
    ASSERT_TRUE(log->Apply(writes).ok());
    expected = after;
    if (below(10) > 0) continue;
    objects_.fault = [](const std::string&) { return Fault::kNone; };
    auto former = std::move(log);
    log = Leader(absl::StrFormat("%d", batch));
    EXPECT_FALSE(former->Apply(writes).ok());
    const auto entries = *log->Load();
    const decltype(expected) read(entries.begin(), entries.end());
    ASSERT_EQ(read, expected);
  }
}

class KubernetesLeaseTest : public testing::Test {
 protected:
  KubernetesLease Candidate(const std::string& name, absl::Duration ttl = absl::Seconds(1)) {
    return KubernetesLease(&objects_, "store", name, ttl);
  }
  bool Takes(KubernetesLease* lease) {
    const auto took = lease->TryToTake(Soon(), &other_);
    EXPECT_TRUE(took.ok()) << took.status();
    return took.ok() && *took;
  }

  FakeObjects objects_;
  std::string other_;
};

TEST_F(KubernetesLeaseTest, OneCandidateTakesItAndTheOthersNameTheHolder) {
  auto a = Candidate("a"), b = Candidate("b");
  EXPECT_TRUE(Takes(&a));
  EXPECT_FALSE(Takes(&b));
  EXPECT_EQ(other_, "a");
}

TEST_F(KubernetesLeaseTest, LeaseThatIsNotRenewedIsTakenAfterItsTimeAndNoEarlier) {
  auto a = Candidate("a"), b = Candidate("b");
  ASSERT_TRUE(Takes(&a));
  while (!Takes(&b)) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_GE(SteadyNow(), a.end());
  EXPECT_EQ(a.Renew(Soon()).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(b.Renew(Soon()).ok());
}

TEST_F(KubernetesLeaseTest, RenewedLeaseIsNotTaken) {
  auto a = Candidate("a"), b = Candidate("b");
  ASSERT_TRUE(Takes(&a));
  const absl::Time until = SteadyNow() + absl::Seconds(3);
  while (SteadyNow() < until) {
    ASSERT_TRUE(a.Renew(Soon()).ok());
    ASSERT_FALSE(Takes(&b));
    absl::SleepFor(absl::Milliseconds(100));
  }
}

TEST_F(KubernetesLeaseTest, ReleasedLeaseIsTakenAtOnce) {
  auto a = Candidate("a", absl::Minutes(10)), b = Candidate("b");
  ASSERT_TRUE(Takes(&a));
  a.Release(Soon());
  EXPECT_TRUE(Takes(&b));
}

TEST_F(KubernetesLeaseTest, CallWithoutAnAnswerDoesNotEndTheLeadership) {
  auto a = Candidate("a");
  objects_.fault = [](const std::string&) { return Fault::kNoAnswer; };
  EXPECT_FALSE(a.TryToTake(Soon(), &other_).ok());
  objects_.fault = [](const std::string&) { return Fault::kNone; };
  EXPECT_TRUE(Takes(&a));
  objects_.fault = [](const std::string&) { return Fault::kNoAnswer; };
  EXPECT_FALSE(a.Renew(Soon()).ok());
  objects_.fault = [](const std::string&) { return Fault::kNone; };
  EXPECT_TRUE(a.Renew(Soon()).ok());
}

TEST_F(KubernetesLeaseTest, AbsurdDurationOfAnotherHolderIsBounded) {
  auto a = Candidate("a"), b = Candidate("b");
  ASSERT_TRUE(Takes(&a));
  objects_.Set(kLease, "store", "/spec/leaseDurationSeconds", -5);
  EXPECT_FALSE(Takes(&b));
  const absl::Time seen = SteadyNow();
  while (!Takes(&b)) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_GE(SteadyNow() - seen, absl::Milliseconds(900));
}

// Stores over the same objects.
class KubernetesStoreTest : public testing::Test {
 protected:
  std::unique_ptr<KubernetesStore> Open() {
    return std::make_unique<KubernetesStore>(objects_, "store");
  }
  absl::Status Lead(
      KubernetesStore* store, const std::string& name, absl::Duration ttl = absl::Seconds(2),
      std::function<bool()> give_up = [] { return false; }) {
    return store->Lead({.name = name,
                        .ttl = ttl,
                        .give_up = std::move(give_up),
                        .on_lost = [this](absl::Status why) {
                          MutexLock lock(&mu_);
                          lost_ = std::move(why);
                          told_.NotifyAll();
                        }});
  }
  absl::Status AwaitLoss() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mu_);
    while (lost_.ok() && told_.WaitUntil(&mu_, deadline)) {
    }
    return lost_;
  }

  const std::shared_ptr<FakeObjects> objects_ = std::make_shared<FakeObjects>();
  Mutex mu_;
  CondVar told_;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

TEST_F(KubernetesStoreTest, SchedulerThatEndsLetsTheNextBeginAtOnce) {
  auto store = Open();
  ASSERT_TRUE(Lead(store.get(), "a", absl::Minutes(10)).ok());
  ASSERT_TRUE(store->Load()->empty());
  ASSERT_TRUE(store->Apply(std::vector<StoreWrite>{{"a", "1"}}).ok());
  store = Open();  // the second is there before the first ends
  ASSERT_TRUE(Lead(store.get(), "b").ok());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1")));
}

TEST_F(KubernetesStoreTest, SecondSchedulerStandsByWhileTheFirstLeads) {
  auto first = Open(), second = Open();
  ASSERT_TRUE(Lead(first.get(), "first").ok());
  const absl::Time until = SteadyNow() + absl::Seconds(4);
  EXPECT_EQ(Lead(second.get(), "second", absl::Seconds(2), [until] { return SteadyNow() > until; })
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_TRUE(first->Apply(std::vector<StoreWrite>{{"a", "1"}}).ok());
}

TEST_F(KubernetesStoreTest, LeaderWithoutTheApiServerStepsDownWithinItsLease) {
  auto store = Open();
  ASSERT_TRUE(Lead(store.get(), "a").ok());
  objects_->fault = [](const std::string&) { return Fault::kLost; };
  const absl::Time gone = SteadyNow();
  EXPECT_EQ(store->Apply(std::vector<StoreWrite>{{"a", "1"}}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(AwaitLoss()), HasSubstr("leads no more"));
  EXPECT_LT(SteadyNow() - gone, absl::Seconds(20));
}

TEST_F(KubernetesStoreTest, LeaderIsToldThatAnotherHasTakenTheLease) {
  auto store = Open();
  ASSERT_TRUE(Lead(store.get(), "a").ok());
  objects_->Set(kLease, "store", "/spec/holderIdentity", "b");
  EXPECT_THAT(Message(AwaitLoss()), HasSubstr("another scheduler leads now"));
}

TEST(KubernetesStoreNamesTest, WrongNamesAreRefusedWithTheForm) {
  for (const char* where : {"A", "a/b/c", "a/", "/a", "-a", "a b", "a_b"}) {
    const auto store = KubernetesStore::Open(where);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << where;
    EXPECT_THAT(Message(store.status()), HasSubstr("kubernetes[:[NAMESPACE/]NAME]")) << where;
  }
}

}  // namespace
}  // namespace addend
