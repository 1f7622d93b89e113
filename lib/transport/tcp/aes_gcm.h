// AES-256-GCM, a message in as many pieces as its bytes lie in. Two libraries have it: OpenSSL, and
// Intel's IPsec-MB where it was there when Addend was built. On a processor with vector AES the
// second is more than twice as fast as OpenSSL 3.0 (docs/performance.md); newer releases may
// differ, so a process measures once, and uses the faster.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"

namespace addend::tcp {

inline constexpr size_t kAesKeyBytes = 32;
inline constexpr size_t kAesNonceBytes = 12;
inline constexpr size_t kAesTagBytes = 16;

// One direction: seals or opens. For one thread at a time.
class AesGcm {
 public:
  using Key = std::array<std::byte, kAesKeyBytes>;
  using Nonce = std::array<std::byte, kAesNonceBytes>;

  virtual ~AesGcm() = default;
  virtual void UseKey(const Key& key) = 0;
  // Begins a message. A nonce is for a single message with a key. `authenticated`: bytes that the
  // tag covers, and that stay as they are.
  virtual void Begin(const Nonce& nonce, Bytes authenticated) = 0;
  // Encrypts or decrypts the next bytes of the message. `out` has room for as many, and may be
  // where `in` is.
  virtual void Update(Bytes in, std::byte* out) = 0;
  // Ends a sealed message: writes its tag of kAesTagBytes.
  virtual void WriteTag(std::byte* tag) = 0;
  // Ends an opened message. False: this is not its tag, and no byte of the message may be used.
  virtual bool HasTag(const std::byte* tag) = 0;
};

// A library that has AES-256-GCM on this machine.
struct AesLibrary {
  std::string_view name;
  std::unique_ptr<AesGcm> (*make)(bool seals);
};

// All that this process may use; OpenSSL is the first.
std::vector<AesLibrary> AesLibraries();
// The fastest. The first call measures, for a fraction of a millisecond; any thread.
const AesLibrary& FastestAesLibrary();

}  // namespace addend::tcp
