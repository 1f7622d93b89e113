// Calls to an API server by HTTPS, against a server of the test's own.
#include "services/scheduler/store/kubernetes_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "tests/unit/rpc/authority.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr auto kOverwrite = std::filesystem::copy_options::overwrite_existing;

absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

class KubernetesApiTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "addend-api-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    const Authority authority(folder_, "authority");
    const TlsFiles files = authority.Sign("server", "IP:127.0.0.1");
    server_ = std::make_unique<httplib::SSLServer>(files.cert.c_str(), files.key.c_str());
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      last_ = request;
      answer_(response);
    };
    for (const char* path : {"/api/.*", "/apis/.*"}) {
      server_->Get(path, answer).Post(path, answer).Put(path, answer).Delete(path, answer);
    }
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    // stop() has no effect before.
    const absl::Time latest = Soon();
    while (!server_->is_running() && SteadyNow() < latest) std::this_thread::yield();
    ASSERT_TRUE(server_->is_running());
    Write("token", "first\n");
    Write("namespace", "addend");
    std::filesystem::copy_file(authority.ca(), folder_ + "/ca.crt", kOverwrite);
  }
  void TearDown() override {
    server_->stop();
    thread_.join();
    std::filesystem::remove_all(folder_);
  }
  void Write(const std::string& name, const std::string& text) {
    WriteFile(folder_ + "/" + name, text);
  }
  std::unique_ptr<KubernetesApi> Open(const std::string& space = "") {
    auto api = KubernetesApi::Open({"127.0.0.1", port_, folder_}, space);
    EXPECT_TRUE(api.ok()) << api.status();
    return *std::move(api);
  }
  void Answer(int status, const std::string& body) {
    answer_ = [=](httplib::Response& response) {
      response.status = status;
      response.set_content(body, "application/json");
    };
  }

  std::string folder_;
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;
  httplib::Request last_;
  std::function<void(httplib::Response&)> answer_;
};

TEST_F(KubernetesApiTest, CallsNameTheObjectAndCarryTheTokenThatIsValidNow) {
  Answer(200, R"({"metadata": {"resourceVersion": "7"}})");
  auto api = Open();
  const auto got = api->Get(ObjectKind::kSecret, "store", Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(TextAt(*got, "/metadata/resourceVersion"), "7");
  EXPECT_EQ(last_.path, "/api/v1/namespaces/addend/secrets/store");
  EXPECT_EQ(last_.get_header_value("Authorization"), "Bearer first");

  Write("token", "second");
  const nlohmann::json lease = {{"metadata", {{"name", "lease"}}}};
  ASSERT_TRUE(api->Replace(ObjectKind::kLease, lease, Soon()).ok());
  EXPECT_EQ(last_.method, "PUT");
  EXPECT_EQ(last_.path, "/apis/coordination.k8s.io/v1/namespaces/addend/leases/lease");
  EXPECT_EQ(last_.get_header_value("Authorization"), "Bearer second");
  EXPECT_EQ(nlohmann::json::parse(last_.body), lease);

  ASSERT_TRUE(Open("other")->Create(ObjectKind::kLease, lease, Soon()).ok());
  EXPECT_EQ(last_.method, "POST");
  EXPECT_EQ(last_.path, "/apis/coordination.k8s.io/v1/namespaces/other/leases");
  ASSERT_TRUE(api->Delete(ObjectKind::kSecret, "store", Soon()).ok());
  EXPECT_EQ(last_.method, "DELETE");
}

TEST_F(KubernetesApiTest, NamesOfAllPagesAreListed) {
  answer_ = [this](httplib::Response& response) {
    const bool first = last_.get_param_value("continue").empty();
    response.set_content(first ? R"({"metadata": {"continue": "a b"},
                                     "items": [{"metadata": {"name": "one"}}]})"
                               : R"({"metadata": {}, "items": [{"metadata": {"name": "two"}}]})",
                         "application/json");
  };
  const auto names = Open()->List(ObjectKind::kSecret, "addend.io/store", "store", Soon());
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("one", "two"));
  EXPECT_EQ(last_.get_param_value("labelSelector"), "addend.io/store=store");
  EXPECT_EQ(last_.get_param_value("continue"), "a b");
}

