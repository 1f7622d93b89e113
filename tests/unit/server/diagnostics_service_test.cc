#include "lib/server/diagnostics_service.h"

#include <gtest/gtest.h>

#include <memory>

#include "lib/rpc/client.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"

namespace addend {
namespace {

class DiagnosticsServiceTest : public testing::Test {
 protected:
  using Reader = grpc::ClientReader<v1::MeasureBandwidthChunk>;

  std::unique_ptr<Reader> Ask(grpc::ClientContext* context, uint64_t bytes) {
    v1::MeasureBandwidthRequest request;
    request.set_bytes(bytes);
    return stub_->MeasureBandwidth(context, request);
  }

  static uint64_t ReadAll(Reader* reader) {
    v1::MeasureBandwidthChunk chunk;
    uint64_t bytes = 0;
    while (reader->Read(&chunk)) bytes += chunk.data().size();
    return bytes;
  }

  DiagnosticsService service_;
  std::unique_ptr<RpcServer> server_ =
      RpcServer::Start({.listen = {"127.0.0.1", 0}}, {&service_}).value();
  std::unique_ptr<v1::Diagnostics::Stub> stub_ =
      v1::Diagnostics::NewStub(Dial((HostPort{"127.0.0.1", server_->port()}).ToString()));
};

TEST_F(DiagnosticsServiceTest, SendsWhatIsAskedForInSeveralPieces) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(5));
  const auto reader = Ask(&context, 3'000'000);
  v1::MeasureBandwidthChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_LT(chunk.data().size(), 300'000u);
  const uint64_t bytes = chunk.data().size() + ReadAll(reader.get());
  EXPECT_GE(bytes, 3'000'000u);
  EXPECT_LE(bytes, 3'300'000u);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(DiagnosticsServiceTest, SendsNoMoreThanItsLimit) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(9));
  const auto reader = Ask(&context, ~uint64_t{0});
  EXPECT_LE(ReadAll(reader.get()), 64u << 20);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(DiagnosticsServiceTest, RefusesACallWithoutADeadline) {
  grpc::ClientContext context;
  const auto reader = Ask(&context, 1);
  EXPECT_EQ(ReadAll(reader.get()), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(FromGrpc(reader->Finish())));
}

TEST_F(DiagnosticsServiceTest, MeasuresOneAtATimeAndIsFreeAgainWhenTheCallerLeaves) {
  grpc::ClientContext stuck;
  SetDeadline(&stuck, absl::Seconds(9));
  const auto first = Ask(&stuck, 0);
  v1::MeasureBandwidthChunk chunk;
  ASSERT_TRUE(first->Read(&chunk));  // it runs, and now nobody reads
  {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(5));
    const auto second = Ask(&context, 1);
    EXPECT_EQ(ReadAll(second.get()), 0u);
    EXPECT_TRUE(absl::IsResourceExhausted(FromGrpc(second->Finish())));
  }
  stuck.TryCancel();
  first->Finish();
  absl::Status status = absl::ResourceExhaustedError("");
  while (absl::IsResourceExhausted(status)) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(5));
    const auto third = Ask(&context, 1);
    ReadAll(third.get());
    status = FromGrpc(third->Finish());
  }
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace addend
