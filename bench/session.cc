#include "bench/session.h"

#include "lib/base/failure.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

absl::Status PushAndWait(addend_tensor* tensor, void* values) {
  addend_handle* raw = nullptr;
  ADDEND_RETURN_IF_ERROR(ToStatus(addend_push_pull(tensor, values, values, 0, &raw)));
  const UniqueHandle handle(raw);
  return ToStatus(addend_wait(raw, -1));
}

}  // namespace

absl::Status ToStatus(addend_code code) {
  if (code == ADDEND_OK) return absl::OkStatus();
  return WithExitStatus(absl::AbortedError(addend_last_error()), code);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const std::string& socket) {
  addend_options options{};
  options.struct_size = sizeof(options);
  options.socket = socket.empty() ? nullptr : socket.c_str();
  options.rank = options.size = options.local_rank = options.local_size = -1;
  addend_context* context = nullptr;
  ADDEND_RETURN_IF_ERROR(ToStatus(addend_init(&options, &context)));
  std::unique_ptr<Session> session(new Session(context));
  ADDEND_ASSIGN_OR_RETURN(session->barrier_,
                          session->Declare("bench/barrier", 1, ADDEND_INT32, ADDEND_SUM));
  return session;
}

Session::~Session() { addend_shutdown(context_); }

absl::StatusOr<addend_tensor*> Session::Declare(const std::string& name, int64_t elements,
                                                addend_dtype dtype, addend_op op) {
  addend_tensor* tensor = nullptr;
  ADDEND_RETURN_IF_ERROR(
      ToStatus(addend_declare(context_, name.c_str(), &elements, 1, dtype, op, &tensor)));
  return tensor;
}

absl::Status Session::Agree(const std::string& name, void* values, int64_t elements,
                            addend_dtype dtype, addend_op op) {
  ADDEND_ASSIGN_OR_RETURN(addend_tensor* const tensor, Declare(name, elements, dtype, op));
  ADDEND_RETURN_IF_ERROR(PushAndWait(tensor, values));
  return ToStatus(addend_undeclare(tensor));
}

absl::Status Session::Barrier() {
  int32_t one = 1;
  return PushAndWait(barrier_, &one);
}

}  // namespace addend
