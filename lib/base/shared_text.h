// A text that many objects have in common and none changes: a copy costs a pointer.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace addend {

class SharedText {
 public:
  SharedText() = default;
  // Implicit: a text takes the place of a std::string in a struct.
  SharedText(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  const std::string& str() const {
    static const std::string empty;
    return text_ == nullptr ? empty : *text_;
  }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace addend
