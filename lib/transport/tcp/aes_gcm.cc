// OpenSSL's AES-256-GCM, and the choice of the library.

#include "lib/transport/tcp/aes_gcm.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <limits>

#include "lib/base/status_macros.h"
#include "lib/trace/clock.h"
#ifdef ADDEND_IPSEC_MB
#include "lib/transport/tcp/ipsec_mb.h"
#endif

namespace addend::tcp {
namespace {

const unsigned char* Octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Octets(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void Expect(int done) { ADDEND_CHECK(done == 1, "AES-256-GCM is not available"); }

class OpensslAesGcm final : public AesGcm {
 public:
  explicit OpensslAesGcm(bool seals) : context_(EVP_CIPHER_CTX_new()), seals_(seals) {}

  void UseKey(const Key& key) override {
    Expect(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, Octets(key.data()),
                             nullptr, seals_));
  }

  void Begin(const Nonce& nonce, Bytes authenticated) override {
    Expect(
        EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, Octets(nonce.data()), seals_));
    Process(authenticated, nullptr);
  }

  void Update(Bytes in, std::byte* out) override { Process(in, Octets(out)); }

  void WriteTag(std::byte* tag) override {
    Expect(End());
    Expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kAesTagBytes, tag));
  }

  bool HasTag(const std::byte* tag) override {
    std::array<std::byte, kAesTagBytes> wanted;
    std::copy_n(tag, wanted.size(), wanted.begin());
    Expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kAesTagBytes, wanted.data()));
    return End() == 1;
  }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  void Process(Bytes in, unsigned char* out) {
    int done = 0;
    Expect(EVP_CipherUpdate(context_.get(), out, &done, Octets(in.data()),
                            static_cast<int>(in.size())));
  }

  int End() {
    unsigned char nothing[kAesTagBytes];  // a stream cipher has no rest to write
    int done = 0;
    return EVP_CipherFinal_ex(context_.get(), nothing, &done);
  }

  const std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  const bool seals_;
};

std::unique_ptr<AesGcm> MakeOpensslAesGcm(bool seals) {
  return std::make_unique<OpensslAesGcm>(seals);
}

// The shortest time of a message as long as a record, of a few.
int64_t SealingNs(const AesLibrary& library) {
  constexpr int kMessages = 8;
  std::vector<std::byte> message(16 << 10);
  AesGcm::Nonce nonce{};
  const auto cipher = library.make(/*seals=*/true);
  cipher->UseKey(AesGcm::Key{});
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kMessages; ++i) {
    nonce[0] = static_cast<std::byte>(i);
    const int64_t began = TraceNow();
    cipher->Begin(nonce, {});
    cipher->Update(message, message.data());
    std::byte tag[kAesTagBytes];
    cipher->WriteTag(tag);
    shortest = std::min(shortest, TraceNow() - began);
  }
  return shortest;
}

}  // namespace

std::vector<AesLibrary> AesLibraries() {
  std::vector<AesLibrary> libraries{{"OpenSSL", MakeOpensslAesGcm}};
#ifdef ADDEND_IPSEC_MB
  if (HasIpsecMb()) libraries.push_back({"IPsec-MB", MakeIpsecMbAesGcm});
#endif
  return libraries;
}

const AesLibrary& FastestAesLibrary() {
  static const AesLibrary fastest = [] {
    const std::vector<AesLibrary> all = AesLibraries();
    if (all.size() == 1) return all.front();
    return *std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return SealingNs(a) < SealingNs(b);
    });
  }();
  return fastest;
}

}  // namespace addend::tcp
