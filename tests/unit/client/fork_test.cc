// A child of fork(): it may come and go without the job noticing, and every call in it fails.
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/unit/client/fixture.h"

namespace addend {
namespace {

class ForkTest : public ClientTest {
 protected:
  // Runs `body` in a child; its return value is the exit status.
  int InChild(const std::function<int()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(body());
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static int MappedSegments() {
    std::ifstream maps("/proc/self/maps");
    int found = 0;
    for (std::string line; std::getline(maps, line);) {
      found += line.find("memfd:fake-agent") != std::string::npos ? 1 : 0;
    }
    return found;
  }
};

TEST_F(ForkTest, ChildDoesNotInheritTheSegments) {
  Start(1);
  Declare(0, "t", {4});
  // The fake agent lives in this process too, and the child inherits its two mappings.
  EXPECT_EQ(MappedSegments(), 4);
  EXPECT_EQ(InChild([] { return MappedSegments(); }), 2);
}

TEST_F(ForkTest, EveryCallInTheChildIsAStateError) {
  Start(1);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float value = 1;
  agent_->HoldResults(true);
  addend_handle* const pending = Push(tensor, &value, &value);
  EXPECT_EQ(InChild([&] {
              addend_handle* handle;
              if (addend_push_pull(tensor, &value, &value, 0, &handle) != ADDEND_ERROR_STATE)
                return 1;
              if (std::string(addend_last_error()).find("forked") == std::string::npos) return 2;
              if (addend_wait(pending, -1) != ADDEND_ERROR_STATE) return 3;
              uint64_t tag;
              if (addend_next_done(contexts_[0], -1, &tag) != ADDEND_ERROR_STATE) return 4;
              addend_release(pending);
              addend_shutdown(contexts_[0]);
              return 0;
            }),
            0);
  agent_->HoldResults(false);
  EXPECT_EQ(Await(pending), ADDEND_OK);
}

TEST_F(ForkTest, ChildMayExitNormallyWithoutTheJobNoticing) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "what the parent's threads hold looks like a leak in the child";
#endif
  Start(1);
  addend_tensor* const tensor = Declare(0, "t", {1});
  EXPECT_EQ(InChild([] {
              std::exit(7);
              return 0;
            }),
            7);
  float value = 1;
  EXPECT_EQ(Await(Push(tensor, &value, &value)), ADDEND_OK);
  EXPECT_EQ(agent_->counts().died, 0);
}

TEST_F(ForkTest, DeathIsNoticedWhileAChildLives) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not support new threads in a forked child";
#endif
  agent_ = std::make_unique<FakeAgent>(socket_, 1);
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t trainer = ::fork();
  if (trainer == 0) {
    ::close(hold[1]);
    addend_context* context;
    const addend_options options = Options(0, 1);
    if (addend_init(&options, &context) != ADDEND_OK) ::_exit(1);
    if (::fork() == 0) {
      char byte;  // a data loader that outlives its trainer
      [[maybe_unused]] const ssize_t end = ::read(hold[0], &byte, 1);
      ::_exit(0);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(trainer, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Eventually([](const auto& counts) { return counts.died == 1; }));
  ::close(hold[1]);
  ::close(hold[0]);
}

TEST_F(ForkTest, ForkingWhileOtherThreadsWorkNeverHangs) {
  Start(1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !stop.load(); ++i) {
        addend_tensor* const tensor = Declare(0, std::to_string(t).c_str(), {1 + i % 7});
        std::vector<float> values(8, 1);
        ASSERT_EQ(Await(Push(tensor, values.data(), values.data())), ADDEND_OK);
        ASSERT_EQ(addend_undeclare(tensor), ADDEND_OK);
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(InChild([&] {
                ::alarm(20);
                addend_tensor* tensor;
                return addend_declare(contexts_[0], "x", nullptr, 0, ADDEND_FLOAT32, ADDEND_SUM,
                                      &tensor) == ADDEND_ERROR_STATE
                           ? 0
                           : 1;
              }),
              0);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ForkTest, ChildMayJoinByItself) {
  Start(1);
  agent_->RefuseInit(ADDEND_ERROR_INVALID, "too many trainers");
  EXPECT_EQ(InChild([&] {
              addend_context* context;
              const addend_options options = Options(0, 1);
              return addend_init(&options, &context) == ADDEND_ERROR_INVALID ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace addend
