// Queries the members from several threads, so that members that do not answer delay the others
// little; bandwidth is measured sequentially.
#include "tools/addendctl/cluster_facts.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/clock.h"
#include "lib/base/fd.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"
#include "lib/rpc/client.h"
#include "lib/rpc/status.h"
#include "proto/addend/v1/agent.grpc.pb.h"
#include "proto/addend/v1/diagnostics.grpc.pb.h"
#include "proto/addend/v1/scheduler.grpc.pb.h"
#include "proto/addend/v1/summation.grpc.pb.h"
#include "tools/addendctl/ask.h"

namespace addend {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);   // time limit of a call to a member
constexpr absl::Duration kMeasuring = absl::Seconds(4);  // a measurement takes a second
constexpr size_t kThreads = 16;

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(SteadyNow() - start); }

// Connects and closes the connection. Returns 0 or an errno.
int TryConnect(const addrinfo& info, absl::Duration patience) {
  const UniqueFd fd(
      ::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, info.ai_protocol));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), info.ai_addr, info.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{fd.get(), POLLOUT, 0};
  const int ready = ::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(patience)));
  if (ready <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

struct Attempt {
  int error = 0;  // errno
  std::string text;
};

Attempt Connect(const HostPort& peer, absl::Duration patience) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(peer.port);
  if (const int error = ::getaddrinfo(peer.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return {EHOSTUNREACH,
            absl::StrFormat("'%s' does not resolve: %s", peer.host, ::gai_strerror(error))};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> info(found, ::freeaddrinfo);
  int error = 0;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    error = TryConnect(*entry, patience);
    if (error == 0) return {};
  }
  return {error, std::strerror(error)};
}

std::string ConnectError(const std::string& address) {
  const auto peer = ParseHostPort(address);
  if (!peer.ok()) return Message(peer.status());
  return Connect(*peer, kPatience).text;
}

SchedulerFacts AskOne(const HostPort& address, absl::Duration timeout) {
  SchedulerFacts facts{.address = address.ToString(), .answer = {}, .status = {}};
  const Attempt attempt = Connect(address, std::min(timeout, kPatience));
  if (attempt.error != 0) {
    facts.answer = absl::UnavailableError(attempt.text);
    facts.refused = attempt.error == ECONNREFUSED;
    return facts;
  }
  const auto stub = v1::Scheduler::NewStub(Dial(facts.address));
  const auto ask = [&] {
    grpc::ClientContext context;
    SetDeadline(&context, timeout);
    const absl::Status answered = FromGrpc(stub->GetStatus(&context, {}, &facts.status));
    MakePrintable(&facts.status);
    return answered;
  };
  facts.answer = ask();
  if (!facts.answer.ok()) return facts;
  // A second call: the first call has connected, and a shorter call gives a more exact clock
  // difference.
  const absl::Time begun = SteadyNow();
  const absl::Time wall = absl::Now();
  facts.answer = ask();
  facts.clock_uncertain_s = SecondsSince(begun) / 2;
  facts.clock_ahead_s = facts.status.now_unix_s() -
                        absl::ToDoubleSeconds(wall - absl::UnixEpoch()) - facts.clock_uncertain_s;
  return facts;
}

absl::Status AskVersion(const std::shared_ptr<grpc::Channel>& channel, MemberFacts* member) {
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  if (member->is_agent) {
    v1::GetAgentResponse response;
    const absl::Status status =
        FromGrpc(v1::Agent::NewStub(channel)->GetAgent(&context, {}, &response));
    member->version = OneLine(response.version());
    return status;
  }
  v1::RollCallRequest request;
  request.set_limit(1);
  v1::RollCallResponse response;
  const absl::Status status =
      FromGrpc(v1::Summation::NewStub(channel)->GetRollCall(&context, request, &response));
  member->version = OneLine(response.version());
  return status;
}

void AskMember(MemberFacts* member) {
  member->control_error = ConnectError(member->control_address);
  if (member->control_error.empty()) {
    const absl::Status status = AskVersion(Dial(member->control_address), member);
    if (IsUnreachable(status)) {
      member->control_error = absl::StrFormat("it takes the connection, but does not answer (%s)",
                                              WhyUnreachable(member->control_address, status));
    } else if (!status.ok()) {
      member->control_error = ShortReason(status);
    }
  }
  for (AddressFacts& data : member->data) data.error = ConnectError(data.address);
}

void AskMembers(std::vector<MemberFacts>* members) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(kThreads, members->size()); ++i) {
    threads.emplace_back([members, &next] {
      for (size_t at = next++; at < members->size(); at = next++) AskMember(&(*members)[at]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the number of bytes received in a call.
absl::StatusOr<uint64_t> Fetch(v1::Diagnostics::Stub* stub, uint64_t bytes) {
  grpc::ClientContext context;
  SetDeadline(&context, kMeasuring);
  v1::MeasureBandwidthRequest request;
  request.set_bytes(bytes);
  const auto stream = stub->MeasureBandwidth(&context, request);
  v1::MeasureBandwidthChunk chunk;
  uint64_t received = 0;
  while (stream->Read(&chunk)) received += chunk.data().size();
  if (const absl::Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
  return received;
}

void Measure(uint64_t bytes, MemberFacts* member) {
  const auto stub = v1::Diagnostics::NewStub(Dial(member->control_address));
  // The first call connects, which must not count in the measurement.
  auto received = Fetch(stub.get(), 1);
  const absl::Time begun = SteadyNow();
  if (received.ok()) received = Fetch(stub.get(), bytes);
  if (!received.ok()) {
    member->measure_error = absl::IsUnimplemented(received.status())
                                ? "its version cannot be measured"
                                : ShortReason(received.status());
    return;
  }
  member->measured_bps = static_cast<double>(*received) * 8 / SecondsSince(begun);
}

MemberFacts ServerMember(const v1::ServerStatus& server) {
  MemberFacts member{
      .name = server.colocated()
                  ? absl::StrFormat("node %d of %s on %s", server.node_rank(), server.job(),
                                    server.hostname())
                  : absl::StrFormat("server %d on %s", server.server_id(), server.hostname()),
      .hostname = server.hostname(),
      .control_address = server.control_address(),
      .data = {},
      .bandwidth_bps = server.bandwidth_bps(),
      .last_seen_s = server.last_seen_s(),
      .is_agent = server.colocated()};
  for (const auto& endpoint : server.endpoints()) {
    if (endpoint.transport() != "tcp") continue;
    const HostPort address{endpoint.host(), static_cast<uint16_t>(endpoint.port())};
    member.data.push_back({address.ToString(), ""});
  }
  return member;
}

}  // namespace

std::vector<MemberFacts> MembersOf(const v1::GetStatusResponse& status) {
  std::vector<MemberFacts> members;
  for (const auto& server : status.servers()) members.push_back(ServerMember(server));
  for (const auto& job : status.jobs()) {
    for (const auto& node : job.nodes()) {
      // An agent and its colocated server are one process, which is already in the list.
      const bool listed = std::any_of(status.servers().begin(), status.servers().end(),
                                      [&](const v1::ServerStatus& server) {
                                        return server.colocated() && server.job() == job.name() &&
                                               server.node_rank() == node.node_rank();
                                      });
      if (listed || !node.connected()) continue;
      members.push_back({.name = absl::StrFormat("node %d of %s on %s", node.node_rank(),
                                                 job.name(), node.hostname()),
                         .hostname = node.hostname(),
                         .control_address = node.control_address(),
                         .data = {},
                         .bandwidth_bps = node.bandwidth_bps(),
                         .last_seen_s = node.last_seen_s(),
                         .is_agent = true});
    }
  }
  return members;
}

ClusterFacts ReadCluster(const ClusterQuestion& question) {
  ClusterFacts facts;
  for (const HostPort& address : question.schedulers.addresses) {
    facts.schedulers.push_back(AskOne(address, question.timeout));
  }
  for (const SchedulerFacts& scheduler : facts.schedulers) {
    if (!scheduler.answer.ok()) continue;
    facts.members = MembersOf(scheduler.status);
    break;
  }
  AskMembers(&facts.members);
  // Sequentially: all measurements share this machine's link.
  for (MemberFacts& member : facts.members) {
    if (question.probe_bytes != 0 && member.control_error.empty()) {
      Measure(question.probe_bytes, &member);
    }
  }
  return facts;
}

}  // namespace addend
