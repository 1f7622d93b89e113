// Checks an HTTP request before httplib interprets it. httplib trusts its input: it copies every
// part that a Range header names (33 MB for a page of 13 KB), has no limit for the number of
// headers, and reads bodies of any size.
#pragma once

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "lib/base/fd.h"
#include "lib/telemetry/http_channel.h"

namespace addend {

// Request line and headers together, as clients send them; browsers stay below 8 KiB.
constexpr size_t kMaxHttpHeadBytes = 16 << 10;
constexpr size_t kMaxHttpHeaders = 100;

struct HttpHead {
  int refusal = 0;   // an HTTP status; 0: not refused
  std::string text;  // of a refusal: the reason; otherwise the request for httplib
  size_t body = 0;   // bytes that follow the head
};

// `head`: all bytes up to the empty line, including it. Accepts GET and HEAD without a body, and
// with a `body_limit` POST with a body of at most so many bytes. Keeps only the headers that change
// an answer: Accept-Encoding and Connection, and Content-Length of a body.
HttpHead CheckHead(std::string_view head, size_t body_limit = 0);

// Serves a single request per connection, if its head passes CheckHead; other requests get the
// refusal. Every connection has a deadline: httplib's own timeout restarts at every byte, and a
// client that sends a byte a second would hold a thread for ever.
class HttpRequests : public httplib::Server {
 public:
  struct Limits {
    std::chrono::milliseconds patience;  // of each read from a client and each write to it
    // of a connection, from its acceptance; a complete request may wait longer for a thread
    std::chrono::milliseconds most;
    int threads;
    size_t body_bytes = 0;  // of a POST; 0: no POST is answered
  };
  // `tls`: empty for plain text.
  explicit HttpRequests(const Limits& limits, HttpTlsFn tls = nullptr);

  // Lets as many clients connect at the same time as the kernel allows: httplib's own queue of 5
  // makes further clients wait for a second or more. After the address has been bound.
  void WidenQueue();

  // Ends the connections under way, and all later ones. Thread-safe.
  void EndConnections();

 private:
  bool process_and_close_socket(socket_t socket) override;
  bool Serve(HttpChannel* channel);
  bool Process(HttpChannel* channel, std::string request);

  const Limits limits_;
  const HttpTlsFn tls_;
  const UniqueFd ended_;  // an eventfd, readable from EndConnections on
};

}  // namespace addend
