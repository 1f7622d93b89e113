// The scheduler's page for people and its /api/status.
#include "services/scheduler/status_page.h"

#include <utility>

#include "absl/time/clock.h"
#include "lib/base/version.h"
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
          FileRoute("/picture.js", "picture.js", kScriptType),
          FileRoute("/text.js", "text.js", kScriptType),
          {"/api/status", [this] { return Status(); }}};
}

void StatusPage::StandBy(std::string leader) {
  MutexLock lock(&mu_);
  leader_ = std::move(leader);
  status_ = nullptr;
}

void StatusPage::Show(StatusFn status) {
  MutexLock lock(&mu_);
  status_ = std::move(status);
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

}  // namespace addend
