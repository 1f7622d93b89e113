// A record: length (authenticated), cipher text, tag. Seal() and Open() are called in the order of
// the records, and both ends count the records alike: the count is the nonce and decides when the
// key changes, so neither is sent.

#include "lib/transport/tcp/records.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "lib/base/status_macros.h"

namespace addend::tcp {
namespace {

static_assert(std::endian::native == std::endian::little,
              "lengths are written in the machine's order");

constexpr size_t kNonceBytes = 12;
constexpr std::string_view kNextKey = "addend next record key 1";
// Bytes read and opened at a time.
constexpr size_t kOpenedBytes = 256 << 10;
constexpr size_t kAround = kRecordLengthBytes + kRecordTagBytes;

const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void Expect(int done) { ADDEND_CHECK(done == 1, "AES-256-GCM is not available"); }

RecordKey NextKey(const RecordKey& key) {
  RecordKey next;
  unsigned int bytes = 0;
  const auto* const label = reinterpret_cast<const unsigned char*>(kNextKey.data());
  const auto* const made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), label,
                                kNextKey.size(), Raw(next.data()), &bytes);
  Expect(made != nullptr && bytes == next.size() ? 1 : 0);
  return next;
}

}  // namespace

RecordCipher::RecordCipher(const RecordKey& key, bool seals, uint64_t records_per_key)
    : key_(key), records_per_key_(records_per_key), context_(EVP_CIPHER_CTX_new()), seals_(seals) {
  UseKey();
}

RecordCipher::~RecordCipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

void RecordCipher::UseKey() {
  Expect(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, Raw(key_.data()), nullptr,
                           seals_ ? 1 : 0));
}

// The record's number is the nonce, so a nonce is never used twice with a key.
void RecordCipher::Begin(Bytes length) {
  if (number_ == records_per_key_) {
    key_ = NextKey(key_);
    number_ = 0;
    UseKey();
  }
  std::array<unsigned char, kNonceBytes> nonce{};
  std::memcpy(nonce.data(), &number_, sizeof(number_));
  ++number_;
  Expect(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), seals_));
  int done = 0;
  Expect(EVP_CipherUpdate(context_.get(), nullptr, &done, Raw(length.data()),
                          static_cast<int>(length.size())));
}

void RecordCipher::Seal(Bytes length, Bytes plain, std::byte* out, std::byte* tag) {
  Begin(length);
  int done = 0;
  Expect(EVP_CipherUpdate(context_.get(), Raw(out), &done, Raw(plain.data()),
                          static_cast<int>(plain.size())));
  Expect(EVP_CipherFinal_ex(context_.get(), Raw(out) + done, &done));
  Expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kRecordTagBytes, tag));
}

bool RecordCipher::Open(Bytes length, Bytes sealed, std::byte* out, const std::byte* tag) {
  Begin(length);
  int done = 0;
  Expect(EVP_CipherUpdate(context_.get(), Raw(out), &done, Raw(sealed.data()),
                          static_cast<int>(sealed.size())));
  std::array<std::byte, kRecordTagBytes> wanted;
  std::copy_n(tag, wanted.size(), wanted.begin());
  Expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kRecordTagBytes, wanted.data()));
  return EVP_CipherFinal_ex(context_.get(), Raw(out) + done, &done) == 1;
}

void Sealer::Seal(const iovec* vectors, int count, std::vector<std::byte>* out) {
  for (int i = 0; i < count; ++i) {
    Bytes rest(static_cast<const std::byte*>(vectors[i].iov_base), vectors[i].iov_len);
    while (!rest.empty()) {
      const size_t part = std::min(rest.size(), plain_.size() - plain_got_);
      std::copy_n(rest.begin(), part, plain_.begin() + static_cast<std::ptrdiff_t>(plain_got_));
      plain_got_ += part;
      rest = rest.subspan(part);
      if (plain_got_ == plain_.size()) SealPlain(out);
    }
  }
  if (plain_got_ > 0) SealPlain(out);
}

void Sealer::SealPlain(std::vector<std::byte>* out) {
  const auto length = static_cast<uint32_t>(plain_got_);
  const size_t begin = out->size();
  out->resize(begin + kAround + plain_got_);
  std::byte* const record = out->data() + begin;
  std::memcpy(record, &length, kRecordLengthBytes);
  std::byte* const sealed = record + kRecordLengthBytes;
  cipher_.Seal(Bytes(record, kRecordLengthBytes), Bytes(plain_).first(plain_got_), sealed,
               sealed + plain_got_);
  plain_got_ = 0;
}

Opener::Opener(const RecordKey& key, uint64_t records_per_key)
    : cipher_(key, /*seals=*/false, records_per_key), sealed_(kOpenedBytes), plain_(kOpenedBytes) {}

absl::Status Opener::Open() {
  if (empty()) plain_got_ = taken_ = 0;
  size_t at = 0;
  absl::Status status;
  while (sealed_got_ - at >= kAround) {
    uint32_t length = 0;
    std::memcpy(&length, sealed_.data() + at, kRecordLengthBytes);
    if (length > kRecordBytes) {
      status = absl::DataLossError("an encrypted record is too long: it was changed on its way");
      break;
    }
    if (sealed_got_ - at < kAround + length || plain_.size() - plain_got_ < length) break;
    const std::byte* const sealed = sealed_.data() + at + kRecordLengthBytes;
    if (!cipher_.Open(Bytes(sealed_).subspan(at, kRecordLengthBytes), Bytes(sealed, length),
                      plain_.data() + plain_got_, sealed + length)) {
      status = absl::DataLossError(
          "an encrypted record does not open: it was changed on its way, or the peer has another "
          "key");
      break;
    }
    plain_got_ += length;
    at += kAround + length;
  }
  std::copy(sealed_.begin() + static_cast<std::ptrdiff_t>(at),
            sealed_.begin() + static_cast<std::ptrdiff_t>(sealed_got_), sealed_.begin());
  sealed_got_ -= at;
  return status;
}

size_t Opener::Take(const iovec* vectors, int count) {
  size_t done = 0;
  for (int i = 0; i < count && !empty(); ++i) {
    const size_t part = std::min(vectors[i].iov_len, plain_got_ - taken_);
    std::memcpy(vectors[i].iov_base, plain_.data() + taken_, part);
    taken_ += part;
    done += part;
  }
  return done;
}

}  // namespace addend::tcp
