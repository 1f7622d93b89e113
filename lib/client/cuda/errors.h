// What went wrong with the device, in one sentence for people. The sentence belongs to the thread
// in which it happened, since several threads use an executor.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace addend::client::cuda {

class Errors {
 public:
  // `gpu`: its place on the PCI bus.
  explicit Errors(std::string gpu) : gpu_(std::move(gpu)) {}

  const std::string& gpu() const { return gpu_; }

  // True for cudaSuccess; else keeps a sentence with `call`, what the GPU said, and false.
  bool Check(cudaError_t status, const char* call) const;
  // Keeps the sentence, as printf would print it. Always false.
  bool Fail(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  std::string Sentence(cudaError_t status, const char* call) const;

  // This thread's last one.
  static const char* Text();

 private:
  const std::string gpu_;
};

}  // namespace addend::client::cuda
