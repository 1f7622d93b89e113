#include "lib/member/node_number.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/member/prober.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"

namespace addend {
namespace {

constexpr absl::Duration kBetweenCalls = absl::Milliseconds(500);
constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kBetweenLines = absl::Seconds(5);

class Asker {
 public:
  Asker(const MemberOptions& options, absl::Duration patience, v1::RegisterNodeRequest node)
      : options_(options), patience_(patience) {
    request_.set_incarnation(node.incarnation());
    *request_.mutable_node() = std::move(node);
    // A check of the registration, whose key comes later.
    request_.mutable_node()->set_member_key(std::string(auth::TextOf(auth::NewSecret())));
    for (const std::string& target : Targets(options.scheduler)) {
      stubs_.push_back(v1::Scheduler::NewStub(Dial(target)));
    }
  }

  absl::StatusOr<uint32_t> Ask() {
    const absl::Time began = SteadyNow();
    answered_ = began;
    while (true) {
      v1::NumberNodeResponse response;
      ADDEND_RETURN_IF_ERROR(Call(&response));
      if (response.numbered()) return response.node_rank();
      if (!response.waits_for().empty()) waits_for_ = response.waits_for();
      prober_.Measure(response.probe());
      if (SteadyNow() - began > patience_) {
        return MakeFailure(FailureKind::kTemporary,
                           absl::StrFormat("this node got no number within --stall-timeout=%s: %s",
                                           absl::FormatDuration(patience_), waits_for_));
      }
      if (SteadyNow() >= next_line_) {
        spdlog::info("--node-rank=auto: {}", waits_for_);
        next_line_ = SteadyNow() + kBetweenLines;
      }
      ADDEND_RETURN_IF_ERROR(Sleep());
    }
  }

 private:
  // OK without an answer: the scheduler may come yet.
  absl::Status Call(v1::NumberNodeResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context, kCallTimeout);
    prober_.Take(request_.mutable_probes());
    const absl::Status status =
        FromGrpc(stubs_[current_]->NumberNode(&context, request_, response));
    if (!IsUnreachable(status)) {
      answered_ = SteadyNow();
      request_.clear_probes();
      return status;
    }
    if (request_.probes_size() > kProbesKept) request_.clear_probes();
    current_ = (current_ + 1) % stubs_.size();
    waits_for_ = absl::StrFormat("the scheduler %s does not answer", options_.scheduler);
    if (SteadyNow() - answered_ < options_.connect_timeout) return absl::OkStatus();
    return MakeFailure(
        FailureKind::kUnreachable,
        absl::StrFormat("scheduler %s has not answered for %s (%s); check the address and that it "
                        "runs",
                        options_.scheduler, absl::FormatDuration(options_.connect_timeout),
                        WhyUnreachable(options_.scheduler, status)));
  }

  absl::Status Sleep() {
    const absl::Time until = SteadyNow() + kBetweenCalls;
    const MutexLock lock(&mu_);
    while (SteadyNow() < until) {
      if (options_.give_up && options_.give_up()) {
        return absl::CancelledError("stopped while this node waited for its number");
      }
      never_.WaitUntil(&mu_, std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(kLook));
    }
    return absl::OkStatus();
  }

  static constexpr int kProbesKept = 32;
  const MemberOptions& options_;
  const absl::Duration patience_;
  v1::NumberNodeRequest request_;
  std::vector<std::unique_ptr<v1::Scheduler::Stub>> stubs_;
  size_t current_ = 0;
  internal::Prober prober_;
  std::string waits_for_ = "waits for the scheduler";
  absl::Time answered_;
  absl::Time next_line_ = SteadyNow() + kBetweenLines;
  Mutex mu_;
  CondVar never_;
};

}  // namespace

absl::StatusOr<uint32_t> AskForNodeRank(const MemberOptions& options, absl::Duration patience,
                                        v1::RegisterNodeRequest node) {
  return Asker(options, patience, std::move(node)).Ask();
}

}  // namespace addend
