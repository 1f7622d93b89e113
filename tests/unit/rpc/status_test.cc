#include "lib/rpc/status.h"

#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

TEST(StatusTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusTest, CodeMessageAndExitCodeSurvive) {
  const absl::Status status = MakeFailure(FailureKind::kVersion, "Größe 3 ≠ 4");
  const grpc::Status sent = ToGrpc(status);
  EXPECT_EQ(sent.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const absl::Status received = FromGrpc(sent);
  EXPECT_EQ(received.code(), status.code());
  EXPECT_EQ(Message(received), "Größe 3 ≠ 4");
  EXPECT_EQ(KindOf(received), FailureKind::kVersion);
}

TEST(StatusTest, EveryCodeKeepsItsExitCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "x");
    EXPECT_EQ(FromGrpc(ToGrpc(status)).code(), status.code());
    EXPECT_EQ(ExitCodeOf(FromGrpc(ToGrpc(status))), ExitCodeOf(status));
  }
}

TEST(StatusTest, ForeignDetailsAreIgnored) {
  const absl::Status status =
      FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "x", "\xff\xff not a message"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(KindOf(status), FailureKind::kTemporary);
}

TEST(StatusTest, TheReasonIsTheLastCause) {
  EXPECT_EQ(ShortReason(absl::UnavailableError(
                "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed "
                "to connect to remote host: Connection refused")),
            "connection refused");
  EXPECT_EQ(ShortReason(absl::DeadlineExceededError("Deadline Exceeded")), "no answer");
  EXPECT_EQ(ShortReason(absl::UnavailableError("TLS error")), "TLS error");
  EXPECT_EQ(ShortReason(absl::UnavailableError("")), "no reason given");
}

}  // namespace
}  // namespace addend
