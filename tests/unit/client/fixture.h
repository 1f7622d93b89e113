// The fixture of the client's tests: a fake agent at a fresh path, and ranks that join it.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/client/addend.h"
#include "tests/unit/client/fake_agent.h"

namespace addend {

constexpr double kLongS = 30;  // a wait that ends by itself; only a failing test takes it all

// The variables that a torchrun around the tests would set.
inline void ClearEnvironment() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ADDEND_SOCKET",
                           "ADDEND_JOB", "ADDEND_CONNECT_TIMEOUT"}) {
    ::unsetenv(name);
  }
}

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    ClearEnvironment();
    char path[] = "/tmp/addend-client-test-XXXXXX";
    directory_ = ::mkdtemp(path);
    socket_ = directory_ + "/agent.sock";
  }
  void TearDown() override {
    for (addend_context* context : contexts_) addend_shutdown(context);
    agent_.reset();
    ::unlink(socket_.c_str());
    ::rmdir(directory_.c_str());
  }

  addend_options Options(int rank, int size) const {
    addend_options options = {};
    options.struct_size = sizeof(options);
    options.socket = socket_.c_str();
    options.rank = options.local_rank = rank;
    options.size = options.local_size = size;
    options.connect_timeout_s = kLongS;
    return options;
  }

  // Starts an agent for `size` ranks and makes all of them join.
  void Start(int size) {
    agent_ = std::make_unique<FakeAgent>(socket_, size);
    contexts_.resize(size);
    OnAllRanks([&](int rank) {
      const addend_options options = Options(rank, size);
      ASSERT_EQ(addend_init(&options, &contexts_[rank]), ADDEND_OK) << addend_last_error();
    });
  }

  void OnAllRanks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < contexts_.size(); ++rank) {
      threads.emplace_back(body, static_cast<int>(rank));
    }
    for (std::thread& thread : threads) thread.join();
  }

  addend_tensor* Declare(int rank, const char* name, std::vector<int64_t> shape,
                         addend_dtype dtype = ADDEND_FLOAT32, addend_op op = ADDEND_SUM) {
    addend_tensor* tensor = nullptr;
    EXPECT_EQ(addend_declare(contexts_[rank], name, shape.data(),
                             static_cast<int32_t>(shape.size()), dtype, op, &tensor),
              ADDEND_OK)
        << addend_last_error();
    return tensor;
  }

  addend_handle* Push(addend_tensor* tensor, const void* in, void* out, int32_t priority = 0) {
    addend_handle* handle = nullptr;
    EXPECT_EQ(addend_push_pull(tensor, in, out, priority, &handle), ADDEND_OK)
        << addend_last_error();
    return handle;
  }

  // The code and the sentence; releases the handle.
  addend_code Await(addend_handle* handle) {
    const addend_code code = addend_wait(handle, kLongS);
    addend_release(handle);
    return code;
  }

  // The agent's thread works behind the test: its counts arrive when they do.
  bool Eventually(const std::function<bool(const FakeAgent::Counts&)>& ready) {
    for (int i = 0; i < 3000; ++i) {
      if (ready(agent_->counts())) return true;
      ::usleep(10000);
    }
    return false;
  }

  std::string directory_;
  std::string socket_;
  std::unique_ptr<FakeAgent> agent_;
  std::vector<addend_context*> contexts_;
};

}  // namespace addend
