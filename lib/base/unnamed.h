// The names that the Python package gives to operations which the caller has not named. Ranks
// call the operations of a group in the same order (python/addend/torch/_names.py, _backend.py).
// Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace addend {

// The beginning of the name that all operations of its group share: "addend.unnamed/", or of some
// ranks "addend.unnamed_in_set/2/" and "torch.distributed/1.0/". "": the caller has given the name.
constexpr std::string_view GroupOfUnnamed(std::string_view name) {
  constexpr std::string_view kUnnamed = "addend.unnamed/";
  if (name.starts_with(kUnnamed)) return name.substr(0, kUnnamed.size());
  for (const std::string_view of_some : {"addend.unnamed_in_set/", "torch.distributed/"}) {
    if (!name.starts_with(of_some)) continue;
    const size_t end = name.find('/', of_some.size());
    return end == std::string_view::npos ? "" : name.substr(0, end + 1);
  }
  return "";
}

}  // namespace addend
