// The trainer's end of the Unix socket: whole messages of ipc.h, with descriptors where they
// belong. Never blocks longer than told; not open in a child of fork().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lib/client/error.h"
#include "lib/client/fork_guard.h"
#include "lib/client/ipc.h"

namespace addend::client {

// A message with what follows its fixed part.
struct Packet {
  ipc::Message message;
  std::string text;
  std::vector<GuardedFd> fds;
};

class AgentSocket {
 public:
  // Tries again while the agent is not there yet, and says so on stderr every few seconds. After
  // `timeout_s` seconds ADDEND_ERROR_UNREACHABLE with the last reason; ADDEND_ERROR_PERMISSION at
  // once.
  static Error Connect(const std::string& path, double timeout_s,
                       std::unique_ptr<AgentSocket>* socket);
  ~AgentSocket();

  // Queues what the socket does not take at once; sends in the order of the calls. Any thread.
  // That the agent is gone is for the receiver to find out. `fd`: passed on, if it is valid.
  void Send(ipc::Message message, const std::vector<int64_t>& shape, std::string_view text,
            GuardedFd fd = {});

  enum class Event { kPacket, kTimeout, kClosed, kWoken };
  // Waits for the next packet; timeout_ms < 0 waits without limit. Sends what is queued meanwhile.
  // One thread at a time. kClosed: the agent has closed the socket, and everything it sent before
  // was received. An error is a message that breaks the protocol.
  Error Receive(int timeout_ms, Packet* packet, Event* event);
  // Ends a Receive that waits, and every later one, with kWoken. Any thread.
  void Wake();
  // Tries for at most `timeout_ms` to send what is queued. Not during a Receive.
  void Flush(int timeout_ms);

  const std::string& path() const { return path_; }

 private:
  explicit AgentSocket(std::string path) : path_(std::move(path)) {}
  Error ReceiveNow(Packet* packet, Event* event, bool* nothing);
  Error Parse(const char* data, size_t bytes, Packet* packet) const;
  void SendQueued();
  bool HasQueued();
  struct Outgoing {
    std::string bytes;
    GuardedFd fd;
  };
  // False when the socket is full.
  bool TrySend(const Outgoing& message);
  void Poke();

  const std::string path_;
  GuardedFd fd_;
  GuardedFd wake_;  // an eventfd: written by Wake and by a Send that had to queue
  std::atomic<bool> woken_{false};
  std::vector<char> buffer_;  // of the receiving thread

  std::mutex send_mu_;
  std::deque<Outgoing> queued_;  // guarded by send_mu_; at most a push per tensor and declarer
};

}  // namespace addend::client
