// Early return on a failed absl::Status; the packaged Abseil has no such macros.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define ADDEND_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status addend_status_ = (expr); !addend_status_.ok()) return addend_status_; \
  } while (false)

#define ADDEND_CONCAT_INNER(a, b) a##b
#define ADDEND_CONCAT(a, b) ADDEND_CONCAT_INNER(a, b)
#define ADDEND_ASSIGN_OR_RETURN(lhs, expr) \
  ADDEND_ASSIGN_OR_RETURN_IMPL(ADDEND_CONCAT(addend_statusor_, __LINE__), lhs, expr)
#define ADDEND_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return std::move(tmp).status();     \
  lhs = *std::move(tmp)

// Checks for a programmer's error: prints the place and the reason, then aborts.
#define ADDEND_CHECK(condition, reason) \
  ((condition) ? void(0) : ::addend::CheckFailed(__FILE__, __LINE__, #condition, reason))

namespace addend {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* reason);
}  // namespace addend
