// Any body of a request to addendctl webhook: it is refused, or its answer allows or refuses the
// pod; a patch applies to the pod, which then has the sidecar, and stays as it is the next time.
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/fuzz/check.h"
#include "tools/addendctl/admission_review.h"

namespace addend::fuzz {
namespace {

using nlohmann::json;

constexpr char kSettings[] = R"({
    "failurePolicy": "Fail",
    "rules": [
      {"message": "no number of nodes",
       "value": {"annotation": "addend.io/num-nodes", "pattern": "^[1-9][0-9]{0,5}$"}},
      {"message": "no such node", "hasAny": {"annotations": ["addend.io/node-rank"], "labels": []},
       "value": {"annotation": "batch.kubernetes.io/job-completion-index", "pattern": "^[0-9]+$"},
       "below": {"annotation": "addend.io/num-nodes", "pattern": "^[1-9]$"}}],
    "jobLabels": ["batch.kubernetes.io/job-name"], "modelBytes": "1000", "memory": "", "cpu": "2",
    "sidecar": {"name": "addend-agent", "env": [{"name": "JOB", "value": "pod:job"}],
                "resources": {"limits": {"memory": "pod:memory"}}},
    "volumes": [{"name": "addend-run", "emptyDir": {}}], "resourceClaims": [], "imagePullSecrets": [{"name": "pull"}]})";

void CheckPatch(const InjectionSettings& settings, json review, const std::string& encoded) {
  std::string patch;
  FUZZ_CHECK(absl::Base64Unescape(encoded, &patch), "a patch is in base64");
  json& pod = review["request"]["object"];
  pod = pod.patch(json::parse(patch));
  FUZZ_CHECK(pod["spec"]["initContainers"].back()["name"] == "addend-agent", "it has a sidecar");
  const auto again = AnswerReview(settings, review.dump());
  FUZZ_CHECK(again.ok(), "a changed pod is a pod");
  const json response = json::parse(*again)["response"];
  FUZZ_CHECK(response["allowed"] == true && !response.contains("patch"), "once suffices");
}

}  // namespace
}  // namespace addend::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace addend;
  static const InjectionSettings* const settings =
      new InjectionSettings(ParseInjectionSettings(fuzz::kSettings).value());
  const std::string body(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<std::string> answer = AnswerReview(*settings, body);
  if (!answer.ok()) return 0;
  const nlohmann::json response = nlohmann::json::parse(*answer)["response"];
  const bool patched = response.contains("patch");
  FUZZ_CHECK(response["allowed"] == true || !patched, "a refused pod is not changed");
  FUZZ_CHECK(response["allowed"] == true || response["status"]["message"] != "", "with a reason");
  if (patched) fuzz::CheckPatch(*settings, nlohmann::json::parse(body), response["patch"]);
  return 0;
}
