#include "lib/server/trace_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <list>
#include <memory>

#include "lib/base/strings.h"
#include "lib/rpc/client.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

class TraceServiceTest : public testing::Test {
 protected:
  // A call that has begun.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::TraceChunk>> reader;
  };
  void Ask(Call* call, absl::Duration timeout) {
    if (timeout < absl::InfiniteDuration()) SetDeadline(&call->context, timeout);
    v1::GetTraceRequest request;
    request.set_job_id(1);
    call->reader = stub_->GetTrace(&call->context, request);
  }
  static absl::Status End(Call* call) {
    for (v1::TraceChunk chunk; call->reader->Read(&chunk);) {
    }
    return FromGrpc(call->reader->Finish());
  }

  static constexpr int kTracesAtOnce = 8;
  std::latch begun_{kTracesAtOnce};  // the first calls
  std::atomic<int> calls_ = 0;
  std::promise<void> answer_;  // every call waits for it
  const std::shared_future<void> answered_ = answer_.get_future().share();
  std::unique_ptr<Engine> engine_ = Engine::Create({}).value();
  TraceService service_{engine_.get(), [this](JobId, uint64_t, v1::TraceChunk*) {
                          if (calls_++ < kTracesAtOnce) begun_.count_down();
                          answered_.wait_for(std::chrono::seconds(20));
                        }};
  std::unique_ptr<RpcServer> server_ =
      RpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service_}).value();
  std::unique_ptr<v1::Trace::Stub> stub_ =
      v1::Trace::NewStub(Dial((HostPort{"127.0.0.1", server_->port()}).ToString()));
};

TEST_F(TraceServiceTest, ACallWithoutADeadlineIsRefused) {
  answer_.set_value();
  for (const absl::Duration timeout : {absl::InfiniteDuration(), absl::Seconds(90)}) {
    Call call;
    Ask(&call, timeout);
    const absl::Status status = End(&call);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("a deadline of at most 60 seconds"));
  }
  Call call;
  Ask(&call, absl::Seconds(59));
  EXPECT_TRUE(End(&call).ok());
}

TEST_F(TraceServiceTest, AFewCallersReadAtATime) {
  std::list<Call> calls(kTracesAtOnce);
  for (Call& call : calls) Ask(&call, absl::Seconds(50));
  begun_.wait();
  Call another;
  Ask(&another, absl::Seconds(50));
  const absl::Status refused = End(&another);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("ask again in a second"));
  answer_.set_value();
  for (Call& call : calls) EXPECT_TRUE(End(&call).ok());
  Call after;
  Ask(&after, absl::Seconds(50));
  EXPECT_TRUE(End(&after).ok()) << "calls that have ended make room";
}

}  // namespace
}  // namespace addend
