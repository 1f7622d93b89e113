#include "lib/base/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "lib/base/strings.h"

namespace addend {
namespace {

TEST(TextFile, WhiteSpaceAtItsEndIsNoPartOfTheText) {
  const std::string path = testing::TempDir() + "text_file_test";
  std::ofstream(path) << " a b\n \n";
  EXPECT_EQ(*ReadTextFile(path), " a b");
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(*ReadTextFile(path), "");
  ::unlink(path.c_str());
}

TEST(TextFile, FileThatCannotBeReadIsNamedWithTheReason) {
  const absl::Status status = ReadTextFile("/nowhere/file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "'/nowhere/file' cannot be read: No such file or directory");
}

}  // namespace
}  // namespace addend
