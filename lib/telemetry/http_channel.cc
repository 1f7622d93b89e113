#include "lib/telemetry/http_channel.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace addend {
namespace {

constexpr size_t kMostDrained = 64 << 10;

SSL* NewTls(SSL_CTX* context, int socket) {
  if (context == nullptr) return nullptr;
  SSL* const ssl = SSL_new(context);
  // OpenSSL would wait for the rest of a record as long as the client likes.
  if (ssl != nullptr) ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (ssl != nullptr) SSL_set_fd(ssl, socket);
  return ssl;
}

}  // namespace

bool HttpClient::WaitFor(short events) const {
  pollfd wanted[] = {{socket, events, 0}, {ended, POLLIN, 0}};
  const auto until = std::min(deadline, Clock::now() + patience);
  int ready = 0;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    ready = ::poll(wanted, std::size(wanted), static_cast<int>(left.count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && wanted[1].revents == 0;
}

HttpChannel::HttpChannel(const HttpClient& client, SSL_CTX* tls)
    : client_(client), ssl_(NewTls(tls, client.socket), SSL_free), encrypted_(tls != nullptr) {}

bool HttpChannel::Begin() {
  if (!encrypted_) return true;
  return ssl_ != nullptr && Repeat([this] { return SSL_accept(ssl_.get()); }) == 1;
}

ssize_t HttpChannel::Read(char* to, size_t size) {
  if (encrypted_) {
    const int most = static_cast<int>(size);
    return Repeat([this, to, most] { return SSL_read(ssl_.get(), to, most); });
  }
  return client_.WaitFor(POLLIN) ? ::recv(client_.socket, to, size, 0) : -1;
}

ssize_t HttpChannel::Write(const char* from, size_t size) {
  if (encrypted_) {
    const int most = static_cast<int>(size);
    return Repeat([this, from, most] { return SSL_write(ssl_.get(), from, most); });
  }
  if (!IsWritable()) return -1;
  return ::send(client_.socket, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool HttpChannel::IsWritable() const { return client_.WaitFor(POLLOUT); }

void HttpChannel::End() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  char bytes[4096];
  for (size_t drained = 0; drained < kMostDrained; drained += sizeof(bytes)) {
    if (::recv(client_.socket, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) break;
  }
  ::shutdown(client_.socket, SHUT_RDWR);
}

// Repeats a step of TLS for as long as it only waits for the socket.
int HttpChannel::Repeat(const std::function<int()>& step) {
  for (;;) {
    if (HttpClient::Clock::now() >= client_.deadline) return -1;
    ERR_clear_error();
    const int result = step();
    if (result > 0) return result;
    const int reason = SSL_get_error(ssl_.get(), result);
    if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE) return -1;
    if (!client_.WaitFor(reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return -1;
  }
}

}  // namespace addend
