#include "tools/addendctl/yaml_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

constexpr int kDeepest = 100;  // an alias may be inside of its own target
constexpr size_t kIndent = 2;

// yaml-cpp's tags of scalars without an explicit tag.
constexpr char kPlain[] = "?";
constexpr char kQuoted[] = "!";

bool IsMarker(const std::string& line, const char* marker) {
  return line == marker || absl::StartsWith(line, std::string(marker) + " ") ||
         absl::StartsWith(line, std::string(marker) + "\t") ||
         absl::StartsWith(line, std::string(marker) + "\r");
}

std::string Quoted(const std::string& text) {
  using nlohmann::json;  // a JSON string is a YAML string
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Returns whether a literal block, which shows scripts unchanged, can hold the text.
bool SuitsBlock(const std::string& text) {
  return text.find('\n') != std::string::npos && text[0] != ' ' && text[0] != '\n' &&
         text[0] != '\t' && std::none_of(text.begin(), text.end(), [](unsigned char c) {
           return (c < ' ' && c != '\n' && c != '\t') || c == 0x7F;
         });
}

std::string Block(const std::string& text, size_t indent) {
  const size_t end = text.find_last_not_of('\n') + 1;
  const size_t feeds = text.size() - end;
  std::string out = feeds == 0 ? "|-" : feeds == 1 ? "|" : "|+";
  const std::string body = feeds == 0 ? text : text.substr(0, text.size() - 1);
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(body, '\n'))) {
    out += '\n';
    if (!line.empty()) out += std::string(indent, ' ') + line;
  }
  return out;
}

std::string ScalarText(const YAML::Node& node, size_t indent) {
  const std::string& text = node.Scalar();
  const std::string& tag = node.Tag();
  if (tag == kPlain && text.find('\n') == std::string::npos) return text;
  if (tag != kPlain && tag != kQuoted && !tag.empty())
    return absl::StrFormat("!<%s> %s", tag, Quoted(text));
  return SuitsBlock(text) ? Block(text, indent) : Quoted(text);
}

absl::Status Unusual(const YAML::Node& node, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("line %d of the document: %s", node.Mark().line + 1, what));
}

// Appends the value after "key:" or "-"; ends with a line feed. `indent`: of the parent.
class Writer {
 public:
  absl::Status Value(const YAML::Node& node, size_t indent, int depth) {
    if (depth > kDeepest) return Unusual(node, "it is nested too deeply, or contains itself");
    if (node.IsScalar()) {
      text_ += absl::StrFormat(" %s\n", ScalarText(node, indent + kIndent));
      return absl::OkStatus();
    }
    if (node.IsNull() || !node.IsDefined()) {
      text_ += " null\n";
      return absl::OkStatus();
    }
    if (node.Tag() != kPlain && !node.Tag().empty()) return Unusual(node, "a tag is not expected");
    if (node.size() == 0) {
      text_ += node.IsMap() ? " {}\n" : " []\n";
      return absl::OkStatus();
    }
    text_ += "\n";
    // Sequences are not indented under their key, as in kubectl's output.
    return node.IsMap() ? Map(node, indent + kIndent, depth, /*first_in_place=*/false)
                        : Sequence(node, indent, depth);
  }

  // `first_in_place`: the first key follows "- " on the same line.
  absl::Status Map(const YAML::Node& node, size_t indent, int depth, bool first_in_place) {
    bool in_place = first_in_place;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Unusual(entry.first, "a key must be a plain text");
      if (!in_place) text_ += std::string(indent, ' ');
      in_place = false;
      const std::string& key = entry.first.Scalar();
      text_ += (entry.first.Tag() == kQuoted ? Quoted(key) : key) + ":";
      ADDEND_RETURN_IF_ERROR(Value(entry.second, indent, depth + 1));
    }
    return absl::OkStatus();
  }

  std::string Take() { return std::move(text_); }

 private:
  absl::Status Sequence(const YAML::Node& node, size_t indent, int depth) {
    for (const YAML::Node& item : node) {
      text_ += std::string(indent, ' ') + "-";
      if (item.IsMap() && item.size() > 0) {
        text_ += " ";
        ADDEND_RETURN_IF_ERROR(Map(item, indent + kIndent, depth + 1, /*first_in_place=*/true));
      } else {
        const size_t inner = item.IsSequence() ? indent + kIndent : indent;
        ADDEND_RETURN_IF_ERROR(Value(item, inner, depth + 1));
      }
    }
    return absl::OkStatus();
  }

  std::string text_;
};

bool Same(const YAML::Node& a, const YAML::Node& b) {
  if (a.Type() != b.Type() || a.size() != b.size()) return false;
  if (a.IsScalar()) return a.Scalar() == b.Scalar() && (a.Tag() == kPlain) == (b.Tag() == kPlain);
  if (a.IsSequence()) {
    return std::equal(a.begin(), a.end(), b.begin(),
                      [](const auto& x, const auto& y) { return Same(x, y); });
  }
  if (!a.IsMap()) return true;
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
    return x.first.Scalar() == y.first.Scalar() && Same(x.second, y.second);
  });
}

}  // namespace

std::vector<YamlDocument> SplitDocuments(const std::string& text) {
  std::vector<YamlDocument> documents(1);
  int number = 0;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    ++number;
    if (IsMarker(line, "---") || IsMarker(line, "...")) {
      // Text after the marker on its line belongs to the document.
      const bool alone = line.find_first_not_of(" \t\r", 3) == std::string::npos;
      documents.push_back({.text = alone ? "" : line.substr(3) + "\n", .line = number + alone});
    } else {
      documents.back().text += line + "\n";
    }
  }
  std::erase_if(documents, [](const YamlDocument& document) {
    return document.text.find_first_not_of(" \t\r\n") == std::string::npos;
  });
  return documents;
}

absl::StatusOr<std::string> WriteYaml(const YAML::Node& node) {
  if (!node.IsMap()) return Unusual(node, "a document must be a mapping");
  Writer writer;
  ADDEND_RETURN_IF_ERROR(writer.Map(node, 0, 0, /*first_in_place=*/false));
  std::string text = writer.Take();
  // The output is read back and compared before it is returned, since users apply it to a cluster.
  if (!Same(YAML::Load(text), node)) {
    return absl::InternalError("the YAML that was written does not read as what was meant");
  }
  return text;
}

}  // namespace addend
