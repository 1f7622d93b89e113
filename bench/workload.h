// The tensors of a benchmark line, filled with values of the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/contents.h"
#include "bench/options.h"
#include "bench/session.h"

namespace addend {

class WorkloadTensors {
 public:
  // Declares and fills the tensors. `session` must outlive this object; Drop() undeclares the
  // tensors.
  static absl::StatusOr<WorkloadTensors> Make(Session* session, const Workload& workload,
                                              const Contents& contents, bool in_place);

  size_t size() const { return tensors_.size(); }
  // Pushes a tensor, whose former result is then no longer read.
  absl::Status Push(size_t tensor, int32_t priority);
  // Waits for the result of a tensor; returns at once if it has not been pushed.
  absl::Status Wait(size_t tensor);
  // Pushes all tensors, the last first as a backward pass does, and waits for all results.
  absl::Status PushPull();
  // The checksum of the bits of the last results, in the tensors' order.
  uint64_t Checksum() const;
  absl::Status Drop();

 private:
  struct Tensor {
    addend_tensor* tensor = nullptr;  // the session's
    uint64_t elements = 0;
    float* input = nullptr;           // `own`, or the agent's memory
    std::unique_ptr<float[]> own;     // not in place: the input
    std::unique_ptr<float[]> output;  // not in place: the result
    const float* result = nullptr;
    UniqueHandle handle;  // keeps the result in place valid
  };

  static absl::StatusOr<Tensor> Declare(Session* session, const std::string& name,
                                        uint64_t elements, bool in_place);

  std::vector<Tensor> tensors_;
};

}  // namespace addend
