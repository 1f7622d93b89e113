// The client of a job, made of parts that know each other in one direction only:
//
//   Context -> Reading, AgentReader -> Operations -> DeviceRounds
//
// Operations has the declared tensors and their push-pulls; the reader delivers the agent's
// messages to Operations and DeviceRounds, on the thread that Reading chooses: Operations offers it
// those of its callers. The parts know the socket, and DeviceRounds the way of a GPU's failure to
// Operations, only as functions that the Context gives them.
//
// Owned by the table of objects and by the calls under way; owns the socket and the parts. Every
// method may be called from any thread.
//
// The context ends with Shutdown (once), which ends the reading before the parts end that the
// reader uses. In a child of fork() no method is called, not even the destructor (see objects.h).
#pragma once

#include <cstdint>
#include <memory>

#include "lib/client/device_rounds.h"
#include "lib/client/error.h"
#include "lib/client/handshake.h"
#include "lib/client/operations.h"
#include "lib/client/reader.h"
#include "lib/client/reading.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"
#include "lib/client/tensor.h"

namespace addend::client {

class Context {
 public:
  // Blocks until all ranks of the job have joined.
  static Error Open(const Settings& settings, std::shared_ptr<Context>* context);
  ~Context();

  const Place& place() const { return place_; }
  // The calls on tensors and their push-pulls in host memory.
  Operations& operations() { return operations_; }

  // See addend_push_pull_device. The first call of the process waits for the first call of the
  // other local ranks.
  Error PushFromDevice(const std::shared_ptr<Tensor>& tensor, const DeviceMemory& memory,
                       int32_t priority, std::shared_ptr<Operation>* operation);
  // Waits like Operations::Wait, then makes the stream wait for the result.
  Error WaitOnStream(const std::shared_ptr<Operation>& operation, double timeout_s, void* stream);

  int32_t nodes_present() const { return reader_.nodes_present() * place_.nodes_per_agent; }
  int32_t nodes_waiting() const { return reader_.nodes_waiting() * place_.nodes_per_agent; }
  void Shutdown();

 private:
  Context(std::unique_ptr<AgentSocket> socket, const Place& place, const Settings& settings);

  const std::unique_ptr<AgentSocket> socket_;
  const Place place_;
  DeviceRounds device_rounds_;
  Operations operations_;
  AgentReader reader_;
  Reading reading_;
};

}  // namespace addend::client
