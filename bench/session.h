// The C ABI of libaddend.so as owned values, for the benchmarks. Errors carry the ABI's code as the
// exit status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/client/addend.h"

namespace addend {

// Returns the status of an ABI call that has just returned in this thread.
absl::Status ToStatus(addend_code code);

struct HandleRelease {
  void operator()(addend_handle* handle) const { addend_release(handle); }
};
using UniqueHandle = std::unique_ptr<addend_handle, HandleRelease>;

// A process's membership in the job, from Open() to the destructor, which leaves the job cleanly.
// Tensors belong to the session.
class Session {
 public:
  // Rank and size come from torchrun's variables. `socket` may be empty.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& socket);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  absl::StatusOr<addend_tensor*> Declare(const std::string& name, int64_t elements,
                                         addend_dtype dtype, addend_op op);
  // Runs a whole round of a small tensor: declares it, push-pulls it in place, undeclares it.
  absl::Status Agree(const std::string& name, void* values, int64_t elements, addend_dtype dtype,
                     addend_op op);
  // Returns when all ranks have called it.
  absl::Status Barrier();

  int32_t rank() const { return addend_rank(context_); }
  int32_t size() const { return addend_size(context_); }

 private:
  explicit Session(addend_context* context) : context_(context) {}

  addend_context* const context_;
  addend_tensor* barrier_ = nullptr;
};

}  // namespace addend
