#include "lib/base/ids.h"

#include <random>

namespace addend {

Incarnation NewIncarnation() {
  std::random_device device;
  const uint64_t value = uint64_t{device()} << 32 | device();
  return Incarnation(value | 1);
}

}  // namespace addend
