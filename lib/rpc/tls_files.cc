#include "lib/rpc/tls_files.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/base/status_macros.h"

namespace addend::internal {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::StatusOr<std::string> Read(std::string_view flag, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  ssize_t bytes = file.valid() ? 1 : -1;
  while (bytes > 0 && (bytes = ::read(file.get(), part, sizeof(part))) > 0) {
    text.append(part, static_cast<size_t>(bytes));
  }
  if (bytes == 0) return text;
  const std::string sentence =
      absl::StrFormat("cannot read --tls-%s=%s: %s", flag, path, std::strerror(errno));
  return errno == EACCES ? absl::PermissionDeniedError(sentence)
                         : absl::InvalidArgumentError(sentence);
}

Bio Memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all};
}

Certificate NextCertificate(BIO* bio) {
  return {PEM_read_bio_X509_AUX(bio, nullptr, nullptr, nullptr), X509_free};
}

// Every certificate of a bundle has to be valid: OpenSSL would silently ignore the certificates
// after a broken one.
absl::StatusOr<Certificate> FirstCertificate(std::string_view flag, const std::string& path,
                                             const std::string& text) {
  const Bio bio = Memory(text);
  ERR_clear_error();
  Certificate first = NextCertificate(bio.get());
  if (first == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--tls-%s=%s holds no certificate in PEM form", flag, path));
  }
  while (NextCertificate(bio.get()) != nullptr) {
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (at_end) return first;
  return absl::InvalidArgumentError(
      absl::StrFormat("--tls-%s=%s holds a broken certificate", flag, path));
}

absl::StatusOr<Key> PrivateKey(const std::string& path, const std::string& text) {
  const Bio bio = Memory(text);
  // For an encrypted key OpenSSL would ask for its password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrFormat("--tls-key=%s holds no private key in PEM form without a password", path));
}

std::string NamesOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free_all);
  const int at = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1);
  if (at < 0) return "none";
  X509V3_EXT_print(bio.get(), X509_get_ext(certificate, at), 0, 0);
  char* text = nullptr;
  const auto bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(bytes));
}

absl::Time EndOf(X509* certificate) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &fields) != 1) return absl::InfinitePast();
  return absl::FromTimeT(::timegm(&fields));
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadCertificateAndKey(const TlsFiles& files) {
  TlsMaterial material;
  ADDEND_ASSIGN_OR_RETURN(material.cert, Read("cert", files.cert));
  ADDEND_ASSIGN_OR_RETURN(material.key, Read("key", files.key));
  ADDEND_ASSIGN_OR_RETURN(const Certificate own,
                          FirstCertificate("cert", files.cert, material.cert));
  ADDEND_ASSIGN_OR_RETURN(const Key key, PrivateKey(files.key, material.key));
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrFormat(
        "--tls-key=%s is not the key of the certificate in --tls-cert=%s", files.key, files.cert));
  }
  material.names = NamesOf(own.get());
  material.valid_to = EndOf(own.get());
  return material;
}

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files) {
  ADDEND_ASSIGN_OR_RETURN(TlsMaterial material, ReadCertificateAndKey(files));
  ADDEND_ASSIGN_OR_RETURN(material.ca, Read("ca", files.ca));
  ADDEND_RETURN_IF_ERROR(FirstCertificate("ca", files.ca, material.ca).status());
  return material;
}

}  // namespace addend::internal
