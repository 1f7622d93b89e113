#include "lib/auth/token.h"

#include "lib/auth/signed_text.h"

namespace addend::auth {

Secret TokenSecret(Bytes job_key, const Claim& claim) {
  SignedText text("addend token 1");
  text.Add(claim.job.value());
  text.Add(claim.generation.value());
  text.Add(claim.node.value());
  text.Add(static_cast<uint64_t>(claim.expires_unix_s));
  return Sign(job_key, text.bytes());
}

}  // namespace addend::auth
