#include "lib/link/result_rooms.h"

#include <gtest/gtest.h>

#include <array>

namespace addend {
namespace {

class ResultRoomsTest : public testing::Test {
 protected:
  static FrameHeader Result(uint32_t partition, uint32_t bytes, uint32_t decoded) {
    FrameHeader header;
    header.type = FrameType::kResult;
    header.partition = PartitionId(TensorId(1), partition);
    header.payload_bytes = bytes;
    header.uncompressed_bytes = decoded;
    header.encoding = bytes < decoded ? Encoding::kBlocks : Encoding::kRaw;
    return header;
  }
  MutableBytes Place(const FrameHeader& header) { return *rooms_.Place(header, memory_); }

  std::array<std::byte, 1000> memory_;
  ResultRooms rooms_;
};

TEST_F(ResultRoomsTest, ARawResultGoesStraightIntoItsRoom) {
  const FrameHeader header = Result(0, 1000, 1000);
  EXPECT_EQ(Place(header).data(), memory_.data());
  EXPECT_TRUE(rooms_.IsReceiving(header.partition));
  EXPECT_EQ(rooms_.Take(header.partition), nullptr);
  EXPECT_FALSE(rooms_.IsReceiving(header.partition));
}

TEST_F(ResultRoomsTest, AnEncodedResultGoesIntoABufferThatIsUsedAgain) {
  const FrameHeader header = Result(0, 300, 1000);
  const MutableBytes first = Place(header);
  EXPECT_EQ(first.size(), 300u);
  EXPECT_NE(first.data(), memory_.data());
  auto buffer = rooms_.Take(header.partition);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(buffer->memory().data(), first.data());
  rooms_.Reuse(std::move(buffer));
  EXPECT_EQ(Place(Result(1, 900, 1000)).data(), first.data());
}

TEST_F(ResultRoomsTest, EncodedResultsOfABundleHaveBuffersOfTheirOwn) {
  const MutableBytes first = Place(Result(0, 300, 1000));
  const MutableBytes second = Place(Result(1, 300, 1000));
  EXPECT_NE(first.data(), second.data());
}

TEST_F(ResultRoomsTest, ALostConnectionReceivesNothing) {
  Place(Result(0, 300, 1000));
  Place(Result(1, 1000, 1000));
  rooms_.Clear();
  EXPECT_FALSE(rooms_.IsReceiving(PartitionId(TensorId(1), 0)));
  EXPECT_EQ(rooms_.Take(PartitionId(TensorId(1), 1)), nullptr);
}

}  // namespace
}  // namespace addend
