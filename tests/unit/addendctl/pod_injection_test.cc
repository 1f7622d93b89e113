#include "tools/addendctl/pod_injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "lib/base/strings.h"
#include "tools/addendctl/admission_review.h"
#include "tools/addendctl/bounded_json.h"

namespace addend {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json SettingsJson() {
  return json::parse(R"({
    "failurePolicy": "Fail",
    "rules": [
      {"message": "no number of nodes",
       "value": {"annotation": "addend.io/num-nodes", "pattern": "^[1-9]$"}},
      {"message": "no CPUs", "optional": true,
       "value": {"annotation": "addend.io/cpu", "pattern": "^[0-9]+$"}},
      {"message": "no job", "hasAny": {"annotations": ["addend.io/job"], "labels": ["owner"]}},
      {"message": "no such node", "hasAny": {"annotations": ["addend.io/node-rank"], "labels": []},
       "value": {"annotation": "batch.kubernetes.io/job-completion-index", "pattern": "^[0-9]+$"},
       "below": {"annotation": "addend.io/num-nodes", "pattern": "^[1-9]$"}}],
    "jobLabels": ["first", "owner"], "modelBytes": "1000", "memory": "", "cpu": "2",
    "sidecar": {"name": "addend-agent",
                "env": [{"name": "JOB", "value": "pod:job"}, {"name": "RANK", "value": "pod:nodeRank"},
                        {"name": "OWN", "value": "pod:unknown"}],
                "resources": {"requests": {"cpu": "pod:cpu"}, "limits": {"memory": "pod:memory"}}},
    "volumes": [{"name": "addend-run", "emptyDir": {}}],
    "resourceClaims": [{"name": "addend-nic", "resourceClaimTemplateName": "nic"}],
    "imagePullSecrets": [{"name": "pull"}]})");
}

json Pod() {
  return json::parse(R"({
    "metadata": {"labels": {"addend.io/inject": "true", "owner": "j"},
                 "annotations": {"addend.io/num-nodes": "2",
                                 "batch.kubernetes.io/job-completion-index": "1"}},
    "spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}]}]}})");
}

InjectionSettings Settings() { return ParseInjectionSettings(SettingsJson().dump()).value(); }

Injection Inject(const json& pod) {
  auto injection = InjectPod(Settings(), "team", pod);
  EXPECT_TRUE(injection.ok()) << injection.status();
  return *std::move(injection);
}

json Annotated(const char* name, const char* value) {
  json pod = Pod();
  pod["metadata"]["annotations"][name] = value;
  return pod;
}

TEST(PodInjectionTest, TheSidecarHasTheValuesOfThePod) {
  const json spec = Inject(Pod()).pod["spec"];
  EXPECT_EQ(spec["initContainers"], json::parse(R"([{
      "name": "addend-agent",
      "env": [{"name": "JOB", "value": "team.j"}, {"name": "RANK", "value": "1"},
              {"name": "OWN", "value": "pod:unknown"}],
      "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "134220728"}}}])"));
}

TEST(PodInjectionTest, TrainersGetTheSocketAndKeepTheirVariables) {
  const json spec = Inject(Pod()).pod["spec"];
  EXPECT_EQ(spec["containers"][0]["env"], json::parse(R"([{"name": "A", "value": "1"},
                            {"name": "ADDEND_SOCKET", "value": "/run/addend/agent.sock"}])"));
  EXPECT_EQ(spec["containers"][0]["volumeMounts"],
            json::parse(R"([{"mountPath": "/run/addend", "name": "addend-run"}])"));
  EXPECT_EQ(spec["volumes"], json::parse(R"([{"name": "addend-run", "emptyDir": {}}])"));
  EXPECT_EQ(spec["imagePullSecrets"], json::parse(R"([{"name": "pull"}])"));
  EXPECT_EQ(spec["resourceClaims"],
            json::parse(R"([{"name": "addend-nic", "resourceClaimTemplateName": "nic"}])"));
  EXPECT_EQ(spec["securityContext"], json::parse(R"({"fsGroup": 65532})"));
}

TEST(PodInjectionTest, AGroupOfThePodStays) {
  json pod = Pod();
  pod["spec"]["securityContext"] = {{"fsGroup", 7}};
  EXPECT_EQ(Inject(pod).pod["spec"]["securityContext"], json::parse(R"({"fsGroup": 7})"));
}

TEST(PodInjectionTest, AnAnnotationLimitsTheCpu) {
  const json resources =
      Inject(Annotated("addend.io/cpu-limit", "3")).pod["spec"]["initContainers"][0]["resources"];
  EXPECT_EQ(resources["limits"]["cpu"], "3");
}

