// `addendctl webhook`: a mutating admission webhook that adds the sidecar to labelled pods, for
// clusters without the API MutatingAdmissionPolicy.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lib/options/host_port.h"
#include "lib/options/stop_signal.h"

namespace addend {

// Kubernetes itself takes no request of more bytes.
constexpr size_t kMaxReviewBytes = 3 << 20;
// Connections that are read and written at a time; the others wait.
constexpr int kReviewThreads = 16;
// After it the API server has given up: the chart's timeoutSeconds.
constexpr absl::Duration kReviewPatience = absl::Seconds(5);

struct WebhookQuestion {
  HostPort listen;
  std::string cert;
  std::string key;
  std::string settings;  // the file
  // Time between the signal to end and the end: meanwhile the cluster learns to ask another pod.
  absl::Duration linger = absl::Seconds(5);
};

// Serves POST /mutate, GET /healthz, /readyz and /metrics over HTTPS until `stop`, and prints the
// port first. INVALID_ARGUMENT names the flag or the part of a file that is wrong.
absl::Status RunWebhook(const WebhookQuestion& question, StopSignal* stop);

}  // namespace addend
