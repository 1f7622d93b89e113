// A target whose input is a message, as text: what is mutated is the message.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>

namespace addend::fuzz {

// The target's own: an empty input, and what is done with one.
std::unique_ptr<google::protobuf::Message> NewInput();
void TakeInput(const google::protobuf::Message& input);

// False: it is no such text.
bool ReadInput(std::string_view text, google::protobuf::Message* input);
std::string WriteInput(const google::protobuf::Message& input);

}  // namespace addend::fuzz
