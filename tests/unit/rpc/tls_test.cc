#include "lib/rpc/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/rpc/client.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "lib/rpc/tls_probe.h"
#include "proto/addend/v1/agent.grpc.pb.h"
#include "tests/unit/rpc/authority.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

constexpr char kHere[] = "IP:127.0.0.1,DNS:localhost";

class AgentService final : public v1::Agent::Service {
  grpc::Status GetAgent(grpc::ServerContext*, const v1::GetAgentRequest*,
                        v1::GetAgentResponse*) override {
    return grpc::Status::OK;
  }
};

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TlsTest() override {
    server_.reset();
    identities_.clear();
    std::filesystem::remove_all(folder_);
  }

  // The identity lives as long as the fixture, because it must outlive the server.
  std::shared_ptr<TlsIdentity> Identity(const TlsFiles& files) {
    identities_.push_back(Load(files));
    return identities_.back();
  }
  static std::unique_ptr<TlsIdentity> Load(const TlsFiles& files) {
    auto identity = TlsIdentity::Load(files);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *std::move(identity);
  }
  void Serve(const TlsIdentity* identity) {
    server_ = *RpcServer::Start({.listen = {"127.0.0.1", 0}, .health_listen = {{"127.0.0.1", 0}}},
                                {&service_}, identity);
  }
  std::string Target(const std::string& host = "127.0.0.1") const {
    return absl::StrFormat("%s:%d", host, server_->port());
  }
  // A call over a new connection.
  static absl::Status Call(const std::string& target, const TlsIdentity* identity) {
    return CallOver(Dial(target, identity));
  }
  static absl::Status CallOver(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(5));
    v1::GetAgentResponse response;
    return FromGrpc(v1::Agent::NewStub(channel)->GetAgent(&context, {}, &response));
  }
  // Waits until a new connection has the wanted outcome.
  template <typename Condition>
  bool Eventually(const Condition& condition) {
    for (int i = 0; i < 200; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  const std::string folder_ = absl::StrFormat("%s/tls_test.%d", testing::TempDir(), ::getpid());
  AgentService service_;
  std::vector<std::shared_ptr<TlsIdentity>> identities_;
  std::unique_ptr<RpcServer> server_;
};

// The descriptors of this process that are memory of the name addend-tls.
std::set<std::string> DescriptorsOfCopies() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own descriptor
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.find("memfd:addend-tls") != std::string::npos) found.insert(entry.path());
  }
  return found;
}

TEST_F(TlsTest, BothEndsOfOneAuthorityTalk) {
  const Authority authority(folder_, "authority");
  const auto server = Identity(authority.Sign("server", kHere));
  const auto client = Identity(authority.Sign("client", "DNS:anything"));
  Serve(server.get());
  EXPECT_TRUE(Call(Target(), client.get()).ok()) << "an IP address of the certificate";
  EXPECT_TRUE(Call(Target("localhost"), client.get()).ok()) << "a DNS name of it";
  EXPECT_EQ(internal::WhyTlsFails(Target(), client.get()), "");
}

TEST_F(TlsTest, TheHealthPortStaysPlainText) {
  const Authority authority(folder_, "authority");
  const auto server = Identity(authority.Sign("server", kHere));
  Serve(server.get());
  const std::string health = absl::StrFormat("127.0.0.1:%d", server_->health_port());
  EXPECT_TRUE(absl::IsUnimplemented(Call(health, nullptr))) << "it answers, but is no agent";
}

TEST_F(TlsTest, TheProcessIdentityIsUsedUntilItIsDestroyed) {
  const Authority authority(folder_, "authority");
  auto both = Load(authority.Sign("both", kHere));
  SetProcessIdentity(both.get());
  server_ = *RpcServer::Start({.listen = {"127.0.0.1", 0}, .health_listen = {}}, {&service_});
  EXPECT_TRUE(CallOver(Dial(Target())).ok());
  EXPECT_FALSE(Call(Target(), nullptr).ok());
  server_.reset();
  both.reset();
  EXPECT_EQ(ProcessIdentity(), nullptr);
}

