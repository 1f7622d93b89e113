#include "lib/rpc/server_certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/tls_files.h"

namespace addend {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;

Bio Memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all};
}

// The first certificate is the server's, and the others lead to an authority.
bool UseCertificates(const std::string& pem, SSL_CTX* context) {
  const Bio bio = Memory(pem);
  bool first = true;
  while (X509* const read = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(read, X509_free);
    const bool used = first ? SSL_CTX_use_certificate(context, read) == 1
                            : SSL_CTX_add1_chain_cert(context, read) == 1;
    if (!used) return false;
    first = false;
  }
  return !first;
}

bool UseKey(const std::string& pem, SSL_CTX* context) {
  const Bio bio = Memory(pem);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

// Null if OpenSSL refuses the contents, such as a key of 512 bits.
std::shared_ptr<SSL_CTX> NewContext(const internal::TlsMaterial& material) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return nullptr;
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  // Nothing of a connection is kept for the next, and a client cannot repeat the handshake.
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  const bool used = UseCertificates(material.cert, raw) && UseKey(material.key, raw);
  ERR_clear_error();
  return used ? context : nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerCertificate>> ServerCertificate::Load(
    const TlsFiles& files, absl::Duration between_reads) {
  std::unique_ptr<ServerCertificate> certificate(new ServerCertificate(files, between_reads));
  MutexLock lock(&certificate->mu_);
  ADDEND_RETURN_IF_ERROR(certificate->Read());
  return certificate;
}

std::shared_ptr<SSL_CTX> ServerCertificate::Context() {
  MutexLock lock(&mu_);
  if (SteadyNow() - read_at_ < between_reads_) return context_;
  const absl::Status status = Read();
  if (status.ok()) {
    told_.clear();
  } else if (const std::string reason = Message(status); reason != told_) {
    told_ = reason;
    spdlog::warn("HTTPS: {}; the former certificate stays in use", reason);
  }
  return context_;
}

absl::Status ServerCertificate::Read() {
  read_at_ = SteadyNow();
  ADDEND_ASSIGN_OR_RETURN(const internal::TlsMaterial material,
                          internal::ReadCertificateAndKey(files_));
  std::string texts = material.cert + material.key;
  if (texts == in_use_) return absl::OkStatus();
  std::shared_ptr<SSL_CTX> fresh = NewContext(material);
  if (fresh == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "OpenSSL refuses the certificate in --tls-cert=%s or its key", files_.cert));
  }
  context_ = std::move(fresh);
  in_use_ = std::move(texts);
  spdlog::info("HTTPS: the certificate {} ({}; valid to {}) is in use", files_.cert, material.names,
               absl::FormatTime("%Y-%m-%d %H:%M UTC", material.valid_to, absl::UTCTimeZone()));
  return absl::OkStatus();
}

}  // namespace addend
