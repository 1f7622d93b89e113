// Failures, each with its code and sentence: bad arguments, refusals, lost agents, ended contexts.
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "lib/client/ipc.h"
#include "tests/unit/client/fixture.h"

namespace addend {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ErrorsTest : public ClientTest {
 protected:
  addend_code Init(const addend_options& options) {
    addend_context* context = nullptr;
    const addend_code code = addend_init(&options, &context);
    if (code == ADDEND_OK) addend_shutdown(context);
    return code;
  }
};

TEST_F(ErrorsTest, MalformedVariableIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    for (const char* value : {"two", "1x", "-1", "99999999999"}) {
      ::setenv(name, value, 1);
      addend_context* context;
      EXPECT_EQ(addend_init(nullptr, &context), ADDEND_ERROR_INVALID);
      EXPECT_THAT(addend_last_error(), AllOf(HasSubstr(name), HasSubstr(value)));
      ::unsetenv(name);
    }
  }
  ::setenv("ADDEND_CONNECT_TIMEOUT", "soon", 1);
  addend_context* context;
  EXPECT_EQ(addend_init(nullptr, &context), ADDEND_ERROR_INVALID);
  EXPECT_THAT(addend_last_error(), HasSubstr("ADDEND_CONNECT_TIMEOUT"));
}

TEST_F(ErrorsTest, RankBeyondTheSizeIsRefused) {
  EXPECT_EQ(Init(Options(2, 2)), ADDEND_ERROR_INVALID);
  EXPECT_THAT(addend_last_error(), HasSubstr("rank 2 of 2"));
}

TEST_F(ErrorsTest, MissingAgentIsUnreachableAfterTheTimeout) {
  addend_options options = Options(0, 1);
  options.connect_timeout_s = 0.2;
  EXPECT_EQ(Init(options), ADDEND_ERROR_UNREACHABLE);
  EXPECT_THAT(addend_last_error(), AllOf(HasSubstr(socket_), HasSubstr("no such file")));
}

TEST_F(ErrorsTest, EnvironmentGivesTheSocketAndTheTimeout) {
  ::setenv("ADDEND_SOCKET", socket_.c_str(), 1);
  ::setenv("ADDEND_CONNECT_TIMEOUT", "0.1s", 1);
  addend_context* context;
  EXPECT_EQ(addend_init(nullptr, &context), ADDEND_ERROR_UNREACHABLE);
  EXPECT_THAT(addend_last_error(), HasSubstr(socket_));
  ClearEnvironment();
}

TEST_F(ErrorsTest, AgentMayComeLater) {
  std::thread later([&] {
    ::usleep(300000);
    agent_ = std::make_unique<FakeAgent>(socket_, 1);
  });
  EXPECT_EQ(Init(Options(0, 1)), ADDEND_OK) << addend_last_error();
  later.join();
}

TEST_F(ErrorsTest, OverlongPathIsRefused) {
  addend_options options = Options(0, 1);
  const std::string path(200, 'x');
  options.socket = path.c_str();
  EXPECT_EQ(Init(options), ADDEND_ERROR_INVALID);
  EXPECT_THAT(addend_last_error(), HasSubstr("200 bytes"));
}

TEST_F(ErrorsTest, ForbiddenSocketIsAPermissionError) {
  agent_ = std::make_unique<FakeAgent>(socket_, 1);
  ASSERT_EQ(::chmod(socket_.c_str(), 0), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    // Root may connect to every socket.
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
    ::_exit(Init(Options(0, 1)));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), ADDEND_ERROR_PERMISSION);
}

TEST_F(ErrorsTest, RefusalIsTheAgentsSentence) {
  agent_ = std::make_unique<FakeAgent>(socket_, 1);
  agent_->RefuseInit(ADDEND_ERROR_MISMATCH, "this agent serves job blue, not red");
  EXPECT_EQ(Init(Options(0, 1)), ADDEND_ERROR_MISMATCH);
  EXPECT_STREQ(addend_last_error(), "this agent serves job blue, not red");
}

