// The events that a node reports to the scheduler. A new event needs a call in
// proto/addend/v1/scheduler.proto with a handler in services/scheduler, and here its place in
// Report, with a function that fills it in.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "lib/base/failure.h"
#include "lib/base/ids.h"
#include "lib/base/strings.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// The request of a call to the scheduler. Complete but for the member's identity, which is filled
// in when the report is sent.
using Report = std::variant<v1::DeclareRequest, v1::UndeclareRequest, v1::ReportTrainersRequest,
                            v1::ReportIdleRequest, v1::ReportFailureRequest,
                            v1::ReportServerLostRequest, v1::AckChangeRequest>;

namespace report {

template <typename Request>
Request Of(Generation generation) {
  Request request;
  request.set_generation(generation.value());
  return request;
}

// `number`: from 1 on; an error that answers this declaration names it.
inline Report Declare(Generation generation, v1::TensorDescriptor tensor, uint32_t number) {
  auto request = Of<v1::DeclareRequest>(generation);
  *request.add_tensors() = std::move(tensor);
  request.add_numbers(number);
  return request;
}

inline Report Undeclare(Generation generation, std::string name) {
  auto request = Of<v1::UndeclareRequest>(generation);
  request.add_names(std::move(name));
  return request;
}

// `initialised` local ranks wait for the generation to begin.
inline Report Trainers(Generation generation, uint32_t initialised) {
  auto request = Of<v1::ReportTrainersRequest>(generation);
  request.set_initialised(initialised);
  return request;
}

// No operation of the generation is pending on the node.
inline Report Idle(Generation generation) { return Of<v1::ReportIdleRequest>(generation); }

inline Report Failed(Generation generation, const absl::Status& why) {
  ToldFailure told = TellFailure(why);
  auto request = Of<v1::ReportFailureRequest>(generation);
  request.set_reason(Message(why));
  request.set_exit_code(told.exit_status);
  request.set_kind(std::move(told.name));
  return request;
}

// The node cannot reach a CPU server, though other nodes may.
inline Report ServerLost(Generation generation, ServerId server, const absl::Status& why) {
  auto request = Of<v1::ReportServerLostRequest>(generation);
  request.set_server_id(server.value());
  request.set_reason(Message(why));
  return request;
}

// The node takes its last ServerLost() back: it is connected to the server again.
inline Report ServerReached(Generation generation, ServerId server) {
  auto request = Of<v1::ReportServerLostRequest>(generation);
  request.set_server_id(server.value());
  request.set_reached(true);
  return request;
}

// The node is connected to the next owners of a planned change, or follows all of them.
inline Report ChangeDone(Generation generation, uint64_t change, bool following) {
  auto request = Of<v1::AckChangeRequest>(generation);
  request.set_change(change);
  request.set_following(following);
  return request;
}

}  // namespace report
}  // namespace addend
