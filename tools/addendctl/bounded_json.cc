#include "tools/addendctl/bounded_json.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

using nlohmann::json;

// Counts what a text has, without keeping anything of it.
class ValueCounter final : public json::json_sax_t {
 public:
  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool key(string_t&) override { return Count(); }
  bool start_object(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    fault_ = absl::StrFormat("is no JSON: byte %d is not expected", position);
    return false;
  }

  // Empty: nothing is wrong.
  const std::string& fault() const { return fault_; }

 private:
  bool Count() {
    if (++values_ <= kMaxJsonValues) return true;
    fault_ = absl::StrFormat("has more than %d values", kMaxJsonValues);
    return false;
  }
  bool Open() {
    if (++depth_ <= kMaxJsonDepth) return Count();
    fault_ = absl::StrFormat("is nested more than %d deep", kMaxJsonDepth);
    return false;
  }
  bool Close() {
    --depth_;
    return true;
  }

  size_t values_ = 0;
  size_t depth_ = 0;
  std::string fault_;
};

}  // namespace

absl::StatusOr<json> ParseBoundedJson(const char* name, const std::string& text) {
  ValueCounter counter;
  if (!json::sax_parse(text, &counter)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s %s", name, counter.fault()));
  }
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is no JSON", name));
  }
  return parsed;
}

const json& JsonAt(const json& object, const char* key) {
  static const json* const null = new json;
  if (!object.is_object()) return *null;
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}

}  // namespace addend
