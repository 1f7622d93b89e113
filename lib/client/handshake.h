// The first words between a trainer and its agent: who I am, and the wait for all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/client/error.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"

namespace addend::client {

// This process's place in the job, as the agent confirmed it.
struct Place {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node_rank = 0;
  int32_t num_nodes = 1;
};

// Prints the agent's progress texts: each change at once, the same again after 10 s. One thread.
class ProgressPrinter {
 public:
  void Print(const std::string& text);

 private:
  std::string last_;
  int64_t last_ms_ = 0;
  int64_t first_ms_ = 0;
};

// Connects, introduces this process and waits until the job is complete, however long that takes:
// how long it may is the agent's and the job's matter. Blocks.
Error JoinJob(const Settings& settings, std::unique_ptr<AgentSocket>* socket, Place* place);

}  // namespace addend::client
