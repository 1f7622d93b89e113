// The manager only holds pointers to functions for this processor, so all links of a process share
// one, from any thread.
#include "lib/transport/tcp/ipsec_mb.h"

#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <array>

namespace addend::tcp {
namespace {

uint8_t* ImbBytes(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* ImbBytes(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

// Null: it cannot be used. Lives as long as the process.
IMB_MGR* Manager() {
  static IMB_MGR* const manager = []() -> IMB_MGR* {
    IMB_MGR* const made = alloc_mb_mgr(0);
    if (made == nullptr) return nullptr;
    IMB_ARCH chosen = IMB_ARCH_NONE;
    init_mb_mgr_auto(made, &chosen);
    const bool tested = (made->features & IMB_FEATURE_SELF_TEST) == 0 ||
                        (made->features & IMB_FEATURE_SELF_TEST_PASS) != 0;
    if (imb_get_errno(made) == 0 && chosen != IMB_ARCH_NONE && tested) return made;
    free_mb_mgr(made);
    return nullptr;
  }();
  return manager;
}

class IpsecMbAesGcm final : public AesGcm {
 public:
  explicit IpsecMbAesGcm(bool seals) : seals_(seals) {}
  ~IpsecMbAesGcm() override {
    OPENSSL_cleanse(&key_, sizeof(key_));
    OPENSSL_cleanse(&message_, sizeof(message_));
  }

  void UseKey(const Key& key) override {
    IMB_AES256_GCM_PRE(manager_, ImbBytes(key.data()), &key_);
  }

  void Begin(const Nonce& nonce, Bytes authenticated) override {
    IMB_AES256_GCM_INIT(manager_, &key_, &message_, ImbBytes(nonce.data()),
                        ImbBytes(authenticated.data()), authenticated.size());
  }

  void Update(Bytes in, std::byte* out) override {
    if (seals_) {
      IMB_AES256_GCM_ENC_UPDATE(manager_, &key_, &message_, ImbBytes(out), ImbBytes(in.data()),
                                in.size());
    } else {
      IMB_AES256_GCM_DEC_UPDATE(manager_, &key_, &message_, ImbBytes(out), ImbBytes(in.data()),
                                in.size());
    }
  }

  void WriteTag(std::byte* tag) override {
    IMB_AES256_GCM_ENC_FINALIZE(manager_, &key_, &message_, ImbBytes(tag), kAesTagBytes);
  }

  bool HasTag(const std::byte* tag) override {
    std::array<std::byte, kAesTagBytes> right;
    IMB_AES256_GCM_DEC_FINALIZE(manager_, &key_, &message_, ImbBytes(right.data()), right.size());
    return CRYPTO_memcmp(right.data(), tag, right.size()) == 0;
  }

 private:
  IMB_MGR* const manager_ = Manager();
  const bool seals_;
  alignas(64) gcm_key_data key_{};  // it is written with aligned vectors
  alignas(64) gcm_context_data message_{};
};

}  // namespace

bool HasIpsecMb() { return Manager() != nullptr; }

std::unique_ptr<AesGcm> MakeIpsecMbAesGcm(bool seals) {
  return std::make_unique<IpsecMbAesGcm>(seals);
}

}  // namespace addend::tcp