TEST_F(TlsTest, AnUnknownAuthorityIsRefusedAndNamed) {
  const Authority authority(folder_, "authority");
  const Authority other(folder_, "other");
  const auto server = Identity(authority.Sign("server", kHere));
  const auto stranger = Identity(other.Sign("stranger", kHere));
  Serve(server.get());
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), stranger.get())));
  EXPECT_THAT(internal::WhyTlsFails(Target(), stranger.get()),
              HasSubstr(absl::StrFormat("its certificate is not one that --tls-ca=%s/stranger/"
                                        "ca.crt has signed",
                                        folder_)));
}

TEST_F(TlsTest, TheServerRefusesAClientOfAnotherAuthorityAndTheClientLearnsIt) {
  const Authority authority(folder_, "authority");
  const Authority other(folder_, "other");
  const auto server = Identity(authority.Sign("server", kHere));
  TlsFiles files = other.Sign("stranger", kHere);
  files.ca = authority.ca();  // it trusts the server, but not the other way round
  const auto stranger = Identity(files);
  Serve(server.get());
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), stranger.get())));
  EXPECT_THAT(internal::WhyTlsFails(Target(), stranger.get()),
              HasSubstr("it refuses the certificate --tls-cert=" + files.cert));
}

TEST_F(TlsTest, AnExpiredCertificateIsRefusedAndTheClientLearnsIt) {
  const Authority authority(folder_, "authority");
  const auto server = Identity(authority.Sign("server", kHere));
  const auto late = Identity(authority.Sign("late", kHere, 0));
  Serve(server.get());
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), late.get())));
  EXPECT_THAT(internal::WhyTlsFails(Target(), late.get()), HasSubstr("expired"));
}

TEST_F(TlsTest, AServersCertificateMustBeForTheHostThatIsDialled) {
  const Authority authority(folder_, "authority");
  const auto server = Identity(authority.Sign("server", "DNS:addend"));
  TlsFiles files = authority.Sign("client", kHere);
  const auto client = Identity(files);
  Serve(server.get());
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), client.get())));
  EXPECT_THAT(internal::WhyTlsFails(Target(), client.get()),
              HasSubstr("its certificate is not for 127.0.0.1"));
  files.server_name = "addend";
  const auto knowing = Identity(files);
  EXPECT_TRUE(Call(Target(), knowing.get()).ok()) << "--tls-server-name names what to expect";
  EXPECT_EQ(internal::WhyTlsFails(Target(), knowing.get()), "");
}

TEST_F(TlsTest, AClientWithoutACertificateIsRefused) {
  const Authority authority(folder_, "authority");
  const auto server = Identity(authority.Sign("server", kHere));
  Serve(server.get());
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), nullptr)));
  EXPECT_THAT(internal::WhyTlsFails(Target(), nullptr), HasSubstr("it speaks TLS"));
  // An anonymous TLS client: openssl's client gets an alert.
  Shell(
      absl::StrFormat("! openssl s_client -connect %s -CAfile %s -alpn h2 -verify_return_error "
                      "-ign_eof </dev/null",
                      Target(), authority.ca()));
}

TEST_F(TlsTest, APlainTextServerIsNamedAsSuch) {
  const Authority authority(folder_, "authority");
  const auto client = Identity(authority.Sign("client", kHere));
  Serve(nullptr);
  EXPECT_TRUE(absl::IsUnavailable(Call(Target(), client.get())));
  EXPECT_THAT(internal::WhyTlsFails(Target(), client.get()), HasSubstr("it speaks plain text"));
  EXPECT_EQ(internal::WhyTlsFails(Target(), nullptr), "") << "plain text on both ends is right";
}

