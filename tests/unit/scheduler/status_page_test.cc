#include "services/scheduler/status_page.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace addend {
namespace {

using testing::HasSubstr;
using testing::Not;

HttpAnswer Get(StatusPage& page, const std::string& path) {
  for (const HttpRoute& route : page.Routes()) {
    if (route.path == path) return route.answer();
  }
  return {404, "", ""};
}

nlohmann::json Status(StatusPage& page) {
  return nlohmann::json::parse(Get(page, "/api/status").body);
}

TEST(StatusPageTest, PageStandsByWithoutAKnownLeader) {
  StatusPage page;
  EXPECT_EQ(Get(page, "/api/status").status, 503);
  EXPECT_EQ(Status(page)["standby"], true);
  EXPECT_TRUE(Status(page)["leader"].is_null());
  page.StandBy("gpu0 (process 7)");
  EXPECT_EQ(Status(page)["leader"], "gpu0 (process 7)");
}

TEST(StatusPageTest, LeaderShowsItsStatus) {
  StatusPage page;
  page.Show(
      [] {
        v1::GetStatusResponse status;
        status.set_store("memory");
        return status;
      },
      [] {
        auto network = std::make_shared<v1::GetNetworkResponse>();
        network->set_levels(2);
        return std::shared_ptr<const v1::GetNetworkResponse>(std::move(network));
      });
  EXPECT_EQ(Get(page, "/api/status").status, 200);
  EXPECT_EQ(Get(page, "/api/status").content_type, "application/json");
  EXPECT_EQ(Status(page)["store"], "memory");
  EXPECT_EQ(nlohmann::json::parse(Get(page, "/api/network").body)["levels"], 2);
  page.StandBy("");
  EXPECT_EQ(Get(page, "/api/network").status, 503);
  EXPECT_EQ(Get(page, "/api/status").status, 503);
}

TEST(StatusPageTest, PageHasItsFiles) {
  StatusPage page;
  EXPECT_THAT(Get(page, "/").body, HasSubstr(" src=\"/page.js\""));
  EXPECT_EQ(Get(page, "/").content_type, "text/html; charset=utf-8");
  EXPECT_THAT(Get(page, "/page.js").body, HasSubstr("/api/status"));
  EXPECT_THAT(Get(page, "/style.css").body, HasSubstr("prefers-color-scheme"));
}

// A script that the browser is told not to run would only fail there.
TEST(StatusPageTest, NoScriptOrStyleIsWrittenIntoThePage) {
  StatusPage page;
  const std::string html = Get(page, "/").body;
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, Not(HasSubstr("<style")));
  EXPECT_THAT(html, Not(HasSubstr(" style=")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick")));
  for (const char* path : {"/page.js", "/model.js", "/network.js", "/picture.js", "/text.js"}) {
    const HttpAnswer script = Get(page, path);
    EXPECT_EQ(script.content_type, "text/javascript; charset=utf-8");
    EXPECT_FALSE(script.body.empty()) << path;
    EXPECT_THAT(script.body, Not(HasSubstr("innerHTML")));
  }
}

}  // namespace
}  // namespace addend
