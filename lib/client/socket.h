// The trainer's end of the Unix socket, and of the queues in shared memory beside it (ring.h):
// whole messages of ipc.h, with the descriptors that belong to them. Never blocks longer than its
// time limits; not open in a child of fork().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/client/error.h"
#include "lib/client/fork_guard.h"
#include "lib/client/ipc.h"
#include "lib/client/messages.h"
#include "lib/client/ring.h"
#include "lib/client/segment.h"

namespace addend::client {

// A message: its fixed part, its text and its descriptors.
struct Packet {
  ipc::Message message;
  std::string text;
  std::vector<GuardedFd> fds;

  // As the struct of its type (messages.h).
  template <typename Typed>
  Typed Decode() const {
    return Typed::Decode({.fixed = message, .text = text});
  }
};

// Between two attempts to connect.
inline constexpr int kRetryMs = 50;

class AgentSocket {
 public:
  // Retries while the agent is not listening, with a message on stderr every few seconds. After
  // `timeout_s` seconds ADDEND_ERROR_UNREACHABLE with the last reason; ADDEND_ERROR_PERMISSION at
  // once.
  static Error Connect(const std::string& path, double timeout_s,
                       std::unique_ptr<AgentSocket>* socket);
  ~AgentSocket();

  // From now on messages may pass through queues in this memory, which came with kInitReply. Before
  // another thread uses the socket.
  Error UseRings(int fd);

  // Sends in the order of the calls, and queues messages that the socket does not take at once. Any
  // thread. Send does not report that the agent is gone; the receiver finds out. `fd`: passed on,
  // if it is valid.
  void Send(const ipc::Encoded& message, GuardedFd fd = {});

  enum class Event { kPacket, kTimeout, kClosed, kWoken };
  // Waits for the next packet; timeout_ms < 0 waits without limit. Sends queued messages meanwhile.
  // One thread at a time. kClosed: the agent has closed the socket, and all its messages have been
  // received. An error means a message that violates the protocol.
  Error Receive(int timeout_ms, Packet* packet, Event* event);
  // The two halves of Receive(). TryReceive does not wait: kTimeout when no packet is there. One
  // thread at a time. Await returns when there may be one, or after timeout_ms; several threads at
  // a time.
  Error TryReceive(Packet* packet, Event* event);
  void Await(int timeout_ms);
  // Ends a waiting Receive or Await, and every later one, with kWoken. Any thread.
  void Wake();
  // Tries for at most `timeout_ms` to send the queued messages. Not during a Receive.
  void Flush(int timeout_ms);

  const std::string& path() const { return path_; }

 private:
  explicit AgentSocket(std::string path) : path_(std::move(path)) {}
  Error ReceiveNow(Packet* packet, Event* event);
  Error TakeFromRing(Packet* packet);
  bool IsBell(const Packet& packet);
  bool MayRead();
  Error Read(Packet* packet, Event* event);
  bool WaitForSocket(int timeout_ms);
  bool Poll(int timeout_ms);
  Error Parse(const char* data, size_t bytes, Packet* packet) const;
  void SendQueued();
  bool HasQueued();
  struct Outgoing {
    std::string bytes;
    GuardedFd fd;
  };
  static std::string BytesOf(const ipc::Message& fixed, const ipc::Encoded& message);
  // Returns false if the socket is full.
  bool TrySend(const Outgoing& message);
  void SendOrQueue(Outgoing outgoing);
  void Poke();

  const std::string path_;
  GuardedFd fd_;
  GuardedFd wake_;  // an eventfd: written by Wake and by a Send that had to queue
  std::atomic<bool> woken_{false};

  std::unique_ptr<Segment> rings_;  // null: all messages go by the socket
  std::optional<ipc::RingReader> in_;
  // A poll has found something in the socket. Without that, TryReceive() does not ask the kernel
  // each time.
  std::atomic<bool> readable_{true};

  // Used by the receiving thread.
  std::vector<char> buffer_;
  uint64_t received_ = 0;       // by the socket, since there are queues
  uint32_t looks_ = 0;          // at the queue alone
  std::optional<Packet> held_;  // received, but entries of the queue come before it
  bool closed_ = false;         // as `held_`: the end of the connection

  std::mutex send_mu_;
  std::optional<ipc::RingWriter> out_;  // guarded by send_mu_
  uint64_t sent_ = 0;                   // as `received_`; guarded by send_mu_
  std::deque<Outgoing> queued_;  // guarded by send_mu_; at most a push per tensor and declarer
};

}  // namespace addend::client
