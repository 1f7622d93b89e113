#include "lib/client/cuda/errors.h"

#include <cstdarg>
#include <cstdio>

namespace addend::client::cuda {
namespace {

thread_local char last_sentence[1024] = "";

}  // namespace

std::string Errors::Sentence(cudaError_t status, const char* call) const {
  char text[768];
  std::snprintf(text, sizeof(text),
                "GPU %s: %s failed with %s (%s); where the driver has noted an XID, dmesg shows it",
                gpu_.c_str(), call, cudaGetErrorName(status), cudaGetErrorString(status));
  return text;
}

bool Errors::Check(cudaError_t status, const char* call) const {
  if (status == cudaSuccess) return true;
  return Fail("%s", Sentence(status, call).c_str());
}

bool Errors::Fail(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_sentence, sizeof(last_sentence), format, arguments);
  va_end(arguments);
  return false;
}

const char* Errors::Text() { return last_sentence; }

}  // namespace addend::client::cuda
