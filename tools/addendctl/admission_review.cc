#include "tools/addendctl/admission_review.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/status_macros.h"
#include "tools/addendctl/bounded_json.h"
#include "tools/addendctl/pod_injection.h"

namespace addend {
namespace {

using nlohmann::json;

constexpr char kReviewApi[] = "admission.k8s.io/v1";
constexpr char kReviewKind[] = "AdmissionReview";

struct Question {
  std::string uid;
  std::string operation;
  std::string pod_namespace;
  json pod;
};

absl::Status WrongReview(const std::string& reason) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the request is no review of a Pod: %s", reason));
}

// Empty where there is no such text.
std::string TextOfReview(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::StatusOr<Question> ReadQuestion(const std::string& body) {
  ADDEND_ASSIGN_OR_RETURN(json review, ParseBoundedJson("the request", body));
  if (!review.is_object() || TextOfReview(review, "apiVersion") != kReviewApi ||
      TextOfReview(review, "kind") != kReviewKind) {
    return WrongReview(absl::StrFormat("it is not of kind %s of %s", kReviewKind, kReviewApi));
  }
  const auto request = review.find("request");
  if (request == review.end() || !request->is_object()) return WrongReview("it has no request");
  Question question{TextOfReview(*request, "uid"), TextOfReview(*request, "operation"),
                    TextOfReview(*request, "namespace"), nullptr};
  if (question.uid.empty()) return WrongReview("it has no uid");
  if (question.pod_namespace.empty()) return WrongReview("it has no namespace");
  const auto pod = request->find("object");
  if (pod == request->end() || !pod->is_object()) return WrongReview("it has no object");
  const auto kind = request->find("kind");
  if (kind != request->end() && kind->is_object() && TextOfReview(*kind, "kind") != "Pod") {
    return WrongReview(absl::StrFormat("its object is a %s", TextOfReview(*kind, "kind")));
  }
  question.pod = std::move(*pod);
  return question;
}

void SetRefusal(const InjectionSettings& settings, const std::vector<std::string>& sentences,
                json* response) {
  if (!settings.refuses) {
    (*response)["warnings"] = sentences;
    return;
  }
  (*response)["allowed"] = false;
  (*response)["status"] = {{"status", "Failure"},
                           {"reason", "Invalid"},
                           {"code", 422},
                           {"message", absl::StrJoin(sentences, "; ")}};
}

}  // namespace

absl::StatusOr<std::string> AnswerReview(const InjectionSettings& settings,
                                         const std::string& body) {
  ADDEND_ASSIGN_OR_RETURN(const Question question, ReadQuestion(body));
  json response = {{"uid", question.uid}, {"allowed", true}};
  // As the policy: only new pods.
  if (question.operation == "CREATE") {
    ADDEND_ASSIGN_OR_RETURN(const Injection injection,
                            InjectPod(settings, question.pod_namespace, question.pod));
    if (!injection.refusals.empty()) SetRefusal(settings, injection.refusals, &response);
    if (!injection.pod.is_null()) {
      response["patchType"] = "JSONPatch";
      response["patch"] = absl::Base64Escape(json::diff(question.pod, injection.pod).dump());
    }
  }
  const json review = {{"apiVersion", kReviewApi}, {"kind", kReviewKind}, {"response", response}};
  return review.dump();
}

}  // namespace addend
