// What lib/client/old_glibc.cc puts in the place of newer functions of glibc: this test is linked
// as libaddend.so is.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

int ThrownThrough(int depth) {
  if (depth == 0) throw std::runtime_error("from below");
  return ThrownThrough(depth - 1) + 1;
}

TEST(OldGlibcTest, AnExceptionFindsItsHandler) {
  EXPECT_THROW(ThrownThrough(20), std::runtime_error);
}

TEST(OldGlibcTest, TheObjectOfAnAddressIsFoundWithItsFrames) {
  dl_find_object found{};
  ASSERT_EQ(_dl_find_object(reinterpret_cast<void*>(&ThrownThrough), &found), 0);
  EXPECT_LE(found.dlfo_map_start, reinterpret_cast<void*>(&ThrownThrough));
  EXPECT_GT(found.dlfo_map_end, reinterpret_cast<void*>(&ThrownThrough));
  EXPECT_NE(found.dlfo_eh_frame, nullptr);
  int local = 0;
  EXPECT_EQ(_dl_find_object(&local, &found), -1) << "the stack belongs to no object";
}

TEST(OldGlibcTest, AWaitWithADeadlineEndsThen) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(condition.wait_for(lock, std::chrono::milliseconds(50), [] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST(OldGlibcTest, AThreadWakesAnotherAndIsJoined) {
  std::mutex mutex;
  std::condition_variable condition;
  bool said = false;
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), "named");
    std::lock_guard lock(mutex);
    said = true;
    condition.notify_one();
  });
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(condition.wait_for(lock, std::chrono::seconds(60), [&] { return said; }));
  }
  thread.join();
}

TEST(OldGlibcTest, RandomNumbersDiffer) {
  std::random_device random;
  const unsigned first = random();
  EXPECT_TRUE(first != random() || first != random()) << "three equal numbers";
}

TEST(OldGlibcTest, FilesSignalsAndLibrariesWorkAsBefore) {
  struct stat found {};
  EXPECT_EQ(fstat(STDIN_FILENO + 1, &found), 0);
  EXPECT_EQ(fstat(-1, &found), -1);
  EXPECT_EQ(errno, EBADF);
  sigset_t set, before, after;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, &after), 0);
  EXPECT_TRUE(sigismember(&after, SIGUSR1));
  EXPECT_EQ(pthread_sigmask(99, &set, nullptr), EINVAL);
  Dl_info info{};
  EXPECT_NE(dladdr(reinterpret_cast<void*>(&dlsym), &info), 0);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "malloc"), nullptr);
  EXPECT_EQ(dlopen("/no/such/library.so", RTLD_NOW), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

}  // namespace
