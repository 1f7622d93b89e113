// The handshake between a trainer and its agent: the trainer's identity, and the wait for all
// ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/client/error.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"

namespace addend::client {

// This process's ranks in the job, as confirmed by the agent.
struct Place {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node_rank = 0;
  int32_t num_nodes = 1;
};

// Prints the agent's progress texts: each change at once, an unchanged text again after 10 s. One
// thread.
class ProgressPrinter {
 public:
  void Print(const std::string& text);

 private:
  std::string last_;
  int64_t last_ms_ = 0;
  int64_t first_ms_ = 0;
};

// Connects, introduces this process and waits until the job is complete. Blocks without a limit:
// the agent and the job limit the time.
Error JoinJob(const Settings& settings, std::unique_ptr<AgentSocket>* socket, Place* place);

}  // namespace addend::client
