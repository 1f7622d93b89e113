#include "services/scheduler/store/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/failure.h"
#include "lib/base/version.h"
#include "proto/addend/v1/scheduler_store.pb.h"

namespace addend {
namespace {

StoreEntry Format(uint32_t version) {
  v1::FormatRecord record;
  record.set_version(version);
  return {"format", record.SerializeAsString()};
}

TEST(FormatTest, NewStoreRecordsThePresentVersion) {
  EXPECT_TRUE(CheckFormat("memory", {}).ok());
  const auto write = FormatToWrite({});
  ASSERT_TRUE(write.has_value());
  const StoreEntry written{write->key, *write->value};
  EXPECT_EQ(written, Format(protocol::kStore.newest));
  EXPECT_TRUE(CheckFormat("memory", {&written, 1}).ok());
  EXPECT_FALSE(FormatToWrite({&written, 1}).has_value());
}

TEST(FormatTest, NewerStoreIsRefusedWithBothVersions) {
  const StoreEntry newer = Format(protocol::kStore.newest + 1);
  const absl::Status status = CheckFormat("sqlite:/x", {&newer, 1});
  EXPECT_EQ(KindOf(status), FailureKind::kVersion);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("sqlite:/x"), testing::HasSubstr("version 2"),
                             testing::HasSubstr("version 1")));
}

TEST(FormatTest, DamagedFormatIsNamed) {
  const StoreEntry damaged{"format", "\xff"};
  EXPECT_EQ(CheckFormat("memory", {&damaged, 1}).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace addend
