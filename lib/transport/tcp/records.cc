// A record: length (authenticated), cipher text, tag. Seal() and Open() are called in the order of
// the records, and both ends count the records alike: the count is the nonce and decides when the
// key changes, so neither is sent.

#include "lib/transport/tcp/records.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "lib/base/status_macros.h"

namespace addend::tcp {
namespace {

static_assert(std::endian::native == std::endian::little,
              "lengths are written in the machine's order");

constexpr std::string_view kNextKey = "addend next record key 1";
// Bytes of the stream read at a time.
constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kAround = kRecordLengthBytes + kAesTagBytes;

RecordKey NextKey(const RecordKey& key) {
  RecordKey next;
  unsigned int bytes = 0;
  const auto* const label = reinterpret_cast<const unsigned char*>(kNextKey.data());
  const auto* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), label, kNextKey.size(),
           reinterpret_cast<unsigned char*>(next.data()), &bytes);
  ADDEND_CHECK(made != nullptr && bytes == next.size(), "HMAC-SHA256 is not available");
  return next;
}

}  // namespace

// Bytes of vectors, in their order.
class Places {
 public:
  Places(const iovec* vectors, int count) : vectors_(vectors, static_cast<size_t>(count)) {
    for (const iovec& vector : vectors_) left_ += vector.iov_len;
  }
  size_t left() const { return left_; }
  // The next bytes that lie together, at most `most`; not empty if any are left.
  MutableBytes Next(size_t most) {
    while (vectors_.front().iov_len == used_) {
      vectors_ = vectors_.subspan(1);
      used_ = 0;
    }
    const iovec& vector = vectors_.front();
    const size_t bytes = std::min(most, vector.iov_len - used_);
    const MutableBytes next(static_cast<std::byte*>(vector.iov_base) + used_, bytes);
    used_ += bytes;
    left_ -= bytes;
    return next;
  }

 private:
  std::span<const iovec> vectors_;
  size_t used_ = 0;  // of the first vector
  size_t left_ = 0;
};

RecordCipher::RecordCipher(const RecordKey& key, uint64_t records_per_key,
                           std::unique_ptr<AesGcm> cipher)
    : key_(key), records_per_key_(records_per_key), cipher_(std::move(cipher)) {
  cipher_->UseKey(key_);
}

RecordCipher::~RecordCipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

// The record's number is the nonce, so a nonce is never used twice with a key.
void RecordCipher::Begin(Bytes length) {
  if (number_ == records_per_key_) {
    key_ = NextKey(key_);
    number_ = 0;
    cipher_->UseKey(key_);
  }
  AesGcm::Nonce nonce{};
  std::memcpy(nonce.data(), &number_, sizeof(number_));
  ++number_;
  cipher_->Begin(nonce, length);
}

size_t Sealer::SealedBytes(size_t plain) {
  return plain + (plain + kRecordBytes - 1) / kRecordBytes * kAround;
}

std::byte* Sealer::Seal(const iovec* vectors, int count, std::byte* out) {
  Places plain(vectors, count);
  while (plain.left() > 0) {
    size_t rest = std::min(plain.left(), kRecordBytes);
    const auto length = static_cast<uint32_t>(rest);
    std::memcpy(out, &length, kRecordLengthBytes);
    cipher_.Begin(Bytes(out, kRecordLengthBytes));
    out += kRecordLengthBytes;
    while (rest > 0) {
      const Bytes part = plain.Next(rest);
      cipher_.Update(part, out);
      out += part.size();
      rest -= part.size();
    }
    cipher_.WriteTag(out);
    out += kAesTagBytes;
  }
  return out;
}

Opener::Opener(const RecordKey& key, uint64_t records_per_key, const AesLibrary& library)
    : cipher_(key, records_per_key, library.make(/*seals=*/false)),
      sealed_(kReadBytes),
      plain_(kRecordBytes) {}

MutableBytes Opener::room() {
  std::copy(sealed_.begin() + static_cast<std::ptrdiff_t>(at_),
            sealed_.begin() + static_cast<std::ptrdiff_t>(got_), sealed_.begin());
  got_ -= at_;
  at_ = 0;
  return MutableBytes(sealed_).subspan(got_);
}

std::optional<uint32_t> Opener::NextLength() const {
  if (got_ - at_ < kAround) return std::nullopt;
  uint32_t length = 0;
  std::memcpy(&length, sealed_.data() + at_, kRecordLengthBytes);
  return length;
}

bool Opener::empty() const {
  if (taken_ < plain_got_) return false;
  const auto length = NextLength();
  // One that is too long gives Take() something to say.
  return !length || (*length <= kRecordBytes && got_ - at_ < kAround + *length);
}

absl::StatusOr<size_t> Opener::Take(const iovec* vectors, int count) {
  Places places(vectors, count);
  const size_t wanted = places.left();
  while (places.left() > 0 && !empty()) {
    if (taken_ < plain_got_) {
      TakePlain(&places);
      continue;
    }
    const uint32_t length = *NextLength();
    if (length <= places.left()) {
      ADDEND_RETURN_IF_ERROR(Open(length, &places));
      continue;
    }
    const iovec plain{plain_.data(), plain_.size()};
    Places behind(&plain, 1);
    ADDEND_RETURN_IF_ERROR(Open(length, &behind));
    taken_ = 0;
    plain_got_ = length;
  }
  return wanted - places.left();
}

void Opener::TakePlain(Places* places) {
  const MutableBytes to = places->Next(plain_got_ - taken_);
  std::memcpy(to.data(), plain_.data() + taken_, to.size());
  taken_ += to.size();
}

// Decrypts the next record, which is complete, to where its bytes belong.
absl::Status Opener::Open(uint32_t length, Places* places) {
  if (length > kRecordBytes) {
    return absl::DataLossError("an encrypted record is too long: it was changed on its way");
  }
  const std::byte* sealed = sealed_.data() + at_;
  cipher_.Begin(Bytes(sealed, kRecordLengthBytes));
  sealed += kRecordLengthBytes;
  for (size_t rest = length; rest > 0;) {
    const MutableBytes part = places->Next(rest);
    cipher_.Update(Bytes(sealed, part.size()), part.data());
    sealed += part.size();
    rest -= part.size();
  }
  if (!cipher_.HasTag(sealed)) {
    return absl::DataLossError(
        "an encrypted record does not open: it was changed on its way, or the peer has another "
        "key");
  }
  at_ += kAround + length;
  return absl::OkStatus();
}

}  // namespace addend::tcp
