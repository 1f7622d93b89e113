#include "tools/addendctl/webhook_command.h"

#include <malloc.h>
#include <prometheus/registry.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/server_certificate.h"
#include "lib/telemetry/http_server.h"
#include "tools/addendctl/admission_review.h"
#include "tools/addendctl/file_text.h"
#include "tools/addendctl/injection_settings.h"

namespace addend {
namespace {

// A ConfigMap has no more.
constexpr size_t kMaxSettingsBytes = 1 << 20;

// Bounds the memory that glibc keeps of freed requests: by default each thread has an arena, and
// the arenas of kReviewThreads threads together keep hundreds of megabytes.
void KeepLittleMemory() {
  ::mallopt(M_ARENA_MAX, 2);
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
}

// Answers a single review at a time: an answer takes a millisecond, and a hostile question some ten
// megabytes of memory.
class Reviewer {
 public:
  explicit Reviewer(InjectionSettings settings) : settings_(std::move(settings)) {}

  HttpAnswer Answer(const std::string& body) {
    MutexLock lock(&mu_);
    absl::StatusOr<std::string> answer = Review(body);
    if (answer.ok()) return {200, "application/json", *std::move(answer)};
    return {400, "text/plain; charset=utf-8", Message(answer.status()) + "\n"};
  }

 private:
  absl::StatusOr<std::string> Review(const std::string& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    try {
      return AnswerReview(settings_, body);
    } catch (const std::exception& error) {
      return absl::InternalError(
          absl::StrFormat("the request cannot be answered: %s", error.what()));
    }
  }

  Mutex mu_;
  const InjectionSettings settings_;
};

}  // namespace

absl::Status RunWebhook(const WebhookQuestion& question, StopSignal* stop) {
  if (question.settings.empty() || question.cert.empty() || question.key.empty()) {
    return absl::InvalidArgumentError(
        "addendctl webhook needs --settings, --tls-cert and --tls-key: the files of the chart");
  }
  KeepLittleMemory();
  ADDEND_ASSIGN_OR_RETURN(const std::string text,
                          ReadFileText("--settings", question.settings, kMaxSettingsBytes));
  ADDEND_ASSIGN_OR_RETURN(InjectionSettings settings, ParseInjectionSettings(text));
  ADDEND_ASSIGN_OR_RETURN(
      const std::unique_ptr<ServerCertificate> certificate,
      ServerCertificate::Load(
          {.cert = question.cert, .key = question.key, .ca = "", .server_name = ""}));
  Reviewer reviewer(std::move(settings));
  prometheus::Registry registry;
  HttpServerOptions options;
  options.most = absl::ToChronoMilliseconds(kReviewPatience);
  options.threads = kReviewThreads;
  options.tls = [raw = certificate.get()] { return raw->Context(); };
  options.posts = {
      {"/mutate", [&reviewer](const std::string& body) { return reviewer.Answer(body); }}};
  options.body_bytes = kMaxReviewBytes;
  ADDEND_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                          HttpServer::Start(
                              question.listen.host, question.listen.port, &registry,
                              [] { return absl::OkStatus(); }, {}, {}, std::move(options)));
  absl::PrintF("addendctl webhook listens on port %d\n", server->port());
  std::fflush(stdout);
  ADDEND_RETURN_IF_ERROR(stop->WaitUntilStopped());
  spdlog::info("ends in {}: the cluster asks other pods from then on",
               absl::FormatDuration(question.linger));
  absl::SleepFor(question.linger);
  return absl::OkStatus();
}

}  // namespace addend
