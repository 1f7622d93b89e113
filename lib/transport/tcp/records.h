// A stream of bytes that only the two ends of a link can read or change: records of AES-256-GCM,
// each behind its length. The number of a record is authenticated with it: a missing, repeated or
// moved record does not open. No I/O. docs/wire-format.md.
//
// Bytes are encrypted from where they lie, and decrypted to where they belong: there is no copy on
// the way, but for the few records that end where the place of the next byte is not yet known.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/bytes.h"
#include "lib/transport/tcp/aes_gcm.h"

namespace addend::tcp {

using RecordKey = AesGcm::Key;

// Sizes in a record: the plain text (at most), and the length before it. A tag is behind it.
inline constexpr size_t kRecordBytes = 16 << 10;
inline constexpr size_t kRecordLengthBytes = 4;

// After this number of records both ends switch to the next key, derived from the former key by
// HMAC-SHA256: at most 64 MiB are encrypted with a key, far below the 2^24.5 records that RFC 8446
// (5.5) sets for AES-GCM, and an attacker with a key cannot read the records of former keys. Part
// of the wire format: both ends count alike.
inline constexpr uint64_t kRecordsPerKey = 1 << 12;

class Places;

// Encrypts or decrypts numbered records. A key is for one direction of a link, and for
// `records_per_key` records.
class RecordCipher {
 public:
  RecordCipher(const RecordKey& key, uint64_t records_per_key, std::unique_ptr<AesGcm> cipher);
  ~RecordCipher();
  // Begins the next record, of which these bytes hold the length.
  void Begin(Bytes length);
  void Update(Bytes in, std::byte* out) { cipher_->Update(in, out); }
  void WriteTag(std::byte* tag) { cipher_->WriteTag(tag); }
  bool HasTag(const std::byte* tag) { return cipher_->HasTag(tag); }

 private:
  RecordKey key_;
  const uint64_t records_per_key_;
  const std::unique_ptr<AesGcm> cipher_;
  uint64_t number_ = 0;  // of the record, since the last change of key
};

class Sealer {
 public:
  explicit Sealer(const RecordKey& key, uint64_t records_per_key = kRecordsPerKey,
                  const AesLibrary& library = FastestAesLibrary())
      : cipher_(key, records_per_key, library.make(/*seals=*/true)) {}
  // The bytes that Seal() writes for so many bytes of plain text.
  static size_t SealedBytes(size_t plain);
  // Writes all of these bytes to `out`, as full records and a shorter record for the rest. Returns
  // the end of what was written.
  std::byte* Seal(const iovec* vectors, int count, std::byte* out);

 private:
  RecordCipher cipher_;
};

class Opener {
 public:
  explicit Opener(const RecordKey& key, uint64_t records_per_key = kRecordsPerKey,
                  const AesLibrary& library = FastestAesLibrary());
  // room() is the memory for the next bytes of the stream; Got() reports the bytes written there.
  // The room is larger than a record while Take() has nothing to give.
  MutableBytes room();
  void Got(size_t bytes) { got_ += bytes; }
  // Decrypts as many bytes of complete records as fit into `vectors`, and returns their number.
  // Bytes of `vectors` behind them may have been overwritten with any values. 0: more of the stream
  // is needed. DATA_LOSS: a record was changed on its way, or the peer has another key.
  absl::StatusOr<size_t> Take(const iovec* vectors, int count);
  // Take() has nothing to give before more of the stream has come.
  bool empty() const;

 private:
  // Of the next record, if that has come.
  std::optional<uint32_t> NextLength() const;
  void TakePlain(Places* places);
  absl::Status Open(uint32_t length, Places* places);

  RecordCipher cipher_;
  std::vector<std::byte> sealed_;  // the stream, from at_ to got_
  size_t at_ = 0;
  size_t got_ = 0;
  std::vector<std::byte> plain_;  // of one record that did not fit, from taken_ to plain_got_
  size_t plain_got_ = 0;
  size_t taken_ = 0;
};

}  // namespace addend::tcp
