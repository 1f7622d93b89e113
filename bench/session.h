// The C ABI of libaddend.so as values with owners, for the benchmarks. Errors carry the code of the
// ABI as the exit status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/client/addend.h"

namespace addend {

// The status of an ABI call that has just returned in this thread.
absl::Status ToStatus(addend_code code);

struct HandleRelease {
  void operator()(addend_handle* handle) const { addend_release(handle); }
};
using UniqueHandle = std::unique_ptr<addend_handle, HandleRelease>;

// A process's part in the job, from Open() to the destructor, which says good-bye. Tensors belong
// to it.
class Session {
 public:
  // Rank and size come from torchrun's variables. `socket` may be empty.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& socket);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  absl::StatusOr<addend_tensor*> Declare(const std::string& name, int64_t elements,
                                         addend_dtype dtype, addend_op op);
  // One round of a small tensor from beginning to end: declared, push-pulled in place, undeclared.
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
