#include "bench/address_book.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace addend {

std::optional<uint16_t> ReadPort(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  const nlohmann::json ports = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!ports.is_object() || !ports.contains(key) || !ports[key].is_number_unsigned()) {
    return std::nullopt;
  }
  return ports[key].get<uint16_t>();
}

}  // namespace addend