TEST_F(ErrorsTest, AgentThatEndsBeforeTheStartAndStaysAwayIsLost) {
  agent_ = std::make_unique<FakeAgent>(socket_, 2);
  std::thread closer([&] {
    ASSERT_TRUE(Eventually([](const auto& counts) { return counts.connected == 1; }));
    agent_.reset();
  });
  addend_options options = Options(0, 2);
  options.connect_timeout_s = 0.3;
  EXPECT_EQ(Init(options), ADDEND_ERROR_PEER_LOST);
  EXPECT_THAT(addend_last_error(), HasSubstr("closed the connection before the job had started"));
  closer.join();
}

TEST_F(ErrorsTest, AgentThatIsStartedAgainBeforeTheStartIsFound) {
  agent_ = std::make_unique<FakeAgent>(socket_, 2);
  std::thread next([&] {
    ASSERT_TRUE(Eventually([](const auto& counts) { return counts.connected == 1; }));
    agent_.reset();
    agent_ = std::make_unique<FakeAgent>(socket_, 1);
  });
  EXPECT_EQ(Init(Options(0, 1)), ADDEND_OK) << addend_last_error();
  next.join();
}

TEST_F(ErrorsTest, AgentThatAlwaysClosesBeforeTheStartIsLost) {
  agent_ = std::make_unique<FakeAgent>(socket_, 2);
  std::atomic<bool> done{false};
  std::thread closer([&] {
    for (; !done; ::usleep(10000)) agent_->CloseAll();
  });
  addend_options options = Options(0, 2);
  options.connect_timeout_s = 0.3;
  EXPECT_EQ(Init(options), ADDEND_ERROR_PEER_LOST);
  done = true;
  closer.join();
}

TEST_F(ErrorsTest, NoProgressIsPrintedWhenTheStartIsQuick) {
  agent_ = std::make_unique<FakeAgent>(socket_, 2);
  std::thread closer([&] {
    ASSERT_TRUE(Eventually([](const auto& counts) { return counts.connected == 1; }));
    agent_->SendProgress("waiting for node 1 of job blue");
    agent_->Fail(ADDEND_ERROR_PEER_LOST, "node 1 is gone");
  });
  testing::internal::CaptureStderr();
  Init(Options(0, 2));
  closer.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ErrorsTest, FailureEndsEveryPendingAndLaterCall) {
  Start(2);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float value = 1;
  addend_handle* const under_way = Push(tensor, &value, &value);
  addend_handle* const queued = Push(tensor, &value, &value);
  agent_->Fail(ADDEND_ERROR_STALLED, "rank 1 on node 0 has not pushed tensor t for 300 s");
  for (addend_handle* handle : {under_way, queued}) {
    EXPECT_EQ(Await(handle), ADDEND_ERROR_STALLED);
    EXPECT_THAT(addend_last_error(), HasSubstr("rank 1 on node 0"));
  }
  addend_handle* handle;
  EXPECT_EQ(addend_push_pull(tensor, &value, &value, 0, &handle), ADDEND_ERROR_STALLED);
  addend_tensor* other;
  EXPECT_EQ(addend_declare(contexts_[0], "u", nullptr, 0, ADDEND_FLOAT32, ADDEND_SUM, &other),
            ADDEND_ERROR_STALLED);
  uint64_t tag;
  EXPECT_EQ(addend_next_done(contexts_[0], kLongS, &tag), ADDEND_ERROR_STALLED);
}

TEST_F(ErrorsTest, TagsOfFailedOperationsComeFirst) {
  Start(2);
  float value = 1;
  addend_handle* const handle = Push(Declare(0, "t", {1}), &value, &value);
  addend_set_tag(handle, 9);
  agent_->CloseAll();
  uint64_t tag = 0;
  EXPECT_EQ(addend_next_done(contexts_[0], kLongS, &tag), ADDEND_OK);
  EXPECT_EQ(tag, 9u);
  EXPECT_EQ(addend_next_done(contexts_[0], kLongS, &tag), ADDEND_ERROR_PEER_LOST);
  addend_release(handle);
}

