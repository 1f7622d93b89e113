// Connections to an HTTP port that take too long. httplib waits for each next byte anew: a client
// that sends one a second would hold a thread for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "lib/base/mutex.h"

namespace addend {

// Ends the connections that this process has accepted on `port`, but for those that `spare` wants
// kept. httplib keeps its sockets to itself: they are looked for among all that the process has.
// `peer`: its address, as bytes. Thread-safe.
using SpareFn = std::function<bool(int socket, const std::string& peer)>;
void EndConnections(uint16_t port, const SpareFn& spare);

// Ends those that take more than `most` to send their request and to be answered. The time in which
// a whole request waits for a thread does not count. Looks while there are any.
class SlowClients {
 public:
  explicit SlowClients(std::chrono::milliseconds most) : most_(most) {}
  ~SlowClients();

  // Before the first one comes.
  void Watch(uint16_t port);
  // On any thread: a connection waits for a thread from now on; and it has been served.
  void Came();
  void Went();

 private:
  void Run(uint16_t port);

  const std::chrono::milliseconds most_;
  Mutex mu_;
  CondVar changed_;
  int clients_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace addend
