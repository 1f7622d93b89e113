// The reader of a client receives the agent's messages after the handshake, and decides the meaning
// of each: which tensor is declared, which round has ended and how, which work on the GPU is next,
// and that the job has failed.
//
// Owned by the Context; called by one thread at a time (reading.h says by which). The reader has no
// mutex: it changes tensors and rounds by calls of Operations and DeviceRounds. Only the counts of
// nodes are its own, and it sets the segments of a tensor before the declaration ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lib/client/device_rounds.h"
#include "lib/client/error.h"
#include "lib/client/handshake.h"
#include "lib/client/operations.h"
#include "lib/client/reading.h"
#include "lib/client/socket.h"

namespace addend::client {

class AgentReader {
 public:
  // Receives the next packet: AgentSocket::TryReceive.
  using ReceiveFn = std::function<Error(Packet*, AgentSocket::Event*)>;

  // `agent`: its socket's path, for messages. `nodes`: agents in the job at its start.
  // `operations` and `device_rounds` outlive the reader.
  AgentReader(std::string agent, int32_t nodes, ReceiveFn receive, Operations* operations,
              DeviceRounds* device_rounds);

  // Delivers the next message. kOver when `receive` says kWoken, and once the job has failed: by an
  // error of `receive`, a closed connection, the agent's report, or a message that cannot be. The
  // failure goes to Operations::Fail.
  Reading::Step Deliver();

  // Agents. Any thread.
  int32_t nodes_present() const { return nodes_present_; }
  int32_t nodes_waiting() const { return nodes_waiting_; }

 private:
  // An error fails the job.
  Error OnPacket(const Packet& packet);
  Error OnDeclared(const Packet& packet);
  Error OnResult(const Packet& packet);
  Error OnAttached(const Packet& packet);
  // The messages about a round that is under way on the GPU.
  Error OnDevicePacket(const Packet& packet);
  Error FindOnDevice(uint32_t tensor, uint64_t round, std::shared_ptr<Operation>* operation) const;

  const std::string agent_;
  const ReceiveFn receive_;
  Operations* const operations_;
  DeviceRounds* const device_rounds_;
  ProgressPrinter progress_{ProgressPrinter::When::kRunning};  // used by Deliver()
  std::atomic<int32_t> nodes_present_;
  std::atomic<int32_t> nodes_waiting_{0};
};

}  // namespace addend::client
