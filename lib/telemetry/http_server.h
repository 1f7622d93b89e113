// The HTTP endpoints of every service: /metrics (Prometheus' text format), /healthz and /readyz,
// and a service's own endpoints.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/telemetry/http_channel.h"

namespace addend {

struct HttpAnswer {
  int status = 200;
  std::string content_type;
  std::string body;
};

// The answer to GET (and HEAD) of `path`. Called from the server's threads, several at a time.
struct HttpRoute {
  std::string path;
  std::function<HttpAnswer()> answer;
};

// The answer to a POST to `path`, from its body. Called from the server's threads.
struct HttpPost {
  std::string path;
  std::function<HttpAnswer(const std::string& body)> answer;
};

// A server's limits, and how it differs from the plain-text server of a service.
struct HttpServerOptions {
  // of a whole connection, from its acceptance, so that other clients have their turn
  std::chrono::milliseconds most = std::chrono::seconds(3);
  // Threads that answer. Browsers open connections ahead of need, and each has a thread until it
  // times out.
  int threads = 4;
  HttpTlsFn tls = nullptr;  // empty: plain text
  std::vector<HttpPost> posts = {};
  size_t body_bytes = 0;  // the most bytes of a POST; 0: no POST is answered
};

// Serves until it is destroyed, on threads of its own (a thread that accepts, and those that
// answer).
// /metrics adds metrics of every process to the registry: addend_build_info and the process_*
// values (memory, CPU time, descriptors). Response headers tell browsers to load content from this
// server only, to run no script that is written into a page, and to keep nothing.
class HttpServer {
 public:
  // OK: /readyz answers 200. Otherwise 503 with the status's message: the reason why the service is
  // not ready.
  using ReadyFn = std::function<absl::Status()>;

  // `host`: empty for all interfaces. `port`: 0 for the kernel's choice. `registry` must outlive
  // the server; `ready` is called from the server's threads. InvalidArgument if the address cannot
  // be listened on.
  // `also`: further sources of metrics, which must outlive the server too; read from its threads.
  // `routes`: further paths; objects that they, or `options`, refer to must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& host, uint16_t port, prometheus::Registry* registry, ReadyFn ready,
      std::vector<const prometheus::Collectable*> also = {}, std::vector<HttpRoute> routes = {},
      HttpServerOptions options = {});
  // Ends open connections and joins the threads.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace addend
