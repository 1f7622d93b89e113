// The service over real gRPC connections, on a port that the kernel chooses.
#include "services/scheduler/scheduler_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/base/version.h"
#include "lib/base/wire_format.h"
#include "lib/rpc/client.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "services/scheduler/store/memory_store.h"

namespace addend {
namespace {

using testing::HasSubstr;

// Fails when told to.
class FragileStore : public MemoryStore {
 public:
  explicit FragileStore(std::atomic<bool>* broken) : broken_(*broken) {}
  absl::Status Apply(std::span<const StoreWrite> writes) override {
    if (broken_) return absl::InternalError("the disk is full");
    return MemoryStore::Apply(writes);
  }

 private:
  std::atomic<bool>& broken_;
};

template <typename Update>
class Watch {
 public:
  using Reader = std::unique_ptr<grpc::ClientReader<Update>>;

  Watch(v1::Scheduler::Stub* stub, const v1::MemberId& member) {
    v1::WatchRequest request;
    *request.mutable_member() = member;
    // Where an expected update does not come, the test ends by this deadline.
    SetDeadline(&context_, absl::Seconds(60));
    if constexpr (std::is_same_v<Update, v1::NodeUpdate>) {
      reader_ = stub->WatchNode(&context_, request);
    } else {
      reader_ = stub->WatchServer(&context_, request);
    }
  }
  ~Watch() {
    if (ended_) return;
    context_.TryCancel();
    End().IgnoreError();
  }

  // The next update that fulfils `wanted`; an empty update if the stream ends before.
  Update Next(const std::function<bool(const Update&)>& wanted = [](const Update&) {
    return true;
  }) {
    Update update;
    while (!ended_ && reader_->Read(&update)) {
      if (wanted(update)) return update;
    }
    ADD_FAILURE() << "the stream has ended: " << End();
    return {};
  }
  // Reads to the end.
  absl::Status End() {
    if (ended_) return absl::OkStatus();
    Update update;
    while (reader_->Read(&update)) {
    }
    ended_ = true;
    return FromGrpc(reader_->Finish());
  }
  void Cut() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  Reader reader_;
  bool ended_ = false;
};

class SchedulerServiceTest : public testing::Test {
 protected:
  explicit SchedulerServiceTest(absl::Duration lease = absl::Seconds(1)) {
    auto service = SchedulerService::Create({.lease = lease,
                                             .store = std::make_unique<FragileStore>(&broken_),
                                             .registry = &registry_,
                                             .on_fatal = [this](absl::Status) { ++fatal_; }});
    EXPECT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    auto rpc = RpcServer::Start({HostPort{"127.0.0.1", 0}, std::nullopt}, {service_.get()});
    EXPECT_TRUE(rpc.ok()) << rpc.status();
    rpc_ = *std::move(rpc);
    stub_ = v1::Scheduler::NewStub(Dial(absl::StrFormat("127.0.0.1:%d", rpc_->port())));
  }
  ~SchedulerServiceTest() override {
    beating_ = false;
    if (beats_.joinable()) beats_.join();
    service_->Shutdown();
    rpc_.reset();
  }

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::Scheduler::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(10));
    return FromGrpc((stub_.get()->*method)(&context, request, response));
  }

