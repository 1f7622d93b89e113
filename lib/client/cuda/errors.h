// Errors of the device, as readable sentences. A sentence belongs to the thread in which the error
// occurred, since several threads use an executor.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace addend::client::cuda {

class Errors {
 public:
  // `gpu`: its address on the PCI bus.
  explicit Errors(std::string gpu) : gpu_(std::move(gpu)) {}

  const std::string& gpu() const { return gpu_; }

  // Returns true for cudaSuccess; else keeps a sentence with `call` and the GPU's error, and
  // returns false.
  bool Check(cudaError_t status, const char* call) const;
  // Keeps the sentence, formatted like printf. Always returns false.
  bool Fail(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  std::string Sentence(cudaError_t status, const char* call) const;

  // This thread's last sentence.
  static const char* Text();

 private:
  const std::string gpu_;
};

}  // namespace addend::client::cuda
