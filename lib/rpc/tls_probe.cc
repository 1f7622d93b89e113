// Repeats a failed TLS handshake with OpenSSL and translates its verification errors into the flag
// or file to correct.

#include "lib/rpc/tls_probe.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <iterator>
#include <memory>

#include "absl/strings/str_format.h"
#include "lib/base/fd.h"
#include "lib/options/host_port.h"

namespace addend::internal {
namespace {

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

constexpr timeval kPatience{0, 400'000};  // for the connection, and for each answer
constexpr unsigned char kHttp2[] = "\x02h2";

UniqueFd Connect(const HostPort& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(peer.host.c_str(), std::to_string(peer.port).c_str(), &hints, &found) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> info(found, ::freeaddrinfo);
  UniqueFd fd(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0) return {};
  return fd;
}

bool IsAlert(const unsigned long error) { return ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET; }

// The peer's alert, if it sent an alert: most servers, gRPC's among them, close the connection
// without.
std::string WhyWeAreRefused(SSL* session) {
  if (::X509_cmp_current_time(::X509_get0_notAfter(::SSL_get_certificate(session))) < 0) {
    return "it has expired";
  }
  const unsigned long error = ::ERR_peek_last_error();
  return IsAlert(error) ? ::ERR_reason_error_string(error) : "its log says why";
}

bool IsPlainText(const unsigned long error) {
  return ERR_GET_REASON(error) == SSL_R_WRONG_VERSION_NUMBER ||
         ERR_GET_REASON(error) == SSL_R_HTTP_REQUEST;
}

// The name that the server's certificate has to carry.
std::string NameOf(const HostPort& peer, const TlsFiles& files) {
  return files.server_name.empty() ? peer.host : files.server_name;
}

void ExpectName(SSL* session, const std::string& name) {
  X509_VERIFY_PARAM* const expected = ::SSL_get0_param(session);
  if (::X509_VERIFY_PARAM_set1_ip_asc(expected, name.c_str()) != 1) {
    ::SSL_set1_host(session, name.c_str());
    ::SSL_set_tlsext_host_name(session, name.c_str());
  }
}

std::string WhyServerIsRefused(long verified, const std::string& name, const TlsFiles& files) {
  if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return absl::StrFormat(
        "its certificate is not for %s: add that name to it, or name another with "
        "--tls-server-name",
        name);
  }
  return absl::StrFormat("its certificate is not one that --tls-ca=%s has signed: %s", files.ca,
                         ::X509_verify_cert_error_string(verified));
}

// Both ends' verdicts on the other's certificate; empty if both accept.
std::string ShakeHands(SSL* session, const std::string& name, const TlsFiles& files) {
  if (::SSL_connect(session) == 1) {
    // With TLS 1.3 the server verifies the client's certificate after the handshake, before it
    // sends its first bytes.
    char byte = 0;
    const int read = ::SSL_read(session, &byte, 1);
    if (read > 0 || ::SSL_get_error(session, read) == SSL_ERROR_WANT_READ) return "";
  } else {
    const long verified = ::SSL_get_verify_result(session);
    if (verified != X509_V_OK) return WhyServerIsRefused(verified, name, files);
    if (IsPlainText(::ERR_peek_last_error())) {
      return "it speaks plain text: start it with --tls-cert, --tls-key and --tls-ca";
    }
    if (!IsAlert(::ERR_peek_last_error())) return "";  // The server may just be ending.
  }
  return absl::StrFormat("it refuses the certificate --tls-cert=%s: %s", files.cert,
                         WhyWeAreRefused(session));
}

Context MakeContext(const TlsFiles& files) {
  Context context(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
  ::SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str());
  ::SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  ::SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr);
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

Session MakeSession(SSL_CTX* context, int fd) {
  Session session(::SSL_new(context), ::SSL_free);
  ::SSL_set_fd(session.get(), fd);
  ::SSL_set_alpn_protos(session.get(), kHttp2, std::size(kHttp2) - 1);
  return session;
}

std::string WhyPlainTextFails(int fd) {
  const Context context(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
  const Session session = MakeSession(context.get(), fd);
  ::SSL_connect(session.get());
  // A peer that agreed on a cipher speaks TLS, whatever it does next.
  if (::SSL_get_pending_cipher(session.get()) == nullptr) return "";
  return "it speaks TLS: give --tls-cert, --tls-key and --tls-ca";
}

}  // namespace

std::string WhyTlsFails(const std::string& target, const TlsIdentity* identity) {
  const auto peer = ParseHostPort(target);
  if (!peer.ok()) return "";
  const UniqueFd fd = Connect(*peer);
  if (!fd.valid()) return "";
  ::ERR_clear_error();
  std::string why;
  if (identity == nullptr) {
    why = WhyPlainTextFails(fd.get());
  } else {
    const std::string name = NameOf(*peer, identity->files());
    const Context context = MakeContext(identity->files());
    const Session session = MakeSession(context.get(), fd.get());
    ExpectName(session.get(), name);
    why = ShakeHands(session.get(), name, identity->files());
  }
  ::ERR_clear_error();
  return why;
}

}  // namespace addend::internal