TEST_F(ErrorsTest, ClosedSocketIsALostAgent) {
  Start(2);
  float value = 1;
  addend_handle* const handle = Push(Declare(0, "t", {1}), &value, &value);
  agent_->CloseAll();
  EXPECT_EQ(Await(handle), ADDEND_ERROR_PEER_LOST);
  EXPECT_THAT(addend_last_error(), AllOf(HasSubstr(socket_), HasSubstr("closed the connection")));
}

TEST_F(ErrorsTest, AgentOfAnotherVersionIsNamed) {
  Start(1);
  ipc::Message message;
  message.version = 9;
  agent_->SendRaw(std::string(reinterpret_cast<const char*>(&message), sizeof(message)));
  float value = 1;
  addend_tensor* tensor = nullptr;
  addend_handle* handle = nullptr;
  addend_code code = ADDEND_OK;
  // The message may overtake the declaration or not; either way the context ends with the error.
  while (code == ADDEND_OK) {
    code = addend_declare(contexts_[0], "t", nullptr, 0, ADDEND_FLOAT32, ADDEND_SUM, &tensor);
    if (code == ADDEND_OK) code = addend_push_pull(tensor, &value, &value, 0, &handle);
    if (code == ADDEND_OK) code = Await(handle);
  }
  EXPECT_EQ(code, ADDEND_ERROR_VERSION);
  EXPECT_THAT(addend_last_error(), HasSubstr("version 9"));
}

TEST_F(ErrorsTest, MalformedMessagesEndTheContext) {
  ipc::Message unknown;
  unknown.type = static_cast<ipc::Type>(77);
  ipc::Message result;
  result.type = ipc::Type::kResult;
  result.tensor = 5;
  ipc::Message too_long;
  too_long.type = ipc::Type::kProgress;
  too_long.text_bytes = 100;
  for (const ipc::Message& message : {unknown, result, too_long}) {
    Start(1);
    agent_->SendRaw(std::string(reinterpret_cast<const char*>(&message), sizeof(message)));
    uint64_t tag;
    EXPECT_EQ(addend_next_done(contexts_[0], kLongS, &tag), ADDEND_ERROR_INTERNAL);
    addend_shutdown(contexts_[0]);
    agent_.reset();
  }
}

TEST_F(ErrorsTest, LocalMismatchShowsAtOnce) {
  Start(1);
  Declare(0, "t", {4});
  int64_t shape[] = {5};
  addend_tensor* tensor;
  EXPECT_EQ(addend_declare(contexts_[0], "t", shape, 1, ADDEND_FLOAT32, ADDEND_SUM, &tensor),
            ADDEND_ERROR_MISMATCH);
  EXPECT_THAT(addend_last_error(), AllOf(HasSubstr("float32[4] sum"), HasSubstr("float32[5] sum")));
}

TEST_F(ErrorsTest, RefusedDeclarationMayBeTriedAgain) {
  Start(2);
  Declare(0, "t", {4});
  int64_t shape[] = {5};
  addend_tensor* tensor;
  EXPECT_EQ(addend_declare(contexts_[1], "t", shape, 1, ADDEND_FLOAT32, ADDEND_SUM, &tensor),
            ADDEND_ERROR_MISMATCH);
  EXPECT_NE(Declare(1, "t", {4}), nullptr);
}

TEST_F(ErrorsTest, ErrorOfARoundLeavesTheOthersAlone) {
  Start(1);
  addend_tensor* const tensor = Declare(0, "t", {1});
  agent_->FailNextRound("t", ADDEND_ERROR_RESOURCES, "server 3 has no memory for tensor t");
  float value = 1;
  EXPECT_EQ(Await(Push(tensor, &value, &value)), ADDEND_ERROR_RESOURCES);
  EXPECT_EQ(Await(Push(tensor, &value, &value)), ADDEND_OK);
  EXPECT_EQ(addend_result(nullptr), nullptr);
}

