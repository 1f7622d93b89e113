// The bytes of an HTTP connection, in plain text or over TLS, until its deadline.
#pragma once

#include <openssl/ssl.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace addend {

// Returns the certificate and the settings of a new connection over TLS; called from all threads.
using HttpTlsFn = std::function<std::shared_ptr<SSL_CTX>()>;

// A connection and how long its client may take.
struct HttpClient {
  using Clock = std::chrono::steady_clock;

  int socket;
  int ended;  // readable: the server ends
  std::chrono::milliseconds patience;
  Clock::time_point deadline;

  // False: the client took too long, or the server ends.
  bool WaitFor(short events) const;
};

// The socket stays the caller's. Used by a single thread.
class HttpChannel {
 public:
  // `tls`: null for plain text.
  HttpChannel(const HttpClient& client, SSL_CTX* tls);
  HttpChannel(const HttpChannel&) = delete;
  HttpChannel& operator=(const HttpChannel&) = delete;

  // Does the handshake of TLS. False: the client has not finished it in time, or speaks no TLS.
  bool Begin();
  // Waits for bytes. 0 or less: the client has gone or has taken too long.
  ssize_t Read(char* to, size_t size);
  // Returns the number of bytes written, which may be fewer than `size`; -1 as above.
  ssize_t Write(const char* from, size_t size);
  // Waits until the socket takes bytes. False: as above.
  bool IsWritable() const;
  // Says goodbye, and reads what the client has sent meanwhile: closing a socket with unread bytes
  // would discard the answer.
  void End();

  int socket() const { return client_.socket; }

 private:
  int Repeat(const std::function<int()>& step);

  const HttpClient client_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;  // null: plain text, or no memory
  const bool encrypted_;
};

}  // namespace addend
