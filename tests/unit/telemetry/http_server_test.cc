#include "lib/telemetry/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/telemetry/labelled_gauges.h"
#include "lib/telemetry/metrics.h"

namespace addend {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class HttpServerTest : public ::testing::Test {
 protected:
  void StartServer(const std::string& host = "127.0.0.1", std::vector<HttpRoute> routes = {}) {
    auto started = HttpServer::Start(
        host, 0, &registry_, [this] { return ready_; }, {}, std::move(routes));
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }

  httplib::Result Get(const std::string& path) {
    httplib::Client client("127.0.0.1", server_->port());
    return client.Get(path);
  }

  prometheus::Registry registry_;
  absl::Status ready_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesMetrics) {
  AddCounter(&registry_, "addend_rounds_total", "Rounds.", {{"kind", "a"}}).Increment(2);
  AddCounter(&registry_, "addend_rounds_total", "Rounds.", {{"kind", "b"}}).Increment();
  AddGauge(&registry_, "addend_open", "Open.").Set(7);
  AddHistogram(&registry_, "addend_wait_seconds", "Wait.", {0.1, 1}).Observe(0.5);
  StartServer();
  const auto answer = Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_THAT(answer->body, HasSubstr("addend_rounds_total{kind=\"a\"} 2\n"));
  EXPECT_THAT(answer->body, HasSubstr("addend_rounds_total{kind=\"b\"} 1\n"));
  EXPECT_THAT(answer->body, HasSubstr("addend_open 7\n"));
  EXPECT_THAT(answer->body, HasSubstr("addend_wait_seconds_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(answer->body, HasSubstr("addend_build_info{version=\""));
  EXPECT_THAT(answer->body, HasSubstr("\nprocess_resident_memory_bytes "));
  EXPECT_THAT(answer->body, HasSubstr("\nprocess_cpu_seconds_total "));
  EXPECT_THAT(answer->body, HasSubstr("\nprocess_open_fds "));
}

TEST_F(HttpServerTest, LabelledGaugesVanishWithTheirObjects) {
  LabelledGauges gauges(&registry_, "addend_job_nodes", "Nodes.");
  StartServer();
  gauges.Set({{{{"job_name", "a"}}, 1}, {{{"job_name", "b"}}, 2}});
  EXPECT_THAT(Get("/metrics")->body, HasSubstr("addend_job_nodes{job_name=\"b\"} 2\n"));
  gauges.Set({{{{"job_name", "b"}}, 3}});
  EXPECT_THAT(Get("/metrics")->body, Not(HasSubstr("job_name=\"a\"")));
  EXPECT_THAT(Get("/metrics")->body, HasSubstr("addend_job_nodes{job_name=\"b\"} 3\n"));
  gauges.Set({});
  EXPECT_THAT(Get("/metrics")->body, Not(HasSubstr("job_name")));
}

TEST_F(HttpServerTest, APostIsAnsweredFromItsBody) {
  HttpServerOptions options;
  options.body_bytes = 10;
  options.posts = {{"/echo", [](const std::string& body) {
                      return HttpAnswer{200, "text/plain", "<" + body + ">"};
                    }}};
  auto started = HttpServer::Start(
      "127.0.0.1", 0, &registry_, [] { return absl::OkStatus(); }, {}, {}, std::move(options));
  ASSERT_TRUE(started.ok()) << started.status();
  httplib::Client client("127.0.0.1", (*started)->port());
  EXPECT_EQ(client.Post("/echo", "a=1&b", "application/x-www-form-urlencoded")->body, "<a=1&b>");
  EXPECT_EQ(client.Post("/echo", "12345678901", "text/plain")->status, 413);
  EXPECT_EQ(client.Get("/echo")->status, 404);
  EXPECT_THAT(client.Get("/other")->body, HasSubstr("/echo (by POST)"));
}

TEST_F(HttpServerTest, ReadinessFollowsTheService) {
  StartServer();
  EXPECT_EQ(Get("/readyz")->status, 200);
  ready_ = absl::UnavailableError("waiting for node 3");
  const auto answer = Get("/readyz");
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "waiting for node 3\n");
  EXPECT_EQ(Get("/healthz")->status, 200);
}

TEST_F(HttpServerTest, OtherPathsAreNotFound) {
  StartServer();
  EXPECT_EQ(Get("/")->status, 404);
  EXPECT_THAT(Get("/nothing")->body, HasSubstr("/nothing is not here"));
}

TEST_F(HttpServerTest, ServesFurtherPathsLiterally) {
  int asked = 0;
  StartServer("127.0.0.1", {{"/page.js", [&asked] {
                               ++asked;
                               return HttpAnswer{203, "text/javascript", "let a;"};
                             }}});
  const auto answer = Get("/page.js");
  EXPECT_EQ(answer->status, 203);
  EXPECT_EQ(answer->body, "let a;");
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/javascript");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Get("/page_js")->status, 404);
  EXPECT_THAT(Get("/nothing")->body, HasSubstr("/page.js, /metrics"));
}

TEST_F(HttpServerTest, BrowsersLoadNothingFromElsewhereAndKeepNothing) {
  StartServer();
  const auto answer = Get("/metrics");
  const std::string policy = answer->get_header_value("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe-inline")));
  EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
}

TEST_F(HttpServerTest, ListensOnAllInterfaces) {
  StartServer("");
  EXPECT_EQ(Get("/healthz")->status, 200);
}

TEST_F(HttpServerTest, ATakenPortIsRefused) {
  StartServer();
  const auto second =
      HttpServer::Start("127.0.0.1", server_->port(), &registry_, [] { return absl::OkStatus(); });
  EXPECT_EQ(Message(second.status()),
            absl::StrFormat("cannot listen on 127.0.0.1:%d for HTTP: Address already in use",
                            server_->port()));
  EXPECT_EQ(KindOf(second.status()), FailureKind::kInvalid);
  const auto everywhere =
      HttpServer::Start("", server_->port(), &registry_, [] { return absl::OkStatus(); });
  EXPECT_THAT(Message(everywhere.status()), HasSubstr("Address already in use"));
}

TEST_F(HttpServerTest, AForeignAddressIsRefused) {
  const auto server =
      HttpServer::Start("192.0.2.1", 0, &registry_, [] { return absl::OkStatus(); });
  EXPECT_THAT(Message(server.status()),
              MatchesRegex("cannot listen on 192.0.2.1:0 for HTTP: Cannot assign.*"));
}

TEST_F(HttpServerTest, AnIdleClientDoesNotHoldUpTheOthers) {
  StartServer();
  httplib::Client a("127.0.0.1", server_->port());
  httplib::Client b("127.0.0.1", server_->port());
  httplib::Client c("127.0.0.1", server_->port());
  for (auto* client : {&a, &b, &c}) {
    client->set_keep_alive(true);
    client->set_read_timeout(1);
    EXPECT_TRUE(client->Get("/healthz"));
  }
}

}  // namespace
}  // namespace addend
