// The keys of the scheduler's records. Numbers have a fixed width, so that the store's order within
// a kind of record is the numbers' order.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace addend::records {

inline constexpr char kFormat[] = "format";
inline constexpr char kIds[] = "ids";
inline constexpr char kServerPrefix[] = "server/";
inline constexpr char kJobPrefix[] = "job/";
inline constexpr char kAgreementPrefix[] = "agreement/";
inline constexpr char kNodePrefix[] = "node/";
inline constexpr char kPlanPrefix[] = "plan/";

inline std::string ServerKey(uint32_t server_id) {
  return absl::StrFormat("%s%010d", kServerPrefix, server_id);
}
inline std::string JobKey(uint64_t job_id) {
  return absl::StrFormat("%s%020d", kJobPrefix, job_id);
}
inline std::string NodeKey(uint64_t job_id, uint32_t node_rank) {
  return absl::StrFormat("%s%020d/%010d", kNodePrefix, job_id, node_rank);
}
inline std::string AgreementKey(uint64_t job_id, uint64_t agreement) {
  return absl::StrFormat("%s%020d/%020d", kAgreementPrefix, job_id, agreement);
}
inline std::string PlanKey(uint64_t job_id, uint64_t agreement) {
  return absl::StrFormat("%s%020d/%020d", kPlanPrefix, job_id, agreement);
}

}  // namespace addend::records
