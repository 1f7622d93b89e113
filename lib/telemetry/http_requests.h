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

namespace addend {

// Request line and headers together, as clients send them; browsers stay below 8 KiB.
constexpr size_t kMaxHttpHeadBytes = 16 << 10;
constexpr size_t kMaxHttpHeaders = 100;

struct HttpHead {
  int refusal = 0;   // an HTTP status; 0: not refused
  std::string text;  // of a refusal: the reason; otherwise the request for httplib
};

// `head`: all bytes up to the empty line, including it. Accepts only GET and HEAD without a body,
// and keeps only the headers that change an answer: Accept-Encoding and Connection.
HttpHead CheckHead(std::string_view head);

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
  };
  explicit HttpRequests(const Limits& limits);

  // Ends the connections under way, and all later ones. Thread-safe.
  void EndConnections();

 private:
  bool process_and_close_socket(socket_t socket) override;

  const Limits limits_;
  const UniqueFd ended_;  // an eventfd, readable from EndConnections on
};

}  // namespace addend
