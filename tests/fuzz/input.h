// Values read from the front of libFuzzer's input; a target depends on nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace addend::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  // Returns zeros after the end of the input.
  template <typename T = uint8_t>
  T Take() {
    T value{};
    const std::string_view bytes = Bytes(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  bool Flag() { return (Take() & 1) != 0; }
  uint32_t Below(uint32_t limit) { return Take<uint16_t>() % limit; }
  // A number that often names an existing object: small, or arbitrary.
  template <typename T>
  T Number(T small) {
    const auto byte = Take();
    return byte < 240 ? static_cast<T>(byte % small) : Take<T>();
  }
  std::string_view Bytes(size_t most) {
    const std::string_view bytes = rest_.substr(0, most);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace addend::fuzz
