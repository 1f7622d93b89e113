#include "tests/fuzz/message_target.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cstdint>

namespace addend::fuzz {
namespace {

class Silent final : public google::protobuf::io::ErrorCollector {
  void AddError(int, int, const std::string&) override {}
};

}  // namespace

bool ReadInput(std::string_view text, google::protobuf::Message* input) {
  Silent silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  return parser.ParseFromString({text.data(), text.size()}, input);
}

std::string WriteInput(const google::protobuf::Message& input) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(input, &text);
  return text;
}

}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = addend::fuzz::NewInput();
  if (!addend::fuzz::ReadInput({reinterpret_cast<const char*>(data), size}, input.get())) return -1;
  addend::fuzz::TakeInput(*input);
  return 0;
}
