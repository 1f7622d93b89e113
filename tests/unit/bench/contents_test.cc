#include "bench/contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

namespace addend {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ContentsTest : public ::testing::Test {
 protected:
  ContentsTest() { std::filesystem::create_directories(folder_); }
  ~ContentsTest() override { std::filesystem::remove_all(folder_); }

  // Writes a recording with the numbers from `first` on.
  std::string Record(const std::string& name, float first, size_t elements) const {
    std::vector<float> values(elements);
    std::iota(values.begin(), values.end(), first);
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(elements * sizeof(float)));
    return path;
  }

  const std::string folder_ = ::testing::TempDir() + "/contents_test." + std::to_string(getpid());
};

std::vector<float> Filled(const Contents& contents, uint64_t elements, uint64_t position) {
  std::vector<float> values(elements);
  contents.Fill(values.data(), elements, position);
  return values;
}

TEST_F(ContentsTest, RandomValuesDependOnTheRank) {
  const auto first = Contents::Read("", 0);
  const auto second = Contents::Read("", 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(Filled(*first, 100, 0), Filled(*first, 100, 0));
  EXPECT_NE(Filled(*first, 100, 0), Filled(*second, 100, 0));
}

TEST_F(ContentsTest, FolderHasAFilePerRank) {
  Record("rank0.f32", 0, 64);
  Record("rank1.f32", 1000, 64);
  const auto contents = Contents::Read(folder_, 1);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(Filled(*contents, 3, 0), ElementsAre(1000, 1001, 1002));
}

TEST_F(ContentsTest, FileIsForEveryRank) {
  const std::string path = Record("all", 5, 64);
  for (const int32_t rank : {0, 7}) {
    const auto contents = Contents::Read(path, rank);
    ASSERT_TRUE(contents.ok()) << contents.status();
    EXPECT_THAT(Filled(*contents, 1, 0), Each(5));
  }
}

TEST_F(ContentsTest, RecordingRepeats) {
  const auto contents = Contents::Read(Record("all", 0, 128), 0);
  ASSERT_TRUE(contents.ok());
  const std::vector<float> values = Filled(*contents, 300, 64);
  EXPECT_EQ(values[0], 64);
  EXPECT_EQ(values[63], 127);
  EXPECT_EQ(values[64], 0);
  EXPECT_EQ(values[299], static_cast<float>((64 + 299) % 128));
}

TEST_F(ContentsTest, TensorsBeginAtBlocks) {
  EXPECT_EQ(Contents::Next(0, 64), 64);
  EXPECT_EQ(Contents::Next(64, 1), 128);
  EXPECT_EQ(Contents::Next(64, 65), 192);
}

TEST_F(ContentsTest, ErrorsNameThePath) {
  EXPECT_THAT(CheckContentsPath("/nonexistent").message(), HasSubstr("--contents=/nonexistent"));
  Record("rank0.f32", 0, 64);
  EXPECT_THAT(Contents::Read(folder_, 1).status().message(), HasSubstr("rank1.f32"));
  EXPECT_THAT(Contents::Read(Record("odd", 0, 63), 0).status().message(), HasSubstr("252 bytes"));
  EXPECT_THAT(Contents::Read(Record("empty", 0, 0), 0).status().message(), HasSubstr("0 bytes"));
}

}  // namespace
}  // namespace addend
