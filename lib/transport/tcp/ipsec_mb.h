// AES-256-GCM by Intel's IPsec-MB.
#pragma once

#include <memory>

#include "lib/transport/tcp/aes_gcm.h"

namespace addend::tcp {

// The library has passed its own tests on this processor.
bool HasIpsecMb();
std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(bool seals);

}  // namespace addend::tcp
