#include "lib/telemetry/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/telemetry/http_requests.h"
#include "lib/telemetry/process_metrics.h"

namespace addend {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
// of each read from a client and each write to it
constexpr std::chrono::seconds kClientPatience(2);

std::string SerializeAll(const prometheus::Registry& registry,
                         const std::vector<const prometheus::Collectable*>& also) {
  auto families = registry.Collect();
  const auto append = [&families](std::vector<prometheus::MetricFamily> more) {
    families.insert(families.end(), std::make_move_iterator(more.begin()),
                    std::make_move_iterator(more.end()));
  };
  append(ProcessMetrics().Collect());
  for (const prometheus::Collectable* source : also) append(source->Collect());
  return prometheus::TextSerializer().Serialize(families);
}

// httplib shares taken ports silently (SO_REUSEPORT) unless the options are set here.
void SetSocketOptions(int socket) {
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  // Silent connections stay with the kernel, and take no thread.
  const int silent_s = 30;
  ::setsockopt(socket, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silent_s, sizeof(silent_s));
}

// Returns the port, or 0 with errno set.
int Bind(httplib::Server* server, const std::string& host, uint16_t port) {
  server->stop();  // otherwise httplib 0.18 tries no second address
  errno = 0;
  if (port == 0) {
    const int chosen = server->bind_to_any_port(host);
    return chosen > 0 ? chosen : 0;
  }
  return server->bind_to_port(host, port) ? port : 0;
}

// Escapes a path, because httplib takes it as a regular expression.
std::string Literally(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

httplib::Headers BrowserHeaders() {
  return {{"Content-Security-Policy",
           "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
           "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cache-Control", "no-store"}};
}

void Fill(const HttpAnswer& made, httplib::Response* response) {
  response->status = made.status;
  response->set_content(made.body, made.content_type);
}

// Returns all paths, for messages.
std::string AddRoutes(std::vector<HttpRoute> routes, std::vector<HttpPost> posts,
                      httplib::Server* server) {
  std::string paths;
  for (HttpRoute& route : routes) {
    paths += route.path + ", ";
    server->Get(Literally(route.path), [answer = std::move(route.answer)](
                                           const httplib::Request&, httplib::Response& response) {
      Fill(answer(), &response);
    });
  }
  for (HttpPost& post : posts) {
    paths += post.path + " (by POST), ";
    server->Post(Literally(post.path),
                 [answer = std::move(post.answer)](const httplib::Request& request,
                                                   httplib::Response& response) {
                   Fill(answer(request.body), &response);
                 });
  }
  return paths + "/metrics, /healthz and /readyz";
}

}  // namespace

struct HttpServer::Impl {
  explicit Impl(const HttpServerOptions& options)
      : server({kClientPatience, options.most, options.threads, options.body_bytes}, options.tls) {}

  HttpRequests server;
  std::thread thread;
  uint16_t port = 0;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& host, uint16_t port, prometheus::Registry* registry, ReadyFn ready,
    std::vector<const prometheus::Collectable*> also, std::vector<HttpRoute> routes,
    HttpServerOptions options) {
  auto impl = std::make_unique<Impl>(options);
  httplib::Server& server = impl->server;
  server.set_socket_options(SetSocketOptions);
  server.Get("/metrics", [registry, also = std::move(also)](const httplib::Request&,
                                                            httplib::Response& response) {
    response.set_content(SerializeAll(*registry, also), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", kText);
  });
  server.Get("/readyz",
             [ready = std::move(ready)](const httplib::Request&, httplib::Response& response) {
               const absl::Status status = ready();
               response.status = status.ok() ? 200 : 503;
               response.set_content(status.ok() ? "ok\n" : Message(status) + "\n", kText);
             });
  server.set_default_headers(BrowserHeaders());
  const std::string paths = AddRoutes(std::move(routes), std::move(options.posts), &server);
  server.set_error_handler([paths](const httplib::Request& request, httplib::Response& response) {
    if (response.status != 404) return;
    response.set_content(absl::StrFormat("%s is not here: %s are\n", request.path, paths), kText);
  });

  // All interfaces: both families where the kernel has IPv6, otherwise IPv4.
  int bound = Bind(&server, host.empty() ? "::" : host, port);
  if (bound == 0 && host.empty()) bound = Bind(&server, "0.0.0.0", port);
  if (bound == 0) {
    const char* reason = errno != 0 ? std::strerror(errno) : "no such address";
    const bool ipv6 = host.find(':') != std::string::npos;
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot listen on %s:%d for HTTP: %s", ipv6 ? "[" + host + "]" : host, port, reason));
  }
  impl->server.WidenQueue();
  impl->port = static_cast<uint16_t>(bound);
  impl->thread = std::thread([raw = impl.get()] { raw->server.listen_after_bind(); });
  // stop() does nothing before the server runs, so the server must not be returned before.
  while (!server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->server.EndConnections();
  impl_->thread.join();
}

uint16_t HttpServer::port() const { return impl_->port; }

}  // namespace addend
