// A listening socket on a loop: hands over accepted connections. Errors only pause it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "lib/base/fd.h"
#include "lib/base/line_pace.h"
#include "lib/shard/event_loop.h"

namespace addend {

// Used and destroyed on the loop's thread.
class Acceptor final : private FdHandler {
 public:
  using AcceptedFn = absl::AnyInvocable<void(UniqueFd)>;
  // Frees a descriptor when the process has none left; false if it cannot.
  using MakeRoomFn = absl::AnyInvocable<bool()>;

  // `accepted` may not delete the acceptor. `make_room` may be null.
  Acceptor(EventLoop* loop, UniqueFd fd, AcceptedFn accepted, MakeRoomFn make_room);
  ~Acceptor() override;

  // An error: the socket cannot be watched, and no connection will be accepted.
  absl::Status Begin();

 private:
  void OnReady(uint32_t events) override;
  void OnError(int error);
  // Stops accepting for a moment; the kernel keeps the connections queued. Resume() pauses again if
  // the socket cannot be watched then.
  void Pause(const std::string& why);
  void Resume();

  EventLoop* const loop_;
  const UniqueFd fd_;
  AcceptedFn accepted_;
  MakeRoomFn make_room_;
  LinePace pace_;
  uint64_t timer_ = 0;  // 0: accepting
};

}  // namespace addend