TEST_F(ErrorsTest, BadArgumentsAreNamed) {
  Start(1);
  addend_tensor* tensor;
  int64_t negative[] = {-1};
  int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  const auto declare = [&](const char* name, const int64_t* shape, int dims, int dtype, int op) {
    return addend_declare(contexts_[0], name, shape, dims, static_cast<addend_dtype>(dtype),
                          static_cast<addend_op>(op), &tensor);
  };
  EXPECT_EQ(declare("", nullptr, 0, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare(nullptr, nullptr, 0, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("\xff", nullptr, 0, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("\xed\xa0\x80", nullptr, 0, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare(std::string(4097, 'n').c_str(), nullptr, 0, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", negative, 1, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", huge, 2, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", nullptr, 65, 0, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", nullptr, 0, 6, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", nullptr, 0, 0, 6), ADDEND_ERROR_INVALID);
  EXPECT_EQ(declare("t", nullptr, 0, -1, 0), ADDEND_ERROR_INVALID);
  EXPECT_EQ(addend_undeclare(nullptr), ADDEND_ERROR_INVALID);
  EXPECT_EQ(addend_wait(reinterpret_cast<addend_handle*>(contexts_[0]), 0), ADDEND_ERROR_INVALID);
}

TEST_F(ErrorsTest, PendingTensorCannotBeUndeclared) {
  Start(1);
  agent_->HoldResults(true);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float value = 1;
  addend_handle* const handle = Push(tensor, &value, &value);
  EXPECT_EQ(addend_undeclare(tensor), ADDEND_ERROR_STATE);
  agent_->HoldResults(false);
  EXPECT_EQ(Await(handle), ADDEND_OK);
  EXPECT_EQ(addend_undeclare(tensor), ADDEND_OK);
  EXPECT_EQ(addend_push_pull(tensor, &value, &value, 0, nullptr), ADDEND_ERROR_STATE);
}

TEST_F(ErrorsTest, EveryCallAfterShutdownIsAStateError) {
  Start(1);
  agent_->HoldResults(true);
  addend_tensor* const tensor = Declare(0, "t", {1});
  float value = 1;
  addend_handle* handle = Push(tensor, &value, &value);
  addend_shutdown(contexts_[0]);
  EXPECT_EQ(addend_wait(handle, kLongS), ADDEND_ERROR_STATE);
  EXPECT_EQ(addend_poll(handle), 1);
  addend_release(handle);
  EXPECT_EQ(addend_push_pull(tensor, &value, &value, 0, &handle), ADDEND_ERROR_STATE);
  EXPECT_THAT(addend_last_error(), HasSubstr("addend_shutdown"));
  addend_tensor* other;
  EXPECT_EQ(addend_declare(contexts_[0], "u", nullptr, 0, ADDEND_FLOAT32, ADDEND_SUM, &other),
            ADDEND_ERROR_STATE);
  EXPECT_EQ(addend_rank(contexts_[0]), -1);
  addend_shutdown(contexts_[0]);
}

TEST_F(ErrorsTest, ShutdownWakesWaitingCalls) {
  Start(1);
  agent_->HoldResults(true);
  float value = 1;
  addend_handle* const handle = Push(Declare(0, "t", {1}), &value, &value);
  std::thread waiter([&] { EXPECT_EQ(addend_wait(handle, -1), ADDEND_ERROR_STATE); });
  std::thread next([&] {
    uint64_t tag;
    EXPECT_EQ(addend_next_done(contexts_[0], -1, &tag), ADDEND_ERROR_STATE);
  });
  ::usleep(50000);
  addend_shutdown(contexts_[0]);
  waiter.join();
  next.join();
}

}  // namespace
}  // namespace addend
