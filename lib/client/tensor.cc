// The ends of operations and tensors: they return their GPU memory.
#include "lib/client/tensor.h"

#include "lib/client/device_library.h"

namespace addend::client {

Operation::~Operation() {
  if (on_device != nullptr) tensor->device->End(on_device.get());
}

Tensor::~Tensor() {
  if (device == nullptr) return;
  device->Unmap(for_device());
  if (direct != nullptr) device->Unexport(direct);
  device->Unmap(*results);
}

}  // namespace addend::client
