#include "lib/rpc/server.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/strings.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/agent.grpc.pb.h"

namespace addend {
namespace {

using ::testing::HasSubstr;

class AgentService final : public v1::Agent::Service {
 public:
  grpc::Status GetAgent(grpc::ServerContext*, const v1::GetAgentRequest*,
                        v1::GetAgentResponse* response) override {
    response->set_job(std::string(job_bytes, 'x'));
    return ToGrpc(status);
  }
  absl::Status status;
  size_t job_bytes = 3;
};

const HostPort kAnyPort{"127.0.0.1", 0};

std::string Target(uint16_t port) { return absl::StrFormat("127.0.0.1:%d", port); }

absl::Status Call(uint16_t port, v1::GetAgentResponse* response) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(10));
  return FromGrpc(v1::Agent::NewStub(Dial(Target(port)))->GetAgent(&context, {}, response));
}

// The bytes that a unary call of any service answers; the call's status in `status`.
std::string CallRaw(uint16_t port, const std::string& method, const std::string& request,
                    grpc::Status* status) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(10));
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(Dial(Target(port)));
  grpc::Slice slice(request);
  const grpc::ByteBuffer buffer(&slice, 1);
  const auto reader = stub.PrepareUnaryCall(&context, method, buffer, &queue);
  reader->StartCall();
  grpc::ByteBuffer answer;
  reader->Finish(&answer, status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice bytes;
  if (status->ok() && answer.DumpToSingleSlice(&bytes).ok()) {
    return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }
  return "";
}

// grpc.health.v1: field 1 is the service's name, in the answer the status; 1 is SERVING, 2 is
// NOT_SERVING.
int Health(uint16_t port, const std::string& service) {
  std::string request;
  if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::Status status;
  const std::string answer = CallRaw(port, "/grpc.health.v1.Health/Check", request, &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answer.size() == 2 ? answer[1] : 0;
}

TEST(ReservedAddressTest, OnlyItsServerCanListen) {
  AgentService service;
  uint16_t port = 0;
  {
    const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
    ASSERT_TRUE(server.ok()) << server.status();
    port = (*server)->port();
    EXPECT_THAT(Message(ReservedAddress::Take({"127.0.0.1", port}).status()),
                HasSubstr(absl::StrFormat(
                    "cannot listen on 127.0.0.1:%d for gRPC: the address is in use", port)));
  }
  const auto reserved = ReservedAddress::Take({"127.0.0.1", port});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  v1::GetAgentResponse response;
  EXPECT_EQ(Call(port, &response).code(), absl::StatusCode::kUnavailable) << "nobody listens yet";
  const auto server =
      RpcServer::Start({.listen = {"127.0.0.1", port}, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(Call(port, &response).ok());
  EXPECT_FALSE(ReservedAddress::Take({"no such host", 1}).ok());
  EXPECT_TRUE(ReservedAddress::Take(kAnyPort).ok()) << "nothing to reserve";
}

TEST(RpcServerTest, ServesAndCarriesErrors) {
  AgentService service;
  const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  v1::GetAgentResponse response;
  EXPECT_TRUE(Call((*server)->port(), &response).ok());
  EXPECT_EQ(response.job(), "xxx");
  service.status = MakeFailure(FailureKind::kVersion, "another version");
  const absl::Status status = Call((*server)->port(), &response);
  EXPECT_EQ(Message(status), "another version");
  EXPECT_EQ(KindOf(status), FailureKind::kVersion);
}

TEST(RpcServerTest, ListensOnAllInterfaces) {
  AgentService service;
  const auto server = RpcServer::Start({.listen = {"", 0}, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  v1::GetAgentResponse response;
  EXPECT_TRUE(Call((*server)->port(), &response).ok());
}

TEST(RpcServerTest, HealthIsOnBothPorts) {
  AgentService service;
  const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = kAnyPort}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  for (const uint16_t port : {(*server)->port(), (*server)->health_port()}) {
    (*server)->SetReady(false);
    EXPECT_EQ(Health(port, ""), 1);
    EXPECT_EQ(Health(port, "readiness"), 2);
    (*server)->SetReady(true);
    EXPECT_EQ(Health(port, "readiness"), 1);
  }
  v1::GetAgentResponse response;
  EXPECT_TRUE(absl::IsUnimplemented(Call((*server)->health_port(), &response)));
}

TEST(RpcServerTest, ReflectionIsThere) {
  AgentService service;
  const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok());
  grpc::Status status;
  // A streaming method called as a unary method: field 7 asks for the list of services.
  const std::string answer =
      CallRaw((*server)->port(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x01*", 3), &status);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(answer, HasSubstr("addend.v1.Agent"));
}

TEST(RpcServerTest, ATakenPortIsRefused) {
  AgentService service;
  const auto first = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
  ASSERT_TRUE(first.ok());
  AgentService other;
  const HostPort taken{"127.0.0.1", (*first)->port()};
  const auto second = RpcServer::Start({.listen = taken, .health_listen = {}}, {&other});
  EXPECT_EQ(Message(second.status()), absl::StrFormat("cannot listen on %s for gRPC: the address "
                                                      "is in use",
                                                      taken.ToString()));
  EXPECT_EQ(KindOf(second.status()), FailureKind::kInvalid);
  const auto third = RpcServer::Start({.listen = kAnyPort, .health_listen = taken}, {&other});
  EXPECT_THAT(Message(third.status()), HasSubstr("for health checks: the address is in use"));
}

TEST(RpcServerTest, AMessageMayHaveManyMegabytes) {
  AgentService service;
  service.job_bytes = 20'000'000;
  const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok());
  v1::GetAgentResponse response;
  EXPECT_TRUE(Call((*server)->port(), &response).ok());
  EXPECT_EQ(response.job().size(), service.job_bytes);
}

// Shutting gRPC down may take 10 s, in which a process that is told to stop would not end.
TEST(RpcServerTest, GrpcOutlastsTheLastServer) {
  AgentService service;
  auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
  ASSERT_TRUE(server.ok());
  v1::GetAgentResponse response;
  EXPECT_TRUE(Call((*server)->port(), &response).ok());
  server->reset();
  EXPECT_NE(grpc_is_initialized(), 0);
}

TEST(RpcClientTest, AMissingServerIsUnavailableAtOnce) {
  uint16_t port = 0;
  {
    AgentService service;
    const auto server = RpcServer::Start({.listen = kAnyPort, .health_listen = {}}, {&service});
    ASSERT_TRUE(server.ok());
    port = (*server)->port();
  }
  v1::GetAgentResponse response;
  const absl::Status status = Call(port, &response);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(IsUnreachable(status));
  EXPECT_EQ(ShortReason(status), "connection refused");
}

}  // namespace
}  // namespace addend
