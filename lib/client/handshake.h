// The handshake between a trainer and its agent: the trainer's identity, and the wait for all
// ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/client/error.h"
#include "lib/client/settings.h"
#include "lib/client/socket.h"

namespace addend::client {

// This process's ranks in the job, as confirmed by the agent. Local ranks and nodes are as the
// launcher counts them, which may take each pod of the agent's machine for a node.
struct Place {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t node_rank = 0;
  int32_t num_nodes = 1;
  int32_t nodes_per_agent = 1;
};

// Prints the agent's progress texts: each change at once, an unchanged text again after 10 s. At
// the start of a job (kStart) it says how long that has taken, and prints nothing in the first two
// seconds: most jobs have begun by then. One thread.
class ProgressPrinter {
 public:
  enum class When { kStart, kRunning };

  using NowMs = int64_t (*)();
  static int64_t SteadyNowMs();

  explicit ProgressPrinter(When when, NowMs now_ms = &SteadyNowMs) : when_(when), now_ms_(now_ms) {}

  void Print(const std::string& text);
  // How long a text is still to be held back, 0 if it is due; -1 without such a text.
  int HeldBackForMs() const;
  // Prints the text that was held back last.
  void Release();

 private:
  void PrintAt(int64_t now_ms, const std::string& text);

  const When when_;
  const NowMs now_ms_;
  std::string held_back_;
  std::string last_;
  int64_t last_ms_ = 0;
  int64_t first_ms_ = 0;
};

// Connects, introduces this process and waits until the job is complete. Blocks without a limit:
// the agent and the job limit the time. An agent that ends the connection without a word was killed
// and is started again, or becomes another node's: this process connects again, for
// `settings.connect_timeout_s`. That time begins anew after a connection that lasted for as long.
Error JoinJob(const Settings& settings, std::unique_ptr<AgentSocket>* socket, Place* place);

}  // namespace addend::client
