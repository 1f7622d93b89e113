// CRC-32C (Castagnoli), as in iSCSI: of frame headers always, of payloads if --payload-crc asks for
// it.
#pragma once

#include <cstdint>

#include "lib/base/bytes.h"

namespace addend {

uint32_t Crc32c(Bytes data);

}  // namespace addend
