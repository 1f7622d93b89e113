// A target whose input is a message in text form: the mutator changes the message.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>

namespace addend::fuzz {

// Implemented by each target: creates an empty input, and runs an input.
std::unique_ptr<google::protobuf::Message> NewInput();
void TakeInput(const google::protobuf::Message& input);

// Returns false if the text is not such a message.
bool ReadInput(std::string_view text, google::protobuf::Message* input);
std::string WriteInput(const google::protobuf::Message& input);

}  // namespace addend::fuzz
