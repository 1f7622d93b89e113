// The conversation beside a link over RDMA, as a stream of gRPC's: both ends. Nothing of a gradient
// passes here.
#pragma once

#include <grpcpp/support/server_callback.h>

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
// INVALID_ARGUMENT: a GID of another length, or an unknown fabric.
absl::StatusOr<rdma::PortAddress> FromProto(const v1::RdmaPort& port);

// Calls summation servers. One thread at a time.
class LinkCaller {
 public:
  LinkCaller();
  // Waits until the conversations have ended, which their Signals have asked for by then; not on a
  // thread of gRPC's.
  ~LinkCaller();
  // Answers the server's challenge about a link to this shard; called once at most, on a thread of
  // gRPC's.
  using ProveFn = std::function<v1::LinkAccess(const v1::LinkChallenge&, uint32_t shard)>;
  // Begins a conversation with the server whose gRPC listens on `server` (host:port). The ends that
  // are said first go out with what `prove` says, when the server's challenge has come. Never
  // blocks.
  std::unique_ptr<rdma::Signals> Call(const std::string& server, ProveFn prove);

 private:
  class Caller;
  // gRPC 1.51 aborts when a channel of calls with callbacks goes on one of its own threads: calls
  // are kept until they are over, and dropped here.
  std::vector<std::shared_ptr<Caller>> calls_;
};

// What a node says first: who it is, which its proof is to show, and its ends.
struct LinkRequest {
  auth::LinkTerms terms;
  std::string proof;
  rdma::Signal::Ends offer;
};
// The server's end of a stream, until the node's first word has come: then `begin` gets that and
// the rest of the conversation, on a thread of gRPC's. Owned by itself. `server`: this one.
using BeginFn = std::function<void(LinkRequest request, std::unique_ptr<rdma::Signals> rest)>;
grpc::ServerBidiReactor<v1::LinkSignal, v1::LinkSignal>* AnswerCall(Incarnation server,
                                                                    BeginFn begin);

}  // namespace addend
