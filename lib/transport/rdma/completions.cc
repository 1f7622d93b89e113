// Polls while completions come, and for `spin` after the last of them; then arms the completion
// channel and sleeps in epoll. The poll after arming catches completions that arrived in between.

#include "lib/transport/rdma/completions.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend::rdma {
namespace {

constexpr int kFirstCapacity = 1024;
constexpr int kPolledAtOnce = 32;
// Bounded, so that sockets and timers get their turn.
constexpr int kPolledPerTurn = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<CompletionQueue>> CompletionQueue::Create(
    EventLoop* loop, std::shared_ptr<Device> device, const CompletionTable* table,
    absl::Duration spin) {
  std::unique_ptr<CompletionQueue> made(new CompletionQueue(loop, device, table, spin));
  made->channel_.reset(ibv_create_comp_channel(device->context()));
  if (made->channel_ != nullptr) {
    made->queue_.reset(ibv_create_cq(device->context(), kFirstCapacity, nullptr,
                                     made->channel_.get(), /*comp_vector=*/0));
  }
  if (made->queue_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat("%s has no completion queue left: %s",
                                                        device->name(), std::strerror(errno)));
  }
  const int fd = made->channel_->fd;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ADDEND_RETURN_IF_ERROR(loop->Watch(fd, EPOLLIN, made.get()));
  ADDEND_RETURN_IF_ERROR(made->Arm());
  return made;
}

CompletionQueue::~CompletionQueue() {
  if (channel_ != nullptr) loop_->Unwatch(channel_->fd);
}

absl::Status CompletionQueue::Reserve(int completions) {
  reserved_ += completions;
  if (reserved_ <= queue_->cqe) return absl::OkStatus();
  if (ibv_resize_cq(queue_.get(), std::max(reserved_, 2 * queue_->cqe)) == 0) {
    return absl::OkStatus();
  }
  if (ibv_resize_cq(queue_.get(), reserved_) == 0) return absl::OkStatus();
  reserved_ -= completions;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s has no room for another %d completions: %s (fewer links for each shard: use more shards)",
      device_->name(), completions, std::strerror(errno)));
}

absl::Status CompletionQueue::Arm() {
  if (ibv_req_notify_cq(queue_.get(), /*solicited_only=*/0) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("%s cannot arm its completion queue", device_->name()));
}

void CompletionQueue::OnReady(uint32_t) {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  last_completion_ = SteadyNow();
  Turn();
}

void CompletionQueue::Turn() {
  Poll();
  const absl::Time now = SteadyNow();
  if (now - last_completion_ < spin_) return turn_.Schedule();
  if (const absl::Status armed = Arm(); !armed.ok()) spdlog::error("RDMA: {}", Message(armed));
  // Completions that came between the last poll and the arming cause no event.
  if (PollOnce() > 0) turn_.Schedule();
}

void CompletionQueue::Poll() {
  for (int polled = 0; polled < kPolledPerTurn;) {
    const int count = PollOnce();
    if (count == 0) return;
    polled += count;
    last_completion_ = SteadyNow();
  }
}

int CompletionQueue::PollOnce() {
  ibv_wc completions[kPolledAtOnce];
  const int count = ibv_poll_cq(queue_.get(), kPolledAtOnce, completions);
  for (int i = 0; i < count; ++i) {
    const WorkId id = WorkId::Unpack(completions[i].wr_id);
    if (CompletionTaker* const taker = table_->Find(id.owner)) {
      taker->OnCompletion(id, completions[i]);
    }
  }
  return std::max(count, 0);
}

}  // namespace addend::rdma
