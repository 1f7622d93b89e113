// A stream of bytes that only the two ends of a link can read or change: records of AES-256-GCM by
// OpenSSL, each with its length before it. Which record it is, is part of what is signed: one that
// is missing, repeated or in another place does not open. No I/O. docs/wire-format.md.
#pragma once

#include <openssl/evp.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/bytes.h"

namespace addend::tcp {

inline constexpr size_t kRecordKeyBytes = 32;
using RecordKey = std::array<std::byte, kRecordKeyBytes>;

// In a record: so many bytes of plain text at most, and what is around them.
inline constexpr size_t kRecordBytes = 16 << 10;
inline constexpr size_t kRecordLengthBytes = 4;
inline constexpr size_t kRecordTagBytes = 16;

// The number of a record, and the cipher that knows the key. A key is for one direction of one
// link.
class RecordCipher {
 public:
  RecordCipher(const RecordKey& key, bool seals);
  // `out` has room for as many bytes. The tag is made, or checked: false if it is another.
  void Seal(Bytes length, Bytes plain, std::byte* out, std::byte* tag);
  bool Open(Bytes length, Bytes sealed, std::byte* out, const std::byte* tag);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  void Begin(Bytes length);

  const std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  const bool seals_;
  uint64_t number_ = 0;
};

class Sealer {
 public:
  explicit Sealer(const RecordKey& key) : cipher_(key, /*seals=*/true), plain_(kRecordBytes) {}
  // Appends all of these bytes to `out`, as full records and a last one.
  void Seal(const iovec* vectors, int count, std::vector<std::byte>* out);

 private:
  void SealPlain(std::vector<std::byte>* out);

  RecordCipher cipher_;
  std::vector<std::byte> plain_;  // of the next record
  size_t plain_got_ = 0;
};

class Opener {
 public:
  explicit Opener(const RecordKey& key);
  // Where the next bytes of the stream belong, and that so many are there.
  MutableBytes room() { return MutableBytes(sealed_).subspan(sealed_got_); }
  void Got(size_t bytes) { sealed_got_ += bytes; }
  // Opens the records that are whole, as long as there is room. DATA_LOSS: somebody has changed
  // one, or the peer has another key.
  absl::Status Open();
  // What is open and was not taken so far.
  bool empty() const { return taken_ == plain_got_; }
  // Copies as much of it as there is room. Returns how many bytes that are.
  size_t Take(const iovec* vectors, int count);

 private:
  RecordCipher cipher_;
  std::vector<std::byte> sealed_;
  size_t sealed_got_ = 0;
  std::vector<std::byte> plain_;
  size_t plain_got_ = 0;
  size_t taken_ = 0;
};

}  // namespace addend::tcp
