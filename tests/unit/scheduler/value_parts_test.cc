#include "services/scheduler/store/value_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lib/base/strings.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class ValuePartsTest : public testing::Test {
 protected:
  void Write(const std::string& key, std::optional<std::string> value) {
    for (const StoreWrite& write : parts_.Split({key, std::move(value)})) {
      if (write.value.has_value()) {
        held_[write.key] = *write.value;
      } else {
        held_.erase(write.key);
      }
    }
  }
  absl::StatusOr<std::vector<StoreEntry>> Load() {
    return parts_.Join("the store", {held_.begin(), held_.end()});
  }

  ValueParts parts_{4};
  std::map<std::string, std::string> held_;
};

TEST_F(ValuePartsTest, LeavesSmallValuesAsTheyAre) {
  Write("a/1", "1234");
  Write("a/10", "");
  EXPECT_THAT(held_, ElementsAre(Pair("a/1", "1234"), Pair("a/10", "")));
  EXPECT_THAT(*Load(), ElementsAre(Pair("a/1", "1234"), Pair("a/10", "")));
}

TEST_F(ValuePartsTest, SplitValuesAreJoinedAgain) {
  Write("a/1", "123456789");
  Write("a/10", "x");
  EXPECT_THAT(held_, ElementsAre(Pair("a/1", "1234"), Pair("a/1#000001", "5678"),
                                 Pair("a/1#000002", "9"), Pair("a/10", "x")));
  EXPECT_THAT(*Load(), ElementsAre(Pair("a/1", "123456789"), Pair("a/10", "x")));
}

TEST_F(ValuePartsTest, LeavesNoPartOfAFormerValue) {
  Write("a", "123456789");
  Write("a", "12345");
  EXPECT_THAT(held_, ElementsAre(Pair("a", "1234"), Pair("a#000001", "5")));
}

TEST_F(ValuePartsTest, PartsOfLoadedValuesAreKnown) {
  Write("a", "123456789");
  Write("b", "123456789");
  ValueParts other(4);
  ASSERT_TRUE(other.Join("the store", {held_.begin(), held_.end()}).ok());
  EXPECT_EQ(other.Split({"a", std::nullopt}).size(), 3u);
  EXPECT_EQ(other.Split({"a", std::nullopt}).size(), 1u) << "they are gone";
  EXPECT_EQ(other.Split({"b", "1"}).size(), 3u);
}

TEST_F(ValuePartsTest, MissingPartIsNamed) {
  Write("a", "123456789");
  held_.erase("a#000001");
  EXPECT_THAT(Message(Load().status()), HasSubstr("the store: the key 'a#000002' is a part"));
  held_.erase("a");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace addend
