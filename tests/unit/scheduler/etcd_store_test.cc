// The etcd store against a real etcd, which each test starts for itself.
#include "services/scheduler/store/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/failure.h"
#include "lib/base/mutex.h"
#include "lib/base/strings.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "tests/unit/rpc/authority.h"

namespace addend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

uint16_t FreePort() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return ntohs(address.sin_port);
}

class EtcdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/usr/bin/etcd", X_OK) != 0) {
      GTEST_SKIP() << "/usr/bin/etcd is not installed (package etcd-server)";
    }
    std::string name = (std::filesystem::temp_directory_path() / "addend-etcd-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    port_ = FreePort();
    StartEtcd();
  }
  void TearDown() override {
    if (etcd_ > 0) StopEtcd();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void StartEtcd(const std::string& scheme = "http", std::vector<std::string> further = {}) {
    const std::string client = absl::StrFormat("%s://127.0.0.1:%d", scheme, port_);
    std::vector<std::string> arguments = {"etcd",
                                          "--data-dir=" + (folder_ / "data").string(),
                                          "--listen-client-urls=" + client,
                                          "--advertise-client-urls=" + client,
                                          "--listen-peer-urls=http://127.0.0.1:0",
                                          "--unsafe-no-fsync",
                                          "--logger=zap",
                                          "--log-outputs=" + (folder_ / "log").string()};
    arguments.insert(arguments.end(), further.begin(), further.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ASSERT_EQ(::posix_spawn(&etcd_, "/usr/bin/etcd", nullptr, nullptr, argv.data(), environ), 0);
  }
  void StopEtcd() {
    ::kill(etcd_, SIGKILL);
    ::waitpid(etcd_, nullptr, 0);
    etcd_ = 0;
  }
  std::unique_ptr<EtcdStore> Open() {
    return *EtcdStore::Open(absl::StrFormat("127.0.0.1:%d/test", port_));
  }
  // Waits for etcd, too. The lease outlasts a machine that stands still for a while.
  static absl::Status Lead(
      EtcdStore* store, const std::string& name,
      std::function<bool()> give_up = [] { return false; },
      absl::Duration ttl = absl::Seconds(30)) {
    return store->Lead({.name = name,
                        .ttl = ttl,
                        .give_up = std::move(give_up),
                        .on_lost = [](const absl::Status&) {}});
  }

  std::filesystem::path folder_;
  uint16_t port_ = 0;
  pid_t etcd_ = 0;
};

TEST_F(EtcdStoreTest, KeepsWhatWasWritten) {
  auto store = Open();
  ASSERT_EQ(Lead(store.get(), "a"), absl::OkStatus());
  EXPECT_TRUE(store->Load()->empty());
  const std::string bytes("\0\xff'\"\n", 5);
  const std::vector<StoreWrite> first = {{"b", "2"}, {"a", "x"}, {"a", bytes}, {"c", ""}};
  ASSERT_EQ(store->Apply(first), absl::OkStatus());
  const std::vector<StoreWrite> second = {{"b", std::nullopt}, {"d", std::nullopt}, {"d", "4"}};
  ASSERT_EQ(store->Apply(second), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", bytes), Pair("c", ""), Pair("d", "4")));
  store.reset();
  store = Open();
  ASSERT_EQ(Lead(store.get(), "b"), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", bytes), Pair("c", ""), Pair("d", "4")));
}

TEST_F(EtcdStoreTest, AddressThatEndsWithASlashHasTheUsualPrefix) {
  const std::string address = absl::StrFormat("127.0.0.1:%d", port_);
  auto store = *EtcdStore::Open(address + "/");
  ASSERT_EQ(Lead(store.get(), "a"), absl::OkStatus());
  const std::vector<StoreWrite> writes = {{"b", "2"}};
  ASSERT_EQ(store->Apply(writes), absl::OkStatus());
  store.reset();
  store = *EtcdStore::Open(address);
  ASSERT_EQ(Lead(store.get(), "a"), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("b", "2")));
}

TEST_F(EtcdStoreTest, BatchOfAnySizeIsAtomic) {
  auto store = Open();
  ASSERT_EQ(Lead(store.get(), "a"), absl::OkStatus());
  std::vector<StoreWrite> writes;
  for (int i = 0; i < 1234; ++i) {
    writes.push_back({absl::StrFormat("%04d", i), std::string(3000, 'v')});
  }
  ASSERT_EQ(store->Apply(writes), absl::OkStatus());
  EXPECT_EQ(store->Load()->size(), writes.size());
  for (StoreWrite& write : writes) write.value.reset();
  ASSERT_EQ(store->Apply(writes), absl::OkStatus());
  EXPECT_TRUE(store->Load()->empty());
}

TEST_F(EtcdStoreTest, ValueMayBeLargerThanEtcdTakes) {
  auto store = Open();
  ASSERT_EQ(Lead(store.get(), "a"), absl::OkStatus());
  const std::string large(5'000'000, 'v');
  const std::vector<StoreWrite> first = {{"a", "1"}, {"b", large}, {"b1", "2"}, {"c", large + "c"}};
  ASSERT_EQ(store->Apply(first), absl::OkStatus());
  store.reset();
  store = Open();
  ASSERT_EQ(Lead(store.get(), "b"), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1"), Pair("b", large), Pair("b1", "2"),
                                          Pair("c", large + "c")));
  const std::vector<StoreWrite> then = {{"b", "small"}, {"c", std::nullopt}};
  ASSERT_EQ(store->Apply(then), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1"), Pair("b", "small"), Pair("b1", "2")));
}

TEST_F(EtcdStoreTest, SchedulerThatEndsGivesItsLeaseUp) {
  auto store = Open();
  const absl::Status leads = Lead(
      store.get(), "a", [] { return false; }, absl::Minutes(10));
  ASSERT_EQ(leads, absl::OkStatus());
  store.reset();
  store = Open();
  const absl::Time latest = absl::Now() + absl::Seconds(60);
  const absl::Status next = Lead(store.get(), "b", [latest] { return absl::Now() > latest; });
  EXPECT_EQ(next, absl::OkStatus());
}

TEST_F(EtcdStoreTest, SecondSchedulerStandsByUntilTheLeaseEnds) {
  constexpr absl::Duration kLease = absl::Seconds(5);
  std::atomic<bool> stop{false};
  const auto stopped = [&] { return stop.load(); };
  auto first = Open();
  ASSERT_EQ(Lead(first.get(), "first", stopped, kLease), absl::OkStatus());
  auto second = Open();
  absl::Status status;
  std::thread standby([&] { status = Lead(second.get(), "second", stopped, kLease); });
  absl::SleepFor(kLease + absl::Seconds(2));  // the first scheduler keeps its lease
  stop = true;
  standby.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(first->Apply(std::vector<StoreWrite>{{"a", "1"}}), absl::OkStatus());
}

TEST_F(EtcdStoreTest, DeposedLeaderWritesNothing) {
  auto first = Open();
  ASSERT_EQ(Lead(first.get(), "first"), absl::OkStatus());
  ASSERT_EQ(first->Apply(std::vector<StoreWrite>{{"a", "1"}}), absl::OkStatus());
  // Somebody takes the leader's key away, as etcd does when a lease ends.
  EtcdClient client({.endpoints = {absl::StrFormat("127.0.0.1:%d", port_)}});
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_delete_range()->set_key("test/leader");
  ASSERT_TRUE(client.Txn(request, absl::Now() + absl::Seconds(5)).ok());
  auto second = Open();
  ASSERT_EQ(Lead(second.get(), "second"), absl::OkStatus());
  const absl::Status refused = first->Apply(std::vector<StoreWrite>{{"a", "2"}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(KindOf(refused), FailureKind::kTemporary);
  EXPECT_THAT(*second->Load(), ElementsAre(Pair("a", "1")));
}

TEST_F(EtcdStoreTest, EtcdOverMutualTlsWithAUser) {
  StopEtcd();
  const Authority authority(folder_, "authority");
  const TlsFiles server = authority.Sign("etcd", "IP:127.0.0.1");
  const TlsFiles own = authority.Sign("scheduler", "DNS:scheduler");
  StartEtcd("https", {"--cert-file=" + server.cert, "--key-file=" + server.key,
                      "--trusted-ca-file=" + authority.ca(), "--client-cert-auth"});
  const std::string etcdctl = absl::StrFormat(
      "ETCDCTL_API=3 etcdctl --endpoints=https://127.0.0.1:%d --cacert=%s --cert=%s --key=%s ",
      port_, authority.ca(), own.cert, own.key);
  Shell("for i in $(seq 200); do " + etcdctl + "endpoint health && exit; sleep 0.1; done; exit 1");
  for (const char* command :
       {"user add root:very-secret", "user grant-role root root", "auth enable"}) {
    Shell(etcdctl + command + " >" + (folder_ / "etcdctl").string());
  }
  const std::string password = (folder_ / "password").string();
  const std::string where = absl::StrFormat("https://127.0.0.1:%d", port_);
  EtcdAccess access{.identity = *TlsIdentity::Load(own), .user = "root", .password_file = password};

  WriteFile(password, "wrong");
  const absl::Status refused = Lead((*EtcdStore::Open(where, access)).get(), "a");
  EXPECT_EQ(KindOf(refused), FailureKind::kPermission);
  EXPECT_THAT(Message(refused), HasSubstr("does not let the user 'root' in"));

  WriteFile(password, "very-secret\n");
  auto store = *EtcdStore::Open(where, access);
  const absl::Status leads = Lead(store.get(), "a");
  ASSERT_TRUE(leads.ok()) << leads;
  ASSERT_EQ(store->Apply(std::vector<StoreWrite>{{"a", "1"}}), absl::OkStatus());
  EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1")));
}

TEST_F(EtcdStoreTest, SchemeAndCertificatesMustFit) {
  const auto plain = EtcdStore::Open("https://127.0.0.1:2379");
  EXPECT_THAT(Message(plain.status()), HasSubstr("https:// needs --etcd-ca"));
  const Authority authority(folder_, "authority");
  EtcdAccess access{.identity = *TlsIdentity::Load(authority.Sign("a", "DNS:a"))};
  const auto encrypted = EtcdStore::Open("http://127.0.0.1:2379", access);
  EXPECT_THAT(Message(encrypted.status()), HasSubstr("exclude each other"));
}

TEST_F(EtcdStoreTest, CompleteJournalIsCarriedOutAndIncompleteJournalForgotten) {
  for (const bool complete : {true, false}) {
    SCOPED_TRACE(complete);
    EtcdClient client({.endpoints = {absl::StrFormat("127.0.0.1:%d", port_)}});
    etcdserverpb::TxnRequest request;
    v1::JournalRecord entry;
    entry.set_key(complete ? "a" : "b");
    entry.set_value("1");
    auto* put = request.add_success()->mutable_request_put();
    put->set_key("test/journal/0000000000");
    put->set_value(entry.SerializeAsString());
    if (complete) {
      request.add_success()->mutable_request_put()->set_key("test/journal.complete");
    }
    ASSERT_TRUE(client.Txn(request, absl::Now() + absl::Seconds(20)).ok());
    auto store = Open();
    ASSERT_EQ(Lead(store.get(), "next"), absl::OkStatus());
    EXPECT_THAT(*store->Load(), ElementsAre(Pair("a", "1")));
    store.reset();
  }
}

TEST_F(EtcdStoreTest, LeaderWithoutEtcdStepsDownWithinItsLease) {
  absl::Status lost;
  Mutex mu;
  CondVar told;
  auto store = Open();
  ASSERT_TRUE(store
                  ->Lead({.name = "a",
                          .ttl = absl::Seconds(5),
                          .give_up = [] { return false; },
                          .on_lost =
                              [&](absl::Status why) {
                                MutexLock lock(&mu);
                                lost = std::move(why);
                                told.NotifyAll();
                              }})
                  .ok());
  StopEtcd();
  const absl::Time stopped = absl::Now();
  EXPECT_EQ(store->Apply(std::vector<StoreWrite>{{"a", "1"}}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(30));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  MutexLock lock(&mu);
  while (lost.ok() && told.WaitUntil(&mu, deadline)) {
  }
  EXPECT_THAT(Message(lost), HasSubstr("leads no more"));
}

}  // namespace
}  // namespace addend
