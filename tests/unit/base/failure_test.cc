#include "lib/base/failure.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string_view>

#include "lib/base/strings.h"
#include "lib/client/addend.h"

namespace addend {
namespace {

// The C ABI and the trainers' libraries of other releases know these numbers.
static_assert(TraitsOf(FailureKind::kInvalid).addend_code == ADDEND_ERROR_INVALID);
static_assert(TraitsOf(FailureKind::kMismatch).addend_code == ADDEND_ERROR_MISMATCH);
static_assert(TraitsOf(FailureKind::kVersion).addend_code == ADDEND_ERROR_VERSION);
static_assert(TraitsOf(FailureKind::kInternal).addend_code == ADDEND_ERROR_INTERNAL);
static_assert(TraitsOf(FailureKind::kTemporary).addend_code == ADDEND_ERROR_PEER_LOST);
static_assert(TraitsOf(FailureKind::kUnreachable).addend_code == ADDEND_ERROR_UNREACHABLE);
static_assert(TraitsOf(FailureKind::kPermission).addend_code == ADDEND_ERROR_PERMISSION);
static_assert(TraitsOf(FailureKind::kResources).addend_code == ADDEND_ERROR_RESOURCES);
static_assert(TraitsOf(FailureKind::kShortage).addend_code == ADDEND_ERROR_RESOURCES);
static_assert(TraitsOf(FailureKind::kPeerLost).addend_code == ADDEND_ERROR_PEER_LOST);
static_assert(TraitsOf(FailureKind::kStalled).addend_code == ADDEND_ERROR_STALLED);

uint32_t CodeOf(const absl::Status& status) { return TraitsOf(KindOf(status)).addend_code; }

TEST(FailureTest, NewFailureHasAllOfItsKind) {
  for (const FailureTraits& traits : kFailureTable) {
    const absl::Status status = MakeFailure(traits.kind, "why");
    EXPECT_EQ(status.code(), traits.code);
    EXPECT_EQ(Message(status), "why");
    EXPECT_EQ(KindOf(status), traits.kind);
    EXPECT_EQ(ExitCodeOf(status), traits.exit_status);
    EXPECT_EQ(CauseOf(status), traits.cause);
  }
}

// Users' rules name them: podFailurePolicy, alerts, and members of other releases.
TEST(FailureTest, NumbersAndWordsStay) {
  struct Seen {
    FailureKind kind;
    int exit_status;
    std::string_view name;
    std::string_view cause;
  };
  const Seen seen[] = {{FailureKind::kInvalid, 64, "internal", "other"},
                       {FailureKind::kMismatch, 65, "mismatch", "mismatch"},
                       {FailureKind::kVersion, 66, "version", "other"},
                       {FailureKind::kInternal, 70, "internal", "other"},
                       {FailureKind::kTemporary, 75, "internal", "other"},
                       {FailureKind::kUnreachable, 76, "internal", "other"},
                       {FailureKind::kPermission, 77, "internal", "other"},
                       {FailureKind::kResources, 64, "resources", "resources"},
                       {FailureKind::kShortage, 75, "resources", "resources"},
                       {FailureKind::kPeerLost, 75, "peer_lost", "peer_lost"},
                       {FailureKind::kStalled, 75, "stalled", "stalled"}};
  EXPECT_EQ(std::size(seen), kFailureTable.size());
  for (const Seen& row : seen) {
    const FailureTraits& traits = TraitsOf(row.kind);
    EXPECT_EQ(traits.kind, row.kind) << "the table is in the order of the kinds";
    EXPECT_EQ(traits.exit_status, row.exit_status) << row.name;
    EXPECT_EQ(traits.name, row.name);
    EXPECT_EQ(traits.cause, row.cause) << row.name;
  }
}

TEST(FailureTest, StatusCodeTellsTheKindIfNoneIsAttached) {
  EXPECT_EQ(KindOf(absl::InvalidArgumentError("")), FailureKind::kInvalid);
  EXPECT_EQ(KindOf(absl::NotFoundError("")), FailureKind::kInvalid);
  EXPECT_EQ(KindOf(absl::FailedPreconditionError("")), FailureKind::kMismatch);
  EXPECT_EQ(KindOf(absl::UnauthenticatedError("")), FailureKind::kPermission);
  EXPECT_EQ(KindOf(absl::DeadlineExceededError("")), FailureKind::kTemporary);
  EXPECT_EQ(KindOf(absl::ResourceExhaustedError("")), FailureKind::kResources);
  EXPECT_EQ(KindOf(absl::DataLossError("")), FailureKind::kInternal);
  EXPECT_EQ(CauseOf(absl::FailedPreconditionError("")), "other") << "nobody has named the kind";
  EXPECT_EQ(TellFailure(absl::FailedPreconditionError("")).name, "internal");
}

TEST(FailureTest, OkIsNoFailure) {
  EXPECT_TRUE(WithKind(absl::OkStatus(), FailureKind::kVersion).ok());
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
}

TEST(FailureTest, ExitStatusOfAnotherProcessStays) {
  const absl::Status odd = WithExitStatus(absl::AbortedError(""), 42);
  EXPECT_EQ(ExitCodeOf(odd), 42);
  EXPECT_EQ(KindOf(odd), FailureKind::kInternal);
  EXPECT_EQ(KindOf(WithExitStatus(absl::AbortedError(""), 64)), FailureKind::kInvalid);
  EXPECT_EQ(KindOf(WithExitStatus(absl::AbortedError(""), 75)), FailureKind::kTemporary);
  EXPECT_EQ(KindOf(WithExitStatus(absl::ResourceExhaustedError(""), 75)), FailureKind::kShortage);
  EXPECT_EQ(KindOf(WithExitStatus(absl::ResourceExhaustedError(""), 66)), FailureKind::kVersion);
  EXPECT_EQ(ExitCodeOf(WithKind(odd, FailureKind::kPeerLost)), 75) << "the last word counts";
}

TEST(FailureTest, OtherWordsLeaveTheFailureAsItIs) {
  const absl::Status why = WithText(MakeFailure(FailureKind::kVersion, "a"), "b");
  EXPECT_EQ(Message(why), "b");
  EXPECT_EQ(KindOf(why), FailureKind::kVersion);
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ExitCodeOf(WithText(WithExitStatus(absl::AbortedError("a"), 42), "b")), 42);
}

TEST(FailureTest, MembersUnderstandEachOther) {
  for (const FailureTraits& traits : kFailureTable) {
    const ToldFailure told = TellFailure(MakeFailure(traits.kind, "why"));
    EXPECT_EQ(told.name, traits.name);
    const absl::Status heard = HearFailure(absl::AbortedError("why"), told);
    EXPECT_EQ(KindOf(heard), traits.kind);
    EXPECT_EQ(CauseOf(heard), traits.cause);
    EXPECT_EQ(ExitCodeOf(heard), traits.exit_status);
  }
}

TEST(FailureTest, NameCountsMoreThanTheExitStatus) {
  const absl::Status stalled = HearFailure(absl::AbortedError(""), {"stalled", 64});
  EXPECT_EQ(CodeOf(stalled), uint32_t{ADDEND_ERROR_STALLED});
  EXPECT_EQ(ExitCodeOf(stalled), 64);
  const absl::Status without = HearFailure(absl::AbortedError(""), {"peer_lost", 0});
  EXPECT_EQ(CodeOf(without), uint32_t{ADDEND_ERROR_PEER_LOST});
  EXPECT_EQ(CodeOf(HearFailure(absl::AbortedError(""), {"resources", 70})),
            uint32_t{ADDEND_ERROR_RESOURCES});
}

TEST(FailureTest, ExitStatusCountsForANameOfAnotherRelease) {
  const absl::Status heard = HearFailure(absl::AbortedError(""), {"eclipse", 77});
  EXPECT_EQ(CodeOf(heard), uint32_t{ADDEND_ERROR_PERMISSION});
  EXPECT_EQ(CauseOf(heard), "other");
  EXPECT_EQ(ExitCodeOf(heard), 77);
  EXPECT_EQ(CodeOf(HearFailure(absl::AbortedError(""), {"eclipse", 66})),
            uint32_t{ADDEND_ERROR_VERSION});
}

}  // namespace
}  // namespace addend
