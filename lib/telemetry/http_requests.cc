#include "lib/telemetry/http_requests.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace addend {
namespace {

constexpr std::string_view kEndOfLine = "\r\n";
constexpr std::string_view kEndOfHead = "\r\n\r\n";
constexpr size_t kMostDrained = 64 << 10;

HttpHead Refuse(int status, std::string why) { return {status, std::move(why)}; }

bool IsHeader(absl::string_view line, absl::string_view name) {
  return absl::StartsWithIgnoreCase(line, name) && line.size() > name.size() &&
         line[name.size()] == ':';
}

absl::string_view ValueOf(absl::string_view line) {
  return absl::StripAsciiWhitespace(line.substr(line.find(':') + 1));
}

bool AnnouncesBody(absl::string_view line) {
  return IsHeader(line, "Transfer-Encoding") ||
         (IsHeader(line, "Content-Length") && ValueOf(line) != "0");
}

// httplib ends a line at any line feed, and would see a header that was not checked.
bool HasLineFeed(absl::string_view line) {
  return line.find('\n') != absl::string_view::npos || line.find('\r') != absl::string_view::npos;
}

using Clock = std::chrono::steady_clock;

// When the connection that this thread serves was accepted.
thread_local Clock::time_point accepted_at;

// Notes for each connection when it was accepted, before it waits for a thread.
class Pool final : public httplib::TaskQueue {
 public:
  // void in httplib 0.11; bool in 0.18
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));

  explicit Pool(int threads) : pool_(static_cast<size_t>(threads)) {}
  Enqueued enqueue(std::function<void()> serve) override {
    return pool_.enqueue([accepted = Clock::now(), serve = std::move(serve)] {
      accepted_at = accepted;
      serve();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  httplib::ThreadPool pool_;
};

// True if a complete request is unread.
bool HoldsWholeRequest(int socket) {
  char bytes[8192];
  const ssize_t got = ::recv(socket, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  return got > 0 && std::string_view(bytes, static_cast<size_t>(got)).find(kEndOfHead) !=
                        std::string_view::npos;
}

// A connection and how long its client may take.
struct Client {
  int socket;
  int ended;  // readable: the server ends
  std::chrono::milliseconds patience;
  Clock::time_point deadline;

  // False: the client took too long, or the server ends.
  bool WaitFor(short events) const {
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
};

// Reads from `head`, which has been read from the socket, and writes to the socket.
class CheckedStream final : public httplib::Stream {
 public:
  CheckedStream(const Client& client, std::string head) : client_(client), head_(std::move(head)) {}

  bool is_readable() const override { return at_ < head_.size(); }
  bool is_writable() const override { return client_.WaitFor(POLLOUT); }
  ssize_t read(char* to, size_t size) override {
    const size_t bytes = std::min(size, head_.size() - at_);
    std::memcpy(to, head_.data() + at_, bytes);
    at_ += bytes;
    return static_cast<ssize_t>(bytes);
  }
  ssize_t write(const char* from, size_t size) override {
    if (!is_writable()) return -1;
    return ::send(client_.socket, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return client_.socket; }

 private:
  const Client client_;
  const std::string head_;
  size_t at_ = 0;
};

// Returns an empty string if the client has gone or has taken too long.
std::string ReadHead(const Client& client) {
  std::string head;
  char bytes[4096];
  while (head.size() <= kMaxHttpHeadBytes) {
    if (!client.WaitFor(POLLIN)) return "";
    const ssize_t got = ::recv(client.socket, bytes, sizeof(bytes), 0);
    if (got <= 0) return "";
    head.append(bytes, static_cast<size_t>(got));
    const size_t end = head.find(kEndOfHead);
    if (end != std::string::npos) return head.substr(0, end + kEndOfHead.size());
  }
  return head;
}

void Answer(httplib::Stream* stream, const HttpHead& refused) {
  const std::string body = refused.text + "\n";
  stream->write(
      absl::StrFormat("HTTP/1.1 %d Refused\r\nConnection: close\r\nContent-Type: "
                      "text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s",
                      refused.refusal, body.size(), body));
}

// Reads the rest of the input: closing a socket with unread bytes would discard the answer.
void Drain(int socket) {
  char bytes[4096];
  for (size_t drained = 0; drained < kMostDrained; drained += sizeof(bytes)) {
    if (::recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace

HttpHead CheckHead(std::string_view head) {
  if (head.size() > kMaxHttpHeadBytes || head.find(kEndOfHead) == std::string_view::npos) {
    return Refuse(
        431, absl::StrFormat("the request has more than %d bytes of headers", kMaxHttpHeadBytes));
  }
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::string_view(head.data(), head.size() - kEndOfHead.size()),
                     absl::string_view(kEndOfLine.data(), kEndOfLine.size()));
  if (lines.size() - 1 > kMaxHttpHeaders) {
    return Refuse(431, absl::StrFormat("the request has %d headers, more than %d", lines.size() - 1,
                                       kMaxHttpHeaders));
  }
  if (std::any_of(lines.begin(), lines.end(), HasLineFeed)) {
    return Refuse(400, "the request has a line that does not end as HTTP says, with CR LF");
  }
  if (!absl::StartsWith(lines[0], "GET ") && !absl::StartsWith(lines[0], "HEAD ")) {
    return Refuse(405, "only GET and HEAD are answered here");
  }
  HttpHead checked{0, absl::StrFormat("%s\r\n", lines[0])};
  for (size_t i = 1; i < lines.size(); ++i) {
    if (AnnouncesBody(lines[i])) return Refuse(413, "a request has no body here");
    const bool counts = IsHeader(lines[i], "Accept-Encoding") || IsHeader(lines[i], "Connection");
    if (counts) checked.text += absl::StrFormat("%s\r\n", lines[i]);
  }
  checked.text += "\r\n";
  return checked;
}

HttpRequests::HttpRequests(const Limits& limits)
    : limits_(limits), ended_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  new_task_queue = [threads = limits.threads] { return new Pool(threads); };
}

void HttpRequests::EndConnections() {
  const uint64_t one = 1;
  // Without an eventfd, or with a full one, connections end at their deadline or are ended already.
  static_cast<void>(::write(ended_.get(), &one, sizeof(one)) < 0);
}

bool HttpRequests::process_and_close_socket(socket_t socket) {
  const UniqueFd closes(socket);
  const auto begin = HoldsWholeRequest(socket) ? Clock::now() : accepted_at;
  const Client client{socket, ended_.get(), limits_.patience, begin + limits_.most};
  const std::string head = ReadHead(client);
  if (head.empty()) return false;
  HttpHead checked = CheckHead(head);
  CheckedStream stream(client, checked.text);
  bool served = true;
  if (checked.refusal != 0) {
    Answer(&stream, checked);
  } else {
    bool closed = false;
    // httplib 0.18, unlike 0.11, also wants the addresses of both ends, which nothing here reads.
    const auto process = [&](auto* from) {
      if constexpr (requires { this->process_request(*from, true, closed, nullptr); }) {
        return this->process_request(*from, /*close_connection=*/true, closed, nullptr);
      } else {
        return this->process_request(*from, "", 0, "", 0, /*close_connection=*/true, closed,
                                     nullptr);
      }
    };
    served = process(&stream);
  }
  Drain(socket);
  ::shutdown(socket, SHUT_RDWR);
  return served;
}

}  // namespace addend
