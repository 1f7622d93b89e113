#include "tests/unit/rpc/authority.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

constexpr char kNewKey[] = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

}  // namespace

void Shell(const std::string& command) {
  ASSERT_EQ(std::system(("set -e; { " + command + "; } >/dev/null 2>&1").c_str()), 0) << command;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

Authority::Authority(std::string folder, std::string name)
    : folder_(std::move(folder)), name_(std::move(name)) {
  Shell(
      absl::StrFormat("cd '%s'; openssl req -x509 %s -days 1 -keyout %s.key -out %s.crt -subj "
                      "/CN=%s",
                      folder_, kNewKey, name_, name_, name_));
}

TlsFiles Authority::Sign(const std::string& holder, const std::string& names, int days) const {
  Shell(absl::StrFormat(
      "cd '%s'; mkdir -p %s; openssl req %s -keyout %s/tls.key -out request.pem -subj /CN=%s; "
      "echo subjectAltName=%s >names; openssl x509 -req -in request.pem -CA %s.crt -CAkey %s.key "
      "-CAcreateserial -days %d -extfile names -out %s/tls.crt; cp %s.crt %s/ca.crt",
      folder_, holder, kNewKey, holder, holder, names, name_, name_, days, holder, name_, holder));
  const std::string base = folder_ + "/" + holder;
  return {.cert = base + "/tls.crt",
          .key = base + "/tls.key",
          .ca = base + "/ca.crt",
          .server_name = ""};
}

}  // namespace addend
