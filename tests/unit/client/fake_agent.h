// An agent in miniature for tests of the client: speaks lib/client/ipc.h to all ranks of a job over
// one socket and sums their contributions in rank order, without scheduler, servers and network.
// It sums for real (lib/reduce), so a test receives the bits of a sum at a single level.
//
// Owned by the test; one thread of its own answers. Methods may be called from any other thread and
// have taken effect when they return. Aborts if the client breaks the protocol.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/types.h"
#include "lib/client/ipc.h"

namespace addend {

class FakeAgent {
 public:
  // Listens on `socket`; answers kInit when all `size` ranks are there.
  FakeAgent(std::string socket, int size);
  // Closes all connections.
  ~FakeAgent();

  const std::string& socket() const { return socket_; }

  // Answers every later kInit with this refusal.
  void RefuseInit(uint32_t code, std::string text);
  // Sent to every connected rank.
  void SendProgress(std::string text);
  void SendRaw(std::string bytes);
  // kFailure to all ranks, then the end of their connections.
  void Fail(uint32_t code, std::string text);
  // Ends all connections without a word, as a killed agent does.
  void CloseAll();
  // While held, complete rounds are kept back.
  void HoldResults(bool hold);
  // The next complete round of this tensor fails with this error instead of its result.
  void FailNextRound(std::string name, uint32_t code, std::string text);

  struct Counts {
    int connected = 0;
    int shut_down = 0;                // ended with kShutdown
    int died = 0;                     // ended without
    int tensors = 0;                  // declared by at least one rank
    std::vector<std::string> pushed;  // names, in the order of arrival
    std::vector<int32_t> priorities;  // of those pushes
  };
  Counts counts();

 private:
  struct Tensor;
  struct Peer;

  void Run();
  void Post(std::function<void()> action);
  void RunPosted();
  void Accept();
  void Receive(Peer* peer);
  void Handle(Peer* peer, const ipc::Message& message, const char* rest);
  void OnInit(Peer* peer, const ipc::Message& message);
  void OnDeclare(Peer* peer, const ipc::Message& message, const char* rest);
  void OnPush(Peer* peer, const ipc::Message& message);
  void OnUndeclare(Peer* peer, const ipc::Message& message);
  int SizeOf(const Tensor& tensor) const;
  void FinishRound(Tensor* tensor);
  void Close(Peer* peer);
  static void Send(const Peer& peer, ipc::Message message, std::string_view text,
                   const std::vector<int>& fds);

  const std::string socket_;
  const int size_;
  int listen_fd_ = -1;
  int wake_fd_ = -1;
  std::thread thread_;

  // The thread's.
  std::map<int, std::unique_ptr<Peer>> peers_;  // by descriptor
  std::map<uint32_t, std::unique_ptr<Tensor>> tensors_;
  std::vector<Tensor*> held_;
  uint32_t last_number_ = 0;
  bool hold_ = false;
  bool stop_ = false;
  uint32_t refusal_code_ = 0;
  std::string refusal_;

  std::mutex mu_;
  std::vector<std::function<void()>> posted_;  // guarded by mu_
  uint64_t posts_ = 0;                         // guarded by mu_
  uint64_t posts_run_ = 0;                     // guarded by mu_
  std::condition_variable ran_;
  Counts counts_;  // guarded by mu_
};

}  // namespace addend
