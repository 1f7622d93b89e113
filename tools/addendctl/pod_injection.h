// Adds the sidecar to a pod, as the chart's admission policy does (deploy/helm/addend/templates/
// injection.yaml); tests/deploy/test_helm_webhook.py compares the two.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/addendctl/injection_settings.h"

namespace addend {

struct Injection {
  std::vector<std::string> refusals;  // why no sidecar can be made; readable, a sentence each
  nlohmann::json pod;                 // with the sidecar; null: the pod stays as it is
};

// `pod`: any JSON. `pod_namespace`: where the pod is created; its own metadata may leave that out.
// A pod without the label addend.io/inject: "true", or with a sidecar, stays as it is.
// InvalidArgument: `pod` is no Pod of Kubernetes.
absl::StatusOr<Injection> InjectPod(const InjectionSettings& settings,
                                    const std::string& pod_namespace, const nlohmann::json& pod);

}  // namespace addend
