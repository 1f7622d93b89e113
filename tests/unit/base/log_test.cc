#include "lib/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "lib/base/strings.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class LogTest : public testing::Test {
 protected:
  void SetUp() override { testing::internal::CaptureStderr(); }
  void TearDown() override {
    ASSERT_TRUE(InitLogging({.process = "test"}).ok());
    (void)testing::internal::GetCapturedStderr();
  }
  static std::vector<std::string> Lines() {
    spdlog::default_logger()->flush();
    std::vector<std::string> lines =
        absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
    testing::internal::CaptureStderr();
    return lines;
  }
};

TEST_F(LogTest, TextNamesTheProcessItsNodeAndItsJob) {
  ASSERT_TRUE(InitLogging({.process = "agent", .job = "bert", .node = 2}).ok());
  spdlog::info("a line");
  ASSERT_TRUE(InitLogging({.process = "scheduler"}).ok());
  spdlog::warn("another");
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr(" info [agent 2 of bert] a line"),
                                   HasSubstr(" warning [scheduler] another")));
}

TEST_F(LogTest, TextIsOneLinePerEventForAnyMessage) {
  ASSERT_TRUE(InitLogging({.process = "agent", .job = "a\nb", .node = 0}).ok());
  spdlog::info("reason\n2026-01-01T00:00:00.000 info [agent] forged \x1b[2J");
  PrintLine("agent", spdlog::level::critical, "gone\nforged");
  EXPECT_THAT(
      Lines(),
      ElementsAre(
          HasSubstr("[agent 0 of a\\nb] reason\\n2026-01-01T00:00:00.000 info [agent] forged "
                    "\\x1b[2J"),
          "agent: gone\\nforged"));
}

TEST_F(LogTest, JsonIsOneObjectPerLine) {
  ASSERT_TRUE(InitLogging({.process = "agent", .job = "bert", .node = 0, .format = "json"}).ok());
  spdlog::info("a line");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  const Json line = Json::parse(lines.front());
  EXPECT_TRUE(std::regex_match(line["time"].get<std::string>(),
                               std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
  Json rest = line;
  rest.erase("time");
  EXPECT_EQ(rest, Json::parse(R"({"level": "info", "process": "agent", "job": "bert", "node": 0,
                                  "message": "a line"})"));
}

TEST_F(LogTest, JsonHasNullWhereThereIsNoJob) {
  ASSERT_TRUE(InitLogging({.process = "scheduler", .format = "json"}).ok());
  spdlog::error("a line");
  const Json line = Json::parse(Lines().at(0));
  EXPECT_TRUE(line["job"].is_null());
  EXPECT_TRUE(line["node"].is_null());
}

TEST_F(LogTest, AnyMessageIsOneLineOfJson) {
  const std::string message = "quote \" backslash \\ newline \n tab \t bell \a umlaut \xc3\xbc";
  ASSERT_TRUE(InitLogging({.process = "x", .job = "\"\n", .format = "json"}).ok());
  spdlog::info("{}", message);
  spdlog::info("{}", "no UTF-8: \xff\xfe");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(Json::parse(lines[0])["message"], message);
  EXPECT_EQ(Json::parse(lines[0])["job"], "\"\n");
  EXPECT_THAT(Json::parse(lines[1])["message"].get<std::string>(), HasSubstr("no UTF-8: "));
}

TEST_F(LogTest, TheFinalErrorIsLoggedAtEveryLevel) {
  ASSERT_TRUE(InitLogging({.process = "agent", .level = "off", .format = "json"}).ok());
  spdlog::error("not seen");
  PrintLine("addend-agent", spdlog::level::critical, "Nobody is there.");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(Json::parse(lines[0])["message"], "Nobody is there.");
  EXPECT_EQ(Json::parse(lines[0])["level"], "critical");
  ASSERT_TRUE(InitLogging({.process = "agent", .level = "off"}).ok());
  PrintLine("addend-agent", spdlog::level::critical, "Nobody is there.");
  PrintLine("addend-agent", spdlog::level::warn, "A slip.");
  EXPECT_THAT(Lines(),
              ElementsAre("addend-agent: Nobody is there.", "addend-agent: warning: A slip."));
}

TEST_F(LogTest, AnUnknownLevelOrFormatIsNamed) {
  EXPECT_THAT(Message(InitLogging({.process = "x", .level = "loud"})),
              HasSubstr("--log-level=loud is not a level"));
  EXPECT_THAT(Message(InitLogging({.process = "x", .format = "xml"})),
              HasSubstr("--log-format=xml is not a format: use text or json"));
}

}  // namespace
}  // namespace addend
