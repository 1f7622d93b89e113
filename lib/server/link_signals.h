// The signalling channel beside a link over RDMA, as a gRPC stream: both ends. It carries queue
// pair addresses and reasons, never gradients.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/auth/link_proof.h"
#include "lib/base/ids.h"
#include "lib/transport/rdma/signals.h"
#include "proto/addend/v1/common.pb.h"
#include "proto/addend/v1/summation.grpc.pb.h"

namespace addend {

v1::RdmaPort ToProto(const rdma::PortAddress& port);
// INVALID_ARGUMENT for a GID of another length, or an unknown fabric.
absl::StatusOr<rdma::PortAddress> FromProto(const v1::RdmaPort& port);

// Opens signalling streams to summation servers. Not thread-safe.
class LinkCaller {
 public:
  LinkCaller();
  // Waits until all streams have ended; their Signals must have been destroyed before. Not on a
  // gRPC thread.
  ~LinkCaller();
  // Answers the server's challenge for a link to this shard; called at most once, on a gRPC thread.
  using ProveFn = std::function<v1::LinkAccess(const v1::LinkChallenge&, uint32_t shard)>;
  // Opens a stream to the server whose gRPC listens on `server` (host:port). The ends are sent
  // together with the answer of `prove`, when the server's challenge has come. Never blocks.
  std::unique_ptr<rdma::Signals> Call(const std::string& server, ProveFn prove);

 private:
  class Caller;
  // gRPC 1.51 aborts when a channel of callback calls is destroyed on one of its own threads: this
  // list keeps the calls until they are over, and destroys them.
  std::vector<std::shared_ptr<Caller>> calls_;
};

// Time for a node's first message, as for the handshake over TCP.
inline constexpr std::chrono::seconds kFirstWordPatience(10);

// A node's first message: its claimed identity with the proof, and its ends.
struct LinkRequest {
  auth::LinkTerms terms;
  std::string proof;
  rdma::Signal::Ends offer;
};
// The server's end of a stream until the node's first message: then `begin` gets that message and
// the rest of the stream, on a gRPC thread. Owns itself. `server` is the incarnation of this
// server. Without a first message in time the call is cancelled, since its peer may not read
// either.
using BeginFn = std::function<void(LinkRequest request, std::unique_ptr<rdma::Signals> rest)>;
grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* AnswerCall(
    grpc::CallbackServerContext* context, Incarnation server, BeginFn begin,
    std::chrono::milliseconds patience = kFirstWordPatience);

}  // namespace addend
