#include "lib/telemetry/http_requests.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace addend {
namespace {

constexpr std::string_view kEndOfLine = "\r\n";
constexpr std::string_view kEndOfHead = "\r\n\r\n";

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

using Clock = HttpClient::Clock;

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

// Reads a request that has come already, and writes to the connection.
class CheckedStream final : public httplib::Stream {
 public:
  CheckedStream(HttpChannel* channel, std::string request)
      : channel_(channel), request_(std::move(request)) {}

  bool is_readable() const override { return at_ < request_.size(); }
  bool is_writable() const override { return channel_->IsWritable(); }
  ssize_t read(char* to, size_t size) override {
    const size_t bytes = std::min(size, request_.size() - at_);
    std::memcpy(to, request_.data() + at_, bytes);
    at_ += bytes;
    return static_cast<ssize_t>(bytes);
  }
  ssize_t write(const char* from, size_t size) override { return channel_->Write(from, size); }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return channel_->socket(); }

 private:
  HttpChannel* const channel_;
  const std::string request_;
  size_t at_ = 0;
};

// Reads until the end of the head; `rest` gets the bytes after it. Returns an empty string if the
// client has gone or has taken too long.
std::string ReadHead(HttpChannel* channel, std::string* rest) {
  std::string head;
  char bytes[4096];
  while (head.size() <= kMaxHttpHeadBytes) {
    const ssize_t got = channel->Read(bytes, sizeof(bytes));
    if (got <= 0) return "";
    head.append(bytes, static_cast<size_t>(got));
    const size_t end = head.find(kEndOfHead);
    if (end == std::string::npos) continue;
    *rest = head.substr(end + kEndOfHead.size());
    return head.substr(0, end + kEndOfHead.size());
  }
  return head;
}

// Appends the rest of a body of `size` bytes to `request`, which has `had` bytes of the body. The
// memory grows with the bytes that have come, not with the number that the client has promised.
bool ReadBody(HttpChannel* channel, size_t had, size_t size, std::string* request) {
  char bytes[16384];
  while (had < size) {
    const ssize_t got = channel->Read(bytes, std::min(sizeof(bytes), size - had));
    if (got <= 0) return false;
    request->append(bytes, static_cast<size_t>(got));
    had += static_cast<size_t>(got);
  }
  return true;
}

void Answer(HttpChannel* channel, const HttpHead& refused) {
  const std::string body = refused.text + "\n";
  const std::string answer = absl::StrFormat(
      "HTTP/1.1 %d Refused\r\nConnection: close\r\nContent-Type: "
      "text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s",
      refused.refusal, body.size(), body);
  channel->Write(answer.data(), answer.size());
}

// Takes the length of a body from a header. Returns a refusal, or no refusal.
HttpHead TakeLength(absl::string_view line, size_t limit, std::optional<size_t>* body) {
  size_t bytes = 0;
  const absl::string_view value = ValueOf(line);
  if (body->has_value()) return Refuse(400, "the request has two lengths");
  if (!std::all_of(value.begin(), value.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(value, &bytes) || bytes > limit) {
    return Refuse(413, absl::StrFormat("the body of a request has at most %d bytes here", limit));
  }
  *body = bytes;
  return {};
}

}  // namespace

HttpHead CheckHead(std::string_view head, size_t body_limit) {
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
  const bool posts = body_limit > 0 && absl::StartsWith(lines[0], "POST ");
  if (!posts && !absl::StartsWith(lines[0], "GET ") && !absl::StartsWith(lines[0], "HEAD ")) {
    return Refuse(405, absl::StrFormat("only GET%s and HEAD are answered here",
                                       body_limit > 0 ? ", POST" : ""));
  }
  HttpHead checked{0, absl::StrFormat("%s\r\n", lines[0])};
  std::optional<size_t> body;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (posts && IsHeader(lines[i], "Content-Length")) {
      HttpHead refused = TakeLength(lines[i], body_limit, &body);
      if (refused.refusal != 0) return refused;
    } else if (AnnouncesBody(lines[i])) {
      return posts ? Refuse(411, "a body needs its length in the header Content-Length")
                   : Refuse(413, "a request has no body here");
    }
    const bool counts = IsHeader(lines[i], "Accept-Encoding") || IsHeader(lines[i], "Connection");
    if (counts) checked.text += absl::StrFormat("%s\r\n", lines[i]);
  }
  checked.body = body.value_or(0);
  if (posts) checked.text += absl::StrFormat("Content-Length: %d\r\n", checked.body);
  checked.text += "\r\n";
  return checked;
}

HttpRequests::HttpRequests(const Limits& limits, HttpTlsFn tls)
    : limits_(limits), tls_(std::move(tls)), ended_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  new_task_queue = [threads = limits.threads] { return new Pool(threads); };
}

void HttpRequests::WidenQueue() {
  // The socket listens already, so that this can only change the length of its queue.
  static_cast<void>(::listen(svr_sock_, SOMAXCONN));
}

void HttpRequests::EndConnections() {
  const uint64_t one = 1;
  // Without an eventfd, or with a full one, connections end at their deadline or are ended already.
  static_cast<void>(::write(ended_.get(), &one, sizeof(one)) < 0);
}

bool HttpRequests::process_and_close_socket(socket_t socket) {
  const UniqueFd closes(socket);
  const std::shared_ptr<SSL_CTX> tls = tls_ ? tls_() : nullptr;
  const auto begin = tls == nullptr && HoldsWholeRequest(socket) ? Clock::now() : accepted_at;
  HttpChannel channel({socket, ended_.get(), limits_.patience, begin + limits_.most}, tls.get());
  return channel.Begin() && Serve(&channel);
}

bool HttpRequests::Serve(HttpChannel* channel) {
  std::string rest;
  const std::string head = ReadHead(channel, &rest);
  if (head.empty()) return false;
  HttpHead checked = CheckHead(head, limits_.body_bytes);
  bool served = true;
  if (checked.refusal != 0) {
    Answer(channel, checked);
  } else {
    rest.resize(std::min(rest.size(), checked.body));
    checked.text += rest;
    if (!ReadBody(channel, rest.size(), checked.body, &checked.text)) return false;
    served = Process(channel, std::move(checked.text));
  }
  channel->End();
  return served;
}

bool HttpRequests::Process(HttpChannel* channel, std::string request) {
  CheckedStream stream(channel, std::move(request));
  bool closed = false;
  // httplib 0.18, unlike 0.11, also wants the addresses of both ends, which nothing here reads.
  const auto process = [&](auto* from) {
    if constexpr (requires { this->process_request(*from, true, closed, nullptr); }) {
      return this->process_request(*from, /*close_connection=*/true, closed, nullptr);
    } else {
      return this->process_request(*from, "", 0, "", 0, /*close_connection=*/true, closed, nullptr);
    }
  };
  return process(&stream);
}

}  // namespace addend
