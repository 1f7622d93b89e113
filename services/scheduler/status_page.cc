// The scheduler's page for people and its /api/status.
#include "services/scheduler/status_page.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"
#include "lib/status/network_json.h"
#include "lib/status/status_json.h"
#include "services/scheduler/page_files.h"

namespace addend {
namespace {

constexpr char kScriptType[] = "text/javascript; charset=utf-8";
constexpr char kJsonType[] = "application/json";

HttpRoute FileRoute(std::string path, const char* name, const char* type) {
  return {std::move(path), [name, type] {
            return HttpAnswer{200, type, std::string(PageFile(name))};
          }};
}

}  // namespace

std::vector<HttpRoute> StatusPage::Routes() {
  return {FileRoute("/", "index.html", "text/html; charset=utf-8"),
          FileRoute("/style.css", "style.css", "text/css; charset=utf-8"),
          FileRoute("/icon.svg", "icon.svg", "image/svg+xml"),
          FileRoute("/page.js", "page.js", kScriptType),
          FileRoute("/model.js", "model.js", kScriptType),
          FileRoute("/network.js", "network.js", kScriptType),
          FileRoute("/picture.js", "picture.js", kScriptType),
          FileRoute("/text.js", "text.js", kScriptType),
          {"/api/status", [this] { return Status(); }},
          {"/api/network", [this] { return Network(); }}};
}

void StatusPage::StandBy(std::string leader) {
  MutexLock lock(&mu_);
  leader_ = std::move(leader);
  status_ = nullptr;
  network_ = nullptr;
}

void StatusPage::Show(StatusFn status, NetworkFn network) {
  MutexLock lock(&mu_);
  status_ = std::move(status);
  network_ = std::move(network);
}

// A scheduler that stands by answers 503: a reader that ignores the HTTP status would take an empty
// answer for an empty cluster.
HttpAnswer StatusPage::Status() {
  v1::GetStatusResponse status;
  {
    MutexLock lock(&mu_);
    if (!status_) {
      const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
      return {503, kJsonType, StandbyJson(Version(), leader_, now)};
    }
    status = status_();
  }
  return {200, kJsonType, StatusJson(status)};
}

HttpAnswer StatusPage::Network() {
  absl::StatusOr<std::shared_ptr<const v1::GetNetworkResponse>> network =
      absl::UnavailableError("standing by");
  {
    MutexLock lock(&mu_);
    if (network_) network = network_();
  }
  if (!network.ok()) {
    const nlohmann::json why = {{"error", Message(network.status())}};
    return {503, kJsonType, why.dump() + "\n"};
  }
  return {200, kJsonType, NetworkJson(**network)};
}

}  // namespace addend
