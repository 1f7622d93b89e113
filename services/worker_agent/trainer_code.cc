// Maps failures to the codes of the C ABI.
#include "services/worker_agent/trainer_code.h"

#include "lib/base/exit_codes.h"
#include "lib/client/addend.h"

namespace addend {

uint32_t TrainerCode(const absl::Status& why, const std::string& kind) {
  if (ExitCodeOf(why) == kExitVersion) return ADDEND_ERROR_VERSION;
  if (kind == "stalled") return ADDEND_ERROR_STALLED;
  if (kind == "peer_lost") return ADDEND_ERROR_PEER_LOST;
  if (kind == "mismatch") return ADDEND_ERROR_MISMATCH;
  if (kind == "resources" || absl::IsResourceExhausted(why)) return ADDEND_ERROR_RESOURCES;
  // The other codes of the C ABI are the exit codes.
  return static_cast<uint32_t>(ExitCodeOf(why));
}

}  // namespace addend
