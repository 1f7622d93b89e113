// A job's secret: a file that its members have and others do not. The first member creates the job
// with it. What travels is a proof made from it, over gRPC alone, and what the scheduler keeps is
// the proof's digest.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace addend::auth {

// Shorter ones can be guessed.
inline constexpr size_t kLeastSecretBytes = 16;

// The file's contents without white space at their end. NOT_FOUND, INVALID_ARGUMENT (too short):
// one sentence that names the file.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// What a secret lets into: a job, or, of the secret that CPU servers have, the cluster.
inline std::string OfJob(std::string_view job) { return std::string("job ").append(job); }
inline constexpr std::string_view kOfServers = "servers";
// HMAC-SHA256(secret, "addend join 1" | what): 32 bytes.
std::string JoinProof(std::string_view secret, std::string_view what);
// SHA-256; empty of an empty one: no secret was given.
std::string DigestOf(std::string_view proof);

}  // namespace addend::auth
