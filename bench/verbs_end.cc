// Flow control between two ends: an end has at most `depth` payloads at its NIC and fills only
// slots that the peer has released. The receiver releases slots in batches of half the depth;
// kFinish ends a direction.
#include "bench/verbs_end.h"

#include <poll.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"

namespace addend::verbs {
namespace {

// An immediate: its kind in the upper two bits, and a number modulo 2^30.
enum Kind : uint32_t { kPayload = 0, kRelease = 1, kFinish = 2 };
constexpr uint32_t kNumberBits = 30, kNumberMask = (uint32_t{1} << kNumberBits) - 1;
uint32_t Immediate(Kind kind, uint64_t number) {
  return kind << kNumberBits | (static_cast<uint32_t>(number) & kNumberMask);
}

// The kinds of a send's completion.
constexpr uint64_t kPayloadId = 0, kControlId = 1;
constexpr uint64_t kControlsMost = 8;  // in flight

constexpr absl::Duration kWake = absl::Milliseconds(50);  // the interval of checks for the end
constexpr absl::Duration kStall = absl::Seconds(20);

double ThreadCpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

}  // namespace

absl::StatusOr<std::unique_ptr<End>> End::Create(const Device& device, const Settings& settings) {
  if (settings.entries > device.entries_most()) {
    return absl::InvalidArgumentError(absl::StrFormat("--entries=%d: %s gathers at most %d",
                                                      settings.entries, device.name(),
                                                      device.entries_most()));
  }
  std::unique_ptr<End> end(new End(device, settings));
  ADDEND_ASSIGN_OR_RETURN(end->outgoing_, Outgoing::Allocate(device, settings));
  ADDEND_ASSIGN_OR_RETURN(end->incoming_, Incoming::Allocate(device, settings));
  const uint64_t slots = SlotsOf(settings);
  // The peer has at most these writes in flight: all slots, their releases, and its finish.
  const uint64_t receives = slots + slots / end->release_after() + 2;
  ADDEND_ASSIGN_OR_RETURN(
      end->queue_pair_,
      QueuePair::Create(device, {.sends = static_cast<uint32_t>(settings.depth + kControlsMost),
                                 .receives = static_cast<uint32_t>(receives),
                                 .entries = settings.entries}));
  for (uint64_t i = 0; i < receives; ++i) ADDEND_RETURN_IF_ERROR(end->queue_pair_->PostReceive());
  return end;
}

EndAddress End::address() const {
  const auto* gid = reinterpret_cast<const char*>(device_.gid().raw);
  return {.queue_pair = queue_pair_->number(),
          .lid = device_.lid(),
          .gid = std::string(gid, sizeof(device_.gid().raw)),
          .mtu = device_.mtu(),
          .memory = incoming_->address(),
          .remote_key = incoming_->remote_key()};
}

absl::Status End::Connect(const EndAddress& peer) {
  peer_ = peer;
  return queue_pair_->Connect(peer);
}

absl::StatusOr<Outcome> End::Run(const Task& task) {
  const absl::Time start = SteadyNow();
  const double cpu_start = ThreadCpuSeconds();
  ADDEND_RETURN_IF_ERROR(Transfer(task));
  Outcome outcome;
  outcome.payloads = received_;
  outcome.cpu_seconds = ThreadCpuSeconds() - cpu_start;
  if (received_ > 0) outcome.seconds = absl::ToDoubleSeconds(last_arrival_ - start);
  ADDEND_RETURN_IF_ERROR(incoming_->CheckLast(received_));
  return outcome;
}

absl::Status End::Transfer(const Task& task) {
  while (true) {
    ADDEND_RETURN_IF_ERROR(PostWhatMayGo(task));
    if (Finished(task)) return absl::OkStatus();
    ADDEND_ASSIGN_OR_RETURN(const auto completed, queue_pair_->Poll());
    ADDEND_RETURN_IF_ERROR(completed.empty() ? Wait(task) : Complete(completed));
  }
}

bool End::Finished(const Task& task) const {
  const bool all_sent = !task.sends || finish_sent_;
  const bool all_received = !task.receives || peer_finished_;
  return all_sent && all_received && payloads_in_flight_ == 0 && controls_in_flight_ == 0;
}

absl::Status End::PostWhatMayGo(const Task& task) {
  if (received_ - release_sent_ >= release_after() && controls_in_flight_ < kControlsMost) {
    release_sent_ = received_;
    ADDEND_RETURN_IF_ERROR(PostControl(Immediate(kRelease, received_)));
  }
  const uint64_t slots = SlotsOf(settings_);
  while (task.sends && !finish_sent_) {
    if (task.enough(sent_)) {
      if (controls_in_flight_ == kControlsMost) return absl::OkStatus();
      finish_sent_ = true;
      return PostControl(Immediate(kFinish, sent_));
    }
    if (payloads_in_flight_ == settings_.depth || sent_ == released_ + slots) break;
    const uint64_t slot = sent_ % slots;
    ADDEND_RETURN_IF_ERROR(queue_pair_->Write(kPayloadId, outgoing_->Stamp(sent_),
                                              peer_.memory + slot * Incoming::StrideOf(settings_),
                                              peer_.remote_key, Immediate(kPayload, sent_)));
    ++sent_;
    ++payloads_in_flight_;
  }
  return absl::OkStatus();
}

absl::Status End::PostControl(uint32_t immediate) {
  ++controls_in_flight_;
  return queue_pair_->Write(kControlId, {}, peer_.memory, peer_.remote_key, immediate);
}

absl::Status End::Complete(std::span<const ibv_wc> completed) {
  for (const ibv_wc& completion : completed) {
    if (completion.opcode == IBV_WC_RDMA_WRITE) {
      --(completion.wr_id == kPayloadId ? payloads_in_flight_ : controls_in_flight_);
      continue;
    }
    ADDEND_RETURN_IF_ERROR(OnImmediate(be32toh(completion.imm_data), completion.byte_len));
    ADDEND_RETURN_IF_ERROR(queue_pair_->PostReceive());
  }
  return absl::OkStatus();
}

absl::Status End::OnImmediate(uint32_t immediate, uint32_t bytes) {
  const uint32_t number = immediate & kNumberMask;
  switch (immediate >> kNumberBits) {
    case kRelease:
      released_ += (number - static_cast<uint32_t>(released_)) & kNumberMask;
      return absl::OkStatus();
    case kFinish:
      peer_finished_ = true;
      break;
    default:
      if (bytes == settings_.bytes && immediate == Immediate(kPayload, received_)) {
        last_arrival_ = SteadyNow();
        return incoming_->CheckStamp(received_++);
      }
  }
  if (peer_finished_ && immediate == Immediate(kFinish, received_)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("after %d payloads came %d bytes with the immediate %#x, which is not next",
                      received_, bytes, immediate));
}

absl::Status End::Wait(const Task& task) {
  ADDEND_RETURN_IF_ERROR(queue_pair_->Arm());
  // Completions before Arm() make no event.
  ADDEND_ASSIGN_OR_RETURN(const auto completed, queue_pair_->Poll());
  if (!completed.empty()) return Complete(completed);
  const absl::Time stalled = SteadyNow() + kStall;
  pollfd files[] = {{queue_pair_->fd(), POLLIN, 0},
                    {task.channel == nullptr ? -1 : task.channel->fd(), POLLIN, 0}};
  while (SteadyNow() < stalled) {
    const int ready = ::poll(files, 2, static_cast<int>(absl::ToInt64Milliseconds(kWake)));
    if (ready < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrFormat("cannot wait: %s", std::strerror(errno)));
    }
    if (files[0].revents != 0) return queue_pair_->TakeEvent();
    if (task.sends && !finish_sent_ && task.enough(sent_)) return absl::OkStatus();
    if (ready <= 0 || files[1].revents == 0) continue;
    ADDEND_RETURN_IF_ERROR(task.channel->PeerFailure());
    files[1].fd = -1;  // the peer's outcome, which is read later
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("nothing has been sent or received for %s", absl::FormatDuration(kStall)));
}

}  // namespace addend::verbs