TEST_F(TlsTest, NewFilesAreUsedWithinSecondsAndTheOldAuthorityIsForgotten) {
  const Authority former(folder_, "former");
  const Authority later(folder_, "later");
  // As Kubernetes mounts secrets: the files are links through a link that is swapped.
  former.Sign("first", kHere);
  later.Sign("second", kHere);
  Shell(
      absl::StrFormat("cd '%s'; ln -s first data; mkdir mounted; for f in tls.crt tls.key "
                      "ca.crt; do ln -s ../data/$f mounted/$f; done",
                      folder_));
  const auto mounted = Identity({.cert = folder_ + "/mounted/tls.crt",
                                 .key = folder_ + "/mounted/tls.key",
                                 .ca = folder_ + "/mounted/ca.crt",
                                 .server_name = ""});
  const auto of_former = Identity(former.Sign("of_former", kHere));
  const auto of_later = Identity(later.Sign("of_later", kHere));
  Serve(mounted.get());
  const auto open = Dial(Target(), of_former.get());
  ASSERT_TRUE(CallOver(open).ok());
  ASSERT_FALSE(Call(Target(), of_later.get()).ok());
  Shell(absl::StrFormat("cd '%s'; ln -s second next; mv -T next data", folder_));
  EXPECT_TRUE(Eventually([&] { return Call(Target(), of_later.get()).ok(); }));
  EXPECT_TRUE(Eventually([&] { return !Call(Target(), of_former.get()).ok(); }));
  EXPECT_TRUE(CallOver(open).ok()) << "an open connection stays";
  EXPECT_TRUE(Call(Target(), mounted.get()).ok()) << "the same identity as a client";
}

TEST_F(TlsTest, TheDescriptorsThatGrpcReadsKeepTheirNumbersAfterTheIdentityIsDestroyed) {
  const Authority authority(folder_, "authority");
  const TlsFiles files = authority.Sign("client", kHere);
  const std::set<std::string> before = DescriptorsOfCopies();
  auto identity = Load(files);
  const std::set<std::string> during = DescriptorsOfCopies();
  ASSERT_EQ(during.size(), before.size() + 2)
      << "the key with its certificate, and the authorities";
  identity.reset();
  EXPECT_EQ(DescriptorsOfCopies(), during);
}

TEST_F(TlsTest, ABrokenFileLeavesTheFormerCertificateInUse) {
  const Authority authority(folder_, "authority");
  const TlsFiles files = authority.Sign("server", kHere);
  const auto server = Identity(files);
  const auto client = Identity(authority.Sign("client", kHere));
  Serve(server.get());
  const std::string cert = ReadFile(files.cert);
  testing::internal::CaptureStdout();  // spdlog's default logger writes there
  WriteFile(files.cert, cert.substr(0, cert.size() / 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));  // three further readings
  EXPECT_TRUE(Call(Target(), client.get()).ok());
  WriteFile(files.cert, cert);
  const std::string log = testing::internal::GetCapturedStdout();
  const size_t first = log.find("holds no certificate");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("holds no certificate", first + 1), std::string::npos) << "told once: " << log;
  EXPECT_THAT(log, HasSubstr("the former certificate stays in use"));
}

TEST_F(TlsTest, UnusableFilesAreNamed) {
  const Authority authority(folder_, "authority");
  const TlsFiles good = authority.Sign("good", kHere);
  const TlsFiles other = authority.Sign("other", kHere);
  const auto complaint = [](const TlsFiles& files) {
    const absl::Status status = TlsIdentity::Load(files).status();
    EXPECT_EQ(KindOf(status), FailureKind::kInvalid) << status;
    return Message(status);
  };
  TlsFiles files = good;
  files.ca = folder_ + "/nowhere";
  EXPECT_EQ(complaint(files),
            absl::StrFormat("cannot read --tls-ca=%s/nowhere: No such file or directory", folder_));
  files = good;
  files.ca = folder_;
  EXPECT_THAT(complaint(files), HasSubstr("Is a directory"));
  files = good;
  files.key = other.key;
  EXPECT_THAT(complaint(files), HasSubstr("is not the key of the certificate in --tls-cert="));
  files = good;
  files.cert = good.key;
  EXPECT_THAT(complaint(files), HasSubstr("holds no certificate in PEM form"));
  files = good;
  files.key = good.cert;
  EXPECT_THAT(complaint(files), HasSubstr("holds no private key"));
  files = good;
  files.ca = folder_ + "/bundle";
  WriteFile(files.ca, ReadFile(good.ca) + ReadFile(good.cert).substr(0, 200));
  EXPECT_THAT(complaint(files), HasSubstr("holds a broken certificate"));
  files = good;
  files.key = folder_ + "/locked";
  Shell(absl::StrFormat("openssl pkey -aes128 -passout pass:secret -in %s -out %s", good.key,
                        files.key));
  EXPECT_THAT(complaint(files), HasSubstr("without a password"));
}

}  // namespace
}  // namespace addend
