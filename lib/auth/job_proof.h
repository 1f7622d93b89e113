// A job's secret: a file that only the job's members have. The first member creates the job with
// it. Members send a proof made from the secret, over gRPC alone, and the scheduler keeps only the
// proof's digest.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace addend::auth {

// Shorter secrets can be guessed.
inline constexpr size_t kLeastSecretBytes = 16;

// Reads the file without trailing white space. NOT_FOUND, INVALID_ARGUMENT (too short): a sentence
// that names the file.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// The subjects of a proof: a job, or the cluster, which CPU servers join with a secret of their
// own.
inline std::string OfJob(std::string_view job) { return std::string("job ").append(job); }
inline constexpr std::string_view kOfServers = "servers";
// HMAC-SHA256(secret, "addend join 1" | subject): 32 bytes.
std::string JoinProof(std::string_view secret, std::string_view subject);
// SHA-256. An empty proof has an empty digest: no secret was given.
std::string DigestOf(std::string_view proof);

}  // namespace addend::auth
