#include "lib/transport/rdma/signals.h"

#include "absl/strings/cord.h"

namespace addend::rdma {
namespace {
constexpr char kPathFailure[] = "addend/rdma-path-failure";
}  // namespace

absl::Status PathFailure(absl::Status why) {
  why.SetPayload(kPathFailure, absl::Cord());
  return why;
}

bool IsPathFailure(const absl::Status& why) { return why.GetPayload(kPathFailure).has_value(); }

}  // namespace addend::rdma
