#include "lib/auth/job_proof.h"

#include <openssl/evp.h>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/auth/signed_text.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/base/text_file.h"

namespace addend::auth {

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  auto secret = ReadTextFile(path);
  if (!secret.ok()) return WithText(secret.status(), "the secret in " + Message(secret.status()));
  if (secret->size() < kLeastSecretBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the secret in '%s' has %d bytes, and less than %d can be guessed: make one with 'openssl "
        "rand -hex 32'",
        path, secret->size(), kLeastSecretBytes));
  }
  return secret;
}

std::string JoinProof(std::string_view secret, std::string_view subject) {
  const SignedText label("addend join 1");
  std::string text(TextOf(label.bytes()));
  text.append(subject);
  return std::string(TextOf(Sign(BytesOf(secret), BytesOf(text))));
}

std::string DigestOf(std::string_view proof) {
  if (proof.empty()) return "";
  Secret digest;
  unsigned int size = 0;
  const int made =
      EVP_Digest(proof.data(), proof.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 EVP_sha256(), nullptr);
  ADDEND_CHECK(made == 1 && size == digest.size(), "SHA-256 is not available");
  return std::string(TextOf(digest));
}

}  // namespace addend::auth
