#include "services/scheduler/written_updates.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

TEST(WrittenUpdatesTest, UpdateToManyNodesIsWrittenDownOnce) {
  v1::NodeUpdate update;
  update.set_generation(7);
  update.add_servers()->set_hostname("cpu1");
  const v1::NodeUpdate same = update;
  WrittenUpdates written;
  const auto bytes = written.Of(update);
  EXPECT_EQ(written.Of(update), bytes) << "to all nodes the same memory";
  EXPECT_NE(written.Of(same), bytes);
  grpc::ByteBuffer read = *bytes;
  v1::NodeUpdate got;
  ASSERT_TRUE(grpc::SerializationTraits<v1::NodeUpdate>::Deserialize(&read, &got).ok());
  EXPECT_EQ(got.SerializeAsString(), update.SerializeAsString());
}

}  // namespace
}  // namespace addend
