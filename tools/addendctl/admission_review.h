// The API server's question about a new pod, and the answer to it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/addendctl/injection_settings.h"

namespace addend {

// Answers an AdmissionReview of admission.k8s.io/v1 with another: a JSON patch that adds the
// sidecar, nothing for a pod that stays as it is, or the sentences that refuse the pod (warnings
// where the settings do not refuse). InvalidArgument: `body` is no such question about a Pod.
absl::StatusOr<std::string> AnswerReview(const InjectionSettings& settings,
                                         const std::string& body);

}  // namespace addend