TEST(PodInjectionTest, APodWithASidecarOrWithoutTheLabelStaysAsItIs) {
  json injected = Pod();
  injected["spec"]["initContainers"] = {{{"name", "addend-agent"}}};
  json unlabelled = Pod();
  unlabelled["metadata"]["labels"].erase("addend.io/inject");
  for (const json& pod : {injected, unlabelled}) {
    const Injection injection = Inject(pod);
    EXPECT_TRUE(injection.pod.is_null());
    EXPECT_THAT(injection.refusals, IsEmpty());
  }
}

TEST(PodInjectionTest, EachRuleThatIsNotMetHasItsSentence) {
  EXPECT_THAT(Inject(Annotated("addend.io/num-nodes", "0")).refusals,
              ElementsAre("no number of nodes"));
  EXPECT_THAT(Inject(Annotated("addend.io/num-nodes", "2\n")).refusals,
              ElementsAre("no number of nodes"));
  EXPECT_THAT(Inject(Annotated("addend.io/num-nodes", "1")).refusals, ElementsAre("no such node"));
  EXPECT_THAT(Inject(Annotated("addend.io/cpu", "two")).refusals, ElementsAre("no CPUs"));
  json pod = Pod();
  pod["metadata"].erase("annotations");
  pod["metadata"]["labels"].erase("owner");
  EXPECT_THAT(Inject(pod).refusals, ElementsAre("no number of nodes", "no job"));
}

TEST(PodInjectionTest, ARankInAnAnnotationExcusesTheIndex) {
  json pod = Annotated("addend.io/node-rank", "0");
  pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = "9";
  EXPECT_THAT(Inject(pod).refusals, IsEmpty());
}

TEST(PodInjectionTest, MemoryBeyondAllBoundsIsRefused) {
  EXPECT_THAT(Inject(Annotated("addend.io/model-bytes", "9223372036854775807")).refusals,
              ElementsAre("the pod's model and ranks need more memory than there is"));
}

TEST(PodInjectionTest, AnObjectOfAnotherFormIsNoPod) {
  for (const char* pod :
       {"7", "{}", R"({"spec": []})", R"({"spec": {"containers": 7}})",
        R"({"spec": {"containers": [7]}})", R"({"spec": {}, "metadata": {"labels": {"a": 7}}})",
        R"({"spec": {"containers": [{"env": {}}]}})"}) {
    const auto injection = InjectPod(Settings(), "team", json::parse(pod));
    EXPECT_THAT(Message(injection.status()), HasSubstr("the object is no Pod: ")) << pod;
  }
}

std::string Review(const json& pod) {
  return json({{"apiVersion", "admission.k8s.io/v1"},
               {"kind", "AdmissionReview"},
               {"request",
                {{"uid", "7"}, {"operation", "CREATE"}, {"namespace", "team"}, {"object", pod}}}})
      .dump();
}

TEST(AdmissionReviewTest, ThePatchMakesTheInjectedPod) {
  const json response = json::parse(AnswerReview(Settings(), Review(Pod())).value()).at("response");
  EXPECT_EQ(response["uid"], "7");
  EXPECT_EQ(response["patchType"], "JSONPatch");
  std::string patch;
  ASSERT_TRUE(absl::Base64Unescape(response["patch"].get<std::string>(), &patch));
  EXPECT_EQ(Pod().patch(json::parse(patch)), Inject(Pod()).pod);
}

TEST(AdmissionReviewTest, TheFailurePolicyRefusesOrWarns) {
  const std::string review = Review(Annotated("addend.io/num-nodes", "0"));
  const json refused = json::parse(AnswerReview(Settings(), review).value()).at("response");
  EXPECT_EQ(refused["allowed"], false);
  EXPECT_EQ(refused["status"]["message"], "no number of nodes");
  json settings = SettingsJson();
  settings["failurePolicy"] = "Ignore";
  const json warned =
      json::parse(AnswerReview(ParseInjectionSettings(settings.dump()).value(), review).value())
          .at("response");
  EXPECT_EQ(warned["allowed"], true);
  EXPECT_EQ(warned["warnings"], json::parse(R"(["no number of nodes"])"));
}

TEST(BoundedJsonTest, DepthAndNumberOfValuesHaveBounds) {
  const auto nested = [](size_t depth) {
    return ParseBoundedJson("it", std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_TRUE(nested(kMaxJsonDepth).ok());
  EXPECT_EQ(Message(nested(kMaxJsonDepth + 1).status()), "it is nested more than 64 deep");
  const auto listed = [](size_t values) {
    return ParseBoundedJson("it", json(std::vector<int>(values - 1)).dump());
  };
  EXPECT_TRUE(listed(kMaxJsonValues).ok());
  EXPECT_EQ(Message(listed(kMaxJsonValues + 1).status()), "it has more than 200000 values");
  EXPECT_EQ(Message(ParseBoundedJson("it", "{").status()), "it is no JSON: byte 2 is not expected");
  EXPECT_FALSE(ParseBoundedJson("it", "\"\xff\"").ok());
}

}  // namespace
}  // namespace addend
