// The HTTP endpoints of every service: /metrics (Prometheus' text format), /healthz and /readyz,
// and a service's own endpoints.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

// Serves until it is destroyed, on threads of its own (a thread that accepts, four that answer, a
// thread that ends connections of clients that take more than 3 s).
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
  // `routes`: further paths; objects that they refer to must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& host, uint16_t port, prometheus::Registry* registry, ReadyFn ready,
      std::vector<const prometheus::Collectable*> also = {}, std::vector<HttpRoute> routes = {});
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
