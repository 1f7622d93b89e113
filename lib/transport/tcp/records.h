// A stream of bytes that only the two ends of a link can read or change: records of AES-256-GCM by
// OpenSSL, each behind its length. The number of a record is authenticated with it: a missing,
// repeated or moved record does not open. No I/O. docs/wire-format.md.
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

// Sizes in a record: the plain text (at most), the length before it and the tag behind it.
inline constexpr size_t kRecordBytes = 16 << 10;
inline constexpr size_t kRecordLengthBytes = 4;
inline constexpr size_t kRecordTagBytes = 16;

// After this number of records both ends switch to the next key, derived from the former key by
// HMAC-SHA256: at most 64 MiB are encrypted with a key, far below the 2^24.5 records that RFC 8446
// (5.5) sets for AES-GCM, and an attacker with a key cannot read the records of former keys. Part
// of the wire format: both ends count alike.
inline constexpr uint64_t kRecordsPerKey = 1 << 12;

// Encrypts or decrypts numbered records. A key is for one direction of a link, and for
// `records_per_key` records.
class RecordCipher {
 public:
  RecordCipher(const RecordKey& key, bool seals, uint64_t records_per_key);
  ~RecordCipher();
  // `out` has room for the bytes of the second argument. Seal() writes the tag; Open() checks it
  // and returns false if it does not match.
  void Seal(Bytes length, Bytes plain, std::byte* out, std::byte* tag);
  bool Open(Bytes length, Bytes sealed, std::byte* out, const std::byte* tag);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  void UseKey();
  void Begin(Bytes length);

  RecordKey key_;
  const uint64_t records_per_key_;
  const std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  const bool seals_;
  uint64_t number_ = 0;  // of the record, since the last change of key
};

class Sealer {
 public:
  explicit Sealer(const RecordKey& key, uint64_t records_per_key = kRecordsPerKey)
      : cipher_(key, /*seals=*/true, records_per_key), plain_(kRecordBytes) {}
  // Appends all of these bytes to `out`, as full records and a shorter record for the rest.
  void Seal(const iovec* vectors, int count, std::vector<std::byte>* out);

 private:
  void SealPlain(std::vector<std::byte>* out);

  RecordCipher cipher_;
  std::vector<std::byte> plain_;  // of the next record
  size_t plain_got_ = 0;
};

class Opener {
 public:
  explicit Opener(const RecordKey& key, uint64_t records_per_key = kRecordsPerKey);
  // room() is the memory for the next bytes of the stream; Got() reports the bytes written there.
  MutableBytes room() { return MutableBytes(sealed_).subspan(sealed_got_); }
  void Got(size_t bytes) { sealed_got_ += bytes; }
  // Opens the complete records, as long as there is room. DATA_LOSS: a record was changed on its
  // way, or the peer has another key.
  absl::Status Open();
  // True if all opened bytes have been taken.
  bool empty() const { return taken_ == plain_got_; }
  // Copies as many opened bytes as fit into `vectors`. Returns their number.
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
