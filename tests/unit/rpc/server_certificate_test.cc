#include "lib/rpc/server_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "lib/base/strings.h"
#include "tests/unit/rpc/authority.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

class ServerCertificateTest : public testing::Test {
 protected:
  ServerCertificateTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ServerCertificateTest() override { std::filesystem::remove_all(folder_); }

  static bool IsFor(SSL_CTX* context, const char* name) {
    return X509_check_host(SSL_CTX_get0_certificate(context), name, 0, 0, nullptr) == 1;
  }

  const std::string folder_ =
      absl::StrFormat("%sserver-certificate-%d", testing::TempDir(), ::getpid());
};

TEST_F(ServerCertificateTest, ARenewedCertificateIsUsedAndABrokenFileIsNot) {
  const Authority authority(folder_, "authority");
  const TlsFiles files = authority.Sign("first", "DNS:first");
  const TlsFiles second = authority.Sign("second", "DNS:second");
  const auto certificate = ServerCertificate::Load(files, absl::ZeroDuration()).value();
  EXPECT_TRUE(IsFor(certificate->Context().get(), "first"));

  WriteFile(files.cert, ReadFile(second.cert));  // of another key
  EXPECT_TRUE(IsFor(certificate->Context().get(), "first"));

  WriteFile(files.key, ReadFile(second.key));
  EXPECT_TRUE(IsFor(certificate->Context().get(), "second"));
}

TEST_F(ServerCertificateTest, TheFilesAreNotReadForEveryConnection) {
  const Authority authority(folder_, "authority");
  const TlsFiles files = authority.Sign("first", "DNS:first");
  const auto certificate = ServerCertificate::Load(files, absl::InfiniteDuration()).value();
  std::filesystem::remove(files.cert);
  EXPECT_TRUE(IsFor(certificate->Context().get(), "first"));
}

TEST_F(ServerCertificateTest, AWrongFileIsNamed) {
  const Authority authority(folder_, "authority");
  TlsFiles files = authority.Sign("holder", "DNS:holder");
  files.key = authority.Sign("other", "DNS:other").key;
  EXPECT_THAT(Message(ServerCertificate::Load(files).status()), HasSubstr("is not the key of"));
  files.cert = folder_ + "/none";
  EXPECT_THAT(Message(ServerCertificate::Load(files).status()),
              HasSubstr("--tls-cert=" + files.cert));
}

}  // namespace
}  // namespace addend
