// Tasks of an owner that is destroyed.
#include "lib/shard/task_loop.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/shard/fake_loop.h"

namespace addend {
namespace {

TEST(ScopedLoopTest, TasksRunWhileTheLoopExists) {
  FakeLoop loop;
  ScopedLoop scoped(&loop);
  int runs = 0;
  scoped.Defer([&] { ++runs; });
  scoped.RunAfter(absl::Seconds(1), [&] { ++runs; });
  loop.Settle();
  EXPECT_EQ(runs, 1);
  loop.Pass(absl::Seconds(1));
  EXPECT_EQ(runs, 2);
}

TEST(ScopedLoopTest, TasksOfADestroyedLoopDoNotRun) {
  FakeLoop loop;
  int runs = 0;
  std::optional<ScopedLoop> scoped(&loop);
  scoped->Defer([&] { ++runs; });
  scoped->RunAfter(absl::Seconds(1), [&] { ++runs; });
  scoped.reset();
  loop.Pass(absl::Seconds(2));
  EXPECT_EQ(runs, 0);
}

}  // namespace
}  // namespace addend
