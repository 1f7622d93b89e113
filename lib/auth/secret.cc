#include "lib/auth/secret.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "lib/base/status_macros.h"

namespace addend::auth {

Secret NewSecret() {
  Secret secret;
  const int made =
      RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(secret.size()));
  ADDEND_CHECK(made == 1, "a secret that can be guessed is worse than none");
  return secret;
}

Secret Sign(Bytes key, Bytes message) {
  Secret signature;
  unsigned int size = 0;
  const unsigned char* const done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(signature.data()), &size);
  ADDEND_CHECK(done != nullptr && size == signature.size(), "HMAC-SHA256 is not available");
  return signature;
}

bool Same(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace addend::auth
