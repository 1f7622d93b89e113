#include "tools/addendctl/yaml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace addend {
namespace {

using ::testing::HasSubstr;

std::string Rewritten(const std::string& yaml) { return WriteYaml(YAML::Load(yaml)).value(); }

TEST(YamlTextTest, DocumentsAreSplitWithTheirLines) {
  const auto documents =
      SplitDocuments("# first\na: 1\n---\n\n---\nb: |\n  --- text\n--- {c: 3}\n");
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[0].text, "# first\na: 1\n");
  EXPECT_EQ(documents[0].line, 1);
  EXPECT_EQ(documents[1].text, "b: |\n  --- text\n");
  EXPECT_EQ(documents[1].line, 6);
  EXPECT_EQ(documents[2].text, " {c: 3}\n");
  EXPECT_EQ(documents[2].line, 8);
}

TEST(YamlTextTest, QuotedTextsStayQuoted) {
  EXPECT_EQ(Rewritten("a: \"0\"\nb: 0\nc: 'yes'\nd: yes\ne: ''\nf: ~\n"),
            "a: \"0\"\nb: 0\nc: \"yes\"\nd: yes\ne: \"\"\nf: null\n");
}

TEST(YamlTextTest, ScriptsStayReadable) {
  const std::string script = "a: |\n  one\n    two # three\n\n  four: \"5\"\nb: x\n";
  EXPECT_EQ(Rewritten(script), script);
  EXPECT_EQ(Rewritten("a: |-\n  one\n  two\n"), "a: |-\n  one\n  two\n");
  EXPECT_EQ(Rewritten("a: |+\n  one\n\nb: x\n"), "a: |+\n  one\n\nb: x\n");
}

TEST(YamlTextTest, CollectionsOfEveryKindAreWrittenInBlocks) {
  EXPECT_EQ(Rewritten("{a: [], b: {}, c: [{d: 1, e: [2]}, [3]]}"),
            "a: []\nb: {}\nc:\n- d: 1\n  e:\n  - 2\n-\n  - 3\n");
}

TEST(YamlTextTest, TextsThatNeedQuotesSurvive) {
  const std::string text = R"(a: "tab\there, \"quotes\", \\ and \u00e4"
b: "- no list"
"c: d": 1
)";
  const YAML::Node again = YAML::Load(Rewritten(text));
  EXPECT_EQ(again["a"].as<std::string>(), "tab\there, \"quotes\", \\ and \u00e4");
  EXPECT_EQ(again["b"].as<std::string>(), "- no list");
  EXPECT_EQ(again["c: d"].as<int>(), 1);
}

TEST(YamlTextTest, AnchorsAreWrittenOut) {
  EXPECT_EQ(Rewritten("a: &x {b: 1}\nc: *x\n"), "a:\n  b: 1\nc:\n  b: 1\n");
}

TEST(YamlTextTest, DocumentsThatAreNotObjectsAreRefused) {
  EXPECT_FALSE(WriteYaml(YAML::Load("[1, 2]")).ok());
  EXPECT_FALSE(WriteYaml(YAML::Load("? [a]\n: 1\n")).ok());
}

}  // namespace
}  // namespace addend