TEST_F(KubernetesApiTest, ErrorsHaveTheServersSentenceAndAKindThatFits) {
  const struct {
    int status;
    absl::StatusCode code;
    const char* text;
  } cases[] = {{401, absl::StatusCode::kPermissionDenied, "it is so"},
               {403, absl::StatusCode::kPermissionDenied, "it is so"},
               {404, absl::StatusCode::kNotFound, "it is so"},
               {409, absl::StatusCode::kAborted, "it is so"},
               {422, absl::StatusCode::kInternal, "it is so"},
               {429, absl::StatusCode::kUnavailable, "it is so"},
               {503, absl::StatusCode::kUnavailable, "it is so"}};
  auto api = Open();
  for (const auto& [status, code, text] : cases) {
    Answer(status, R"({"message": "it is so"})");
    const absl::Status error =
        api->Replace(ObjectKind::kLease, {{"metadata", {{"name", "x"}}}}, Soon()).status();
    EXPECT_EQ(error.code(), code) << status;
    EXPECT_THAT(Message(error), HasSubstr(text));
  }
  const auto create = [&] {
    return api->Create(ObjectKind::kSecret, nlohmann::json::object(), Soon()).status();
  };
  Answer(409, R"({"reason": "AlreadyExists"})");
  EXPECT_EQ(create().code(), absl::StatusCode::kAlreadyExists);
  Answer(409, R"({"reason": "Conflict", "message": "the quota was changed"})");
  EXPECT_EQ(create().code(), absl::StatusCode::kUnavailable);
  Answer(403, R"({"message": "User x cannot create resource secrets"})");
  EXPECT_THAT(Message(create()), HasSubstr("needs a Role"));
  Answer(403, R"({"message": "exceeded quota"})");
  EXPECT_THAT(Message(create()), testing::Not(HasSubstr("Role")));
}

TEST_F(KubernetesApiTest, AnswersThatAreNoJsonOrTooLongAreErrors) {
  auto api = Open();
  for (const std::string& body : {std::string(), std::string("["), std::string("[]"),
                                  std::string("\xff"), std::string(5 << 20, ' ')}) {
    Answer(200, body);
    EXPECT_EQ(api->Get(ObjectKind::kLease, "x", Soon()).status().code(),
              absl::StatusCode::kUnavailable);
  }
  Answer(500, std::string(10'000, 'x'));
  EXPECT_LT(Message(api->Get(ObjectKind::kLease, "x", Soon()).status()).size(), 1000U);
}

TEST_F(KubernetesApiTest, ServerThatTheAccountsAuthorityHasNotSignedGetsNoToken) {
  const Authority other(folder_, "other");
  std::filesystem::copy_file(other.ca(), folder_ + "/ca.crt", kOverwrite);
  Answer(200, "{}");
  EXPECT_EQ(Open()->Get(ObjectKind::kLease, "x", Soon()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(last_.path, "");
}

TEST_F(KubernetesApiTest, SilentServerIsGivenUpAtTheDeadline) {
  answer_ = [](httplib::Response&) { std::this_thread::sleep_for(std::chrono::seconds(3)); };
  const absl::Time asked = SteadyNow();
  EXPECT_EQ(Open()->Get(ObjectKind::kLease, "x", asked + absl::Milliseconds(300)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(SteadyNow() - asked, absl::Seconds(2));
}

TEST_F(KubernetesApiTest, PodWithoutATokenIsToldToMountIt) {
  std::filesystem::remove(folder_ + "/token");
  const auto api = KubernetesApi::Open({"127.0.0.1", port_, folder_}, "");
  EXPECT_EQ(ExitCodeOf(api.status()), 64);
  EXPECT_THAT(Message(api.status()), HasSubstr("automountServiceAccountToken: true"));
}

TEST(KubernetesPodTest, ProcessOutsideOfAClusterIsToldSo) {
  ::unsetenv("KUBERNETES_SERVICE_HOST");
  EXPECT_THAT(Message(KubernetesApi::OfThisPod().status()), HasSubstr("works in a pod"));
  ::setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
  for (const char* wrong : {"", "0", "65536", "x"}) {
    ::setenv("KUBERNETES_SERVICE_PORT", wrong, 1);
    EXPECT_FALSE(KubernetesApi::OfThisPod().ok()) << wrong;
  }
  ::setenv("KUBERNETES_SERVICE_PORT", "6443", 1);
  const auto server = KubernetesApi::OfThisPod();
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(server->host, "10.0.0.1");
  EXPECT_EQ(server->port, 6443);
}

}  // namespace
}  // namespace addend
