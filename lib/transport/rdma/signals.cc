#include "lib/transport/rdma/signals.h"

#include "absl/strings/cord.h"

namespace addend::rdma {
namespace {
constexpr char kPathFailure[] = "addend/rdma-path-failure";
constexpr char kSaidByPeer[] = "addend/rdma-said-by-peer";
}  // namespace

absl::Status PathFailure(absl::Status why) {
  why.SetPayload(kPathFailure, absl::Cord());
  return why;
}

bool IsPathFailure(const absl::Status& why) { return why.GetPayload(kPathFailure).has_value(); }

absl::Status SaidByPeer(absl::Status why) {
  why.SetPayload(kSaidByPeer, absl::Cord());
  return why;
}

bool IsSaidByPeer(const absl::Status& why) { return why.GetPayload(kSaidByPeer).has_value(); }

}  // namespace addend::rdma
