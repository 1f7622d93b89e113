#include "bench/workload.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"

namespace addend {

absl::StatusOr<WorkloadTensors> WorkloadTensors::Make(Session* session, const Workload& workload,
                                                      const Contents& contents, bool in_place) {
  WorkloadTensors result;
  uint64_t position = 0;
  for (size_t i = 0; i < workload.tensor_bytes.size(); ++i) {
    const uint64_t elements = workload.tensor_bytes[i] / sizeof(float);
    ADDEND_ASSIGN_OR_RETURN(
        Tensor tensor,
        Declare(session, absl::StrFormat("bench/%s/%d", workload.name, i), elements, in_place));
    contents.Fill(tensor.input, elements, position);
    position = Contents::Next(position, elements);
    result.tensors_.push_back(std::move(tensor));
  }
  return result;
}

absl::StatusOr<WorkloadTensors::Tensor> WorkloadTensors::Declare(Session* session,
                                                                 const std::string& name,
                                                                 uint64_t elements, bool in_place) {
  Tensor tensor;
  tensor.elements = elements;
  ADDEND_ASSIGN_OR_RETURN(tensor.tensor, session->Declare(name, static_cast<int64_t>(elements),
                                                          ADDEND_FLOAT32, ADDEND_SUM));
  if (in_place) {
    void* data = nullptr;
    ADDEND_RETURN_IF_ERROR(ToStatus(addend_alloc(tensor.tensor, &data, nullptr)));
    tensor.input = static_cast<float*>(data);
  } else {
    tensor.own = std::make_unique<float[]>(elements);
    tensor.output = std::make_unique<float[]>(elements);
    tensor.input = tensor.own.get();
  }
  return tensor;
}

absl::Status WorkloadTensors::Push(size_t index, int32_t priority) {
  Tensor& tensor = tensors_[index];
  tensor.handle.reset();
  addend_handle* handle = nullptr;
  ADDEND_RETURN_IF_ERROR(ToStatus(
      addend_push_pull(tensor.tensor, tensor.input, tensor.output.get(), priority, &handle)));
  tensor.handle.reset(handle);
  return absl::OkStatus();
}

absl::Status WorkloadTensors::Wait(size_t index) {
  Tensor& tensor = tensors_[index];
  if (tensor.handle == nullptr) return absl::OkStatus();
  ADDEND_RETURN_IF_ERROR(ToStatus(addend_wait(tensor.handle.get(), -1)));
  tensor.result = tensor.output ? tensor.output.get()
                                : static_cast<const float*>(addend_result(tensor.handle.get()));
  return absl::OkStatus();
}

absl::Status WorkloadTensors::PushPull() {
  for (size_t i = tensors_.size(); i-- > 0;) {
    // The next forward pass needs the first tensors first.
    ADDEND_RETURN_IF_ERROR(Push(i, -static_cast<int32_t>(i)));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) ADDEND_RETURN_IF_ERROR(Wait(i));
  return absl::OkStatus();
}

uint64_t WorkloadTensors::Checksum() const {
  uint64_t hash = 0xCBF29CE484222325;
  for (const Tensor& tensor : tensors_) {
    for (uint64_t i = 0; i < tensor.elements; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &tensor.result[i], sizeof(bits));
      hash = (hash ^ bits) * 0x100000001B3;
    }
  }
  return hash;
}

absl::Status WorkloadTensors::Drop() {
  for (Tensor& tensor : tensors_) {
    tensor.handle.reset();
    ADDEND_RETURN_IF_ERROR(ToStatus(addend_undeclare(tensor.tensor)));
  }
  tensors_.clear();
  return absl::OkStatus();
}

}  // namespace addend