  absl::StatusOr<v1::MemberId> JoinNode(uint32_t rank, uint32_t num_nodes, uint64_t incarnation,
                                        uint32_t protocol = kProtocolVersion) {
    v1::RegisterNodeRequest request;
    request.set_protocol_version(protocol);
    request.set_member_key(std::string(32, 'k'));
    request.set_incarnation(incarnation);
    request.set_job("a");
    request.set_node_rank(rank);
    request.set_hostname(absl::StrFormat("gpu%d", rank));
    request.mutable_settings()->set_num_nodes(num_nodes);
    request.mutable_settings()->set_local_size(1);
    request.mutable_settings()->set_partition_bytes(4096);
    v1::RegisterNodeResponse response;
    const absl::Status status = Call(&v1::Scheduler::Stub::RegisterNode, request, &response);
    if (!status.ok()) return status;
    EXPECT_EQ(response.token().secret().size(), 32u);
    v1::MemberId member;
    member.set_job_id(response.job_id());
    member.set_node_rank(rank);
    member.set_incarnation(incarnation);
    member.set_key(std::string(32, 'k'));
    v1::ReportTrainersRequest trainers;
    *trainers.mutable_member() = member;
    trainers.set_generation(response.generation());
    trainers.set_initialised(1);
    v1::ReportTrainersResponse ignored;
    EXPECT_TRUE(Call(&v1::Scheduler::Stub::ReportTrainers, trainers, &ignored).ok());
    return member;
  }
  v1::MemberId JoinServer() {
    v1::RegisterServerRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_member_key(std::string(32, 'k'));
    request.set_incarnation(50);
    request.set_shards(1);
    request.add_endpoints()->set_port(1);
    v1::RegisterServerResponse response;
    EXPECT_TRUE(Call(&v1::Scheduler::Stub::RegisterServer, request, &response).ok());
    v1::MemberId member;
    member.set_server_id(response.server_id());
    member.set_incarnation(50);
    member.set_key(std::string(32, 'k'));
    return member;
  }
  absl::Status Declare(const v1::MemberId& node, const std::string& name, uint32_t num_nodes = 1) {
    v1::DeclareRequest request;
    *request.mutable_member() = node;
    request.set_generation(1);
    v1::TensorDescriptor* tensor = request.add_tensors();
    tensor->set_name(name);
    tensor->set_reduction_tree(ToString(NumericsIn(num_nodes, {})));
    tensor->add_shape(100000);
    v1::DeclareResponse response;
    return Call(&v1::Scheduler::Stub::Declare, request, &response);
  }
  // Keeps the leases of these members until the test ends.
  void KeepAlive(std::vector<v1::MemberId> members) {
    beats_ = std::thread([this, members] {
      while (beating_) {
        for (const v1::MemberId& member : members) {
          v1::HeartbeatRequest request;
          *request.mutable_member() = member;
          v1::HeartbeatResponse response;
          Call(&v1::Scheduler::Stub::Heartbeat, request, &response).IgnoreError();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  }

  prometheus::Registry registry_;
  std::atomic<bool> broken_{false};
  std::atomic<int> fatal_{0};
  std::unique_ptr<SchedulerService> service_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<v1::Scheduler::Stub> stub_;
  std::atomic<bool> beating_{true};
  std::thread beats_;
};

bool Ready(const v1::NodeUpdate& update) { return update.state() == v1::READY; }
bool Planned(const v1::NodeUpdate& update) { return update.tensors_size() > 0; }

TEST_F(SchedulerServiceTest, FromRegistrationToPlan) {
  const v1::MemberId server = JoinServer();
  const v1::MemberId nodes[] = {*JoinNode(0, 2, 100), *JoinNode(1, 2, 101)};
  KeepAlive({server, nodes[0], nodes[1]});
  Watch<v1::ServerUpdate> at_server(stub_.get(), server);
  Watch<v1::NodeUpdate> at_first(stub_.get(), nodes[0]);
  Watch<v1::NodeUpdate> at_second(stub_.get(), nodes[1]);
  EXPECT_TRUE(at_server.Next().full());
  at_first.Next(Ready);
  at_second.Next(Ready);
  for (const v1::MemberId& node : nodes) ASSERT_TRUE(Declare(node, "w").ok());

  const v1::ServerUpdate update = at_server.Next(
      [](const v1::ServerUpdate& u) { return u.jobs_size() > 0 && u.jobs(0).reserve_size() > 0; });
  v1::AckReservationRequest answer;
  *answer.mutable_member() = server;
  answer.set_update_id(update.update_id());
  answer.set_free_bytes(~uint64_t{0});
  v1::AckReservationResponse ignored;
  ASSERT_TRUE(Call(&v1::Scheduler::Stub::AckReservation, answer, &ignored).ok());
  for (auto* watch : {&at_first, &at_second}) {
    const v1::NodeUpdate plan = watch->Next(Planned);
    EXPECT_EQ(plan.tensors(0).servers_size(), 98);
    ASSERT_EQ(plan.servers_size(), 1);
    EXPECT_EQ(plan.servers(0).server_id(), server.server_id());
  }
  v1::GetStatusResponse status;
  ASSERT_TRUE(Call(&v1::Scheduler::Stub::GetStatus, {}, &status).ok());
  EXPECT_EQ(status.store(), "memory");
  EXPECT_EQ(status.version(), Version());
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).tensors(), 1u);
}

TEST_F(SchedulerServiceTest, RefusalCarriesItsExitCode) {
  const auto refused = JoinNode(0, 2, 100, /*protocol=*/99);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(KindOf(refused.status()), FailureKind::kVersion);
  EXPECT_THAT(Message(refused.status()), HasSubstr("99"));
}

TEST_F(SchedulerServiceTest, WatchOfAnUnknownMemberIsNotFound) {
  v1::MemberId stranger;
  stranger.set_server_id(42);
  Watch<v1::ServerUpdate> watch(stub_.get(), stranger);
  EXPECT_EQ(watch.End().code(), absl::StatusCode::kNotFound);
}

TEST_F(SchedulerServiceTest, CutStreamAndSilenceEndALeaseInTime) {
  const v1::MemberId nodes[] = {*JoinNode(0, 2, 100), *JoinNode(1, 2, 101)};
  KeepAlive({nodes[0], nodes[1]});
  Watch<v1::NodeUpdate> at_first(stub_.get(), nodes[0]);
  Watch<v1::NodeUpdate> at_second(stub_.get(), nodes[1]);
  at_first.Next(Ready);
  at_second.Next(Ready);
  // Its heartbeats go on, but it is not told anything any more.
  at_second.Cut();
  const v1::NodeUpdate failed =
      at_first.Next([](const v1::NodeUpdate& u) { return u.state() == v1::FAILED; });
  EXPECT_EQ(failed.failed_kind(), TraitsOf(FailureKind::kPeerLost).name);
  EXPECT_THAT(failed.reason(), HasSubstr("node 1 (on gpu1, rank 1)"));
}

TEST_F(SchedulerServiceTest, SecondWatchEndsTheFirst) {
  const v1::MemberId node = *JoinNode(0, 1, 100);
  KeepAlive({node});
  Watch<v1::NodeUpdate> first(stub_.get(), node);
  first.Next(Ready);
  Watch<v1::NodeUpdate> second(stub_.get(), node);
  EXPECT_TRUE(second.Next().full());
  EXPECT_EQ(first.End().code(), absl::StatusCode::kAborted);
}

TEST_F(SchedulerServiceTest, ShutdownEndsStreamsAndRefusesCalls) {
  const v1::MemberId node = *JoinNode(0, 1, 100);
  Watch<v1::NodeUpdate> watch(stub_.get(), node);
  watch.Next();
  service_->Shutdown();
  EXPECT_EQ(watch.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(JoinNode(0, 1, 100).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SchedulerServiceTest, EventThatCannotBeStoredIsNeitherAnsweredNorTold) {
  ASSERT_TRUE(JoinNode(0, 2, 100).ok());
  broken_ = true;
  const auto refused = JoinNode(1, 2, 101);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(refused.status()), HasSubstr("the disk is full"));
  broken_ = false;
  EXPECT_FALSE(JoinNode(1, 2, 101).ok());
  EXPECT_EQ(fatal_, 1);
}

// Without heartbeats: this tests the streams.
class SchedulerStreamsTest : public SchedulerServiceTest {
 protected:
  SchedulerStreamsTest() : SchedulerServiceTest(absl::Minutes(5)) {}
};

TEST_F(SchedulerStreamsTest, HundredsOfStreamsGetEveryUpdateInOrder) {
#ifdef __SANITIZE_THREAD__
  // Each race that ThreadSanitizer sees in the packaged gRPC costs it some 30 ms, suppressed or
  // not.
  constexpr uint32_t kNodes = 16;
  constexpr int kTensors = 5;
#else
  constexpr uint32_t kNodes = 200;
  constexpr int kTensors = 20;
#endif
  std::vector<v1::MemberId> nodes;
  std::vector<std::unique_ptr<Watch<v1::NodeUpdate>>> watches;
  const v1::MemberId server = JoinServer();
  std::atomic<bool> done{false};
  Watch<v1::ServerUpdate> at_server(stub_.get(), server);
  // Joins when the test returns early, too: the stream is cut first, and that ends the loop.
  std::jthread answers([&] {
    while (!done) {
      const v1::ServerUpdate update = at_server.Next();
      if (update.update_id() == 0) return;
      v1::AckReservationRequest answer;
      *answer.mutable_member() = server;
      answer.set_update_id(update.update_id());
      answer.set_free_bytes(~uint64_t{0});
      v1::AckReservationResponse ignored;
      Call(&v1::Scheduler::Stub::AckReservation, answer, &ignored).IgnoreError();
      for (const auto& job : update.jobs()) {
        for (const auto& tensor : job.reserve()) {
          if (tensor.tensor().name() == absl::StrFormat("w%d", kTensors - 1)) done = true;
        }
      }
    }
  });
  const auto cut = absl::MakeCleanup([&at_server] { at_server.Cut(); });
  for (uint32_t rank = 0; rank < kNodes; ++rank) nodes.push_back(*JoinNode(rank, kNodes, 1 + rank));
  for (const v1::MemberId& node : nodes) {
    watches.push_back(std::make_unique<Watch<v1::NodeUpdate>>(stub_.get(), node));
  }
  for (auto& watch : watches) watch->Next(Ready);
  for (int i = 0; i < kTensors; ++i) {
    for (const v1::MemberId& node : nodes) {
      ASSERT_TRUE(Declare(node, absl::StrFormat("w%d", i), kNodes).ok());
    }
  }
  for (auto& watch : watches) {
    uint64_t version = 0;
    for (int i = 0; i < kTensors; ++i) {
      const v1::NodeUpdate update = watch->Next(Planned);
      EXPECT_EQ(update.tensors(0).tensor().name(), absl::StrFormat("w%d", i));
      EXPECT_GE(update.plan_version(), version);
      version = update.plan_version();
    }
  }
  answers.join();  // the last plan was published, so its answer has been sent
}

TEST_F(SchedulerServiceTest, StatusIsComputedOncePerInterval) {
  std::vector<double> computed;
  while (computed.size() < 3) {
    const absl::Time asked = SteadyNow();
    v1::GetStatusResponse status;
    const absl::Status called = Call(&v1::Scheduler::Stub::GetStatus, {}, &status);
    // The service hears late, and on another thread, that its answers have been read.
    if (absl::IsResourceExhausted(called)) continue;
    ASSERT_TRUE(called.ok()) << called;
    const absl::Time at = absl::UnixEpoch() + absl::Seconds(status.now_unix_s());
    EXPECT_GT(at, asked - SchedulerService::kStatusInterval - absl::Milliseconds(1));
    if (computed.empty() || computed.back() != status.now_unix_s()) {
      computed.push_back(status.now_unix_s());
    }
  }
  const double interval_s = absl::ToDoubleSeconds(SchedulerService::kStatusInterval);
  for (size_t i = 1; i < computed.size(); ++i) {
    EXPECT_GE(computed[i] - computed[i - 1], interval_s - 1e-6);
  }
}

// A call of GetStatus whose answer is not read, as long as this lives.
class UnreadStatus {
 public:
  explicit UnreadStatus(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    SetDeadline(&context_, absl::Seconds(60));
    call_ = stub_.PrepareCall(&context_, "/addend.v1.Scheduler/GetStatus", &queue_);
    call_->StartCall(nullptr);
    Wait();
    call_->WriteLast(grpc::ByteBuffer(std::vector<grpc::Slice>(1).data(), 1), {}, nullptr);
    Wait();
  }
  ~UnreadStatus() {
    context_.TryCancel();
    grpc::Status ignored;
    call_->Finish(&ignored, nullptr);
    Wait();
  }

 private:
  void Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// Its members keep their places without heartbeats.
class SchedulerStatusTest : public SchedulerServiceTest {
 protected:
  SchedulerStatusTest() : SchedulerServiceTest(absl::Minutes(10)) {}
};

TEST_F(SchedulerStatusTest, UnreadStatusAnswersAreLimited) {
  // More than gRPC sends to a client that does not read.
  for (uint64_t incarnation = 1; incarnation <= 400; ++incarnation) {
    v1::RegisterServerRequest request;
    request.set_protocol_version(kProtocolVersion);
    request.set_member_key(std::string(32, 'k'));
    request.set_incarnation(incarnation);
    request.set_shards(1);
    for (int i = 0; i < 10; ++i) request.add_endpoints()->set_host(std::string(250, 'h'));
    v1::RegisterServerResponse response;
    ASSERT_TRUE(Call(&v1::Scheduler::Stub::RegisterServer, request, &response).ok());
  }
  grpc::ChannelArguments small_windows;
  small_windows.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto channel = grpc::CreateCustomChannel(absl::StrFormat("127.0.0.1:%d", rpc_->port()),
                                                 grpc::InsecureChannelCredentials(), small_windows);
  v1::GetStatusResponse status;
  const auto ask = [&] { return Call(&v1::Scheduler::Stub::GetStatus, {}, &status); };
  // An answer is counted until the scheduler knows that it was sent, a little longer than it takes.
  absl::Status last;
  const auto gets = [&](absl::StatusCode code, absl::FunctionRef<void()> otherwise) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(20);
    int in_a_row = 0;
    while (in_a_row < 10 && SteadyNow() < deadline) {
      last = ask();
      in_a_row = last.code() == code ? in_a_row + 1 : 0;
      if (in_a_row == 0) otherwise();
    }
    return in_a_row == 10;
  };
  {
    std::vector<std::unique_ptr<UnreadStatus>> unread;
    // An answer to `ask` takes the room of a call for a moment, so some of these are refused.
    const auto one_more = [&] { unread.push_back(std::make_unique<UnreadStatus>(channel)); };
    for (int i = 0; i < SchedulerService::kMaxStatusAnswers; ++i) one_more();
    EXPECT_TRUE(gets(absl::StatusCode::kResourceExhausted, one_more));
    EXPECT_THAT(Message(last), HasSubstr("32 answers"));
  }
  EXPECT_TRUE(gets(absl::StatusCode::kOk, [] {}));
}

}  // namespace
}  // namespace addend
