// An end of the traffic: a queue pair with the payloads that it sends and receives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/verbs_channel.h"
#include "bench/verbs_payloads.h"
#include "bench/verbs_queue_pair.h"
#include "bench/verbs_settings.h"

namespace addend::verbs {

// Used by one thread at a time. A payload is an RDMA WRITE WITH IMMEDIATE to the peer's next slot;
// writes without a payload tell the peer which slots are free again, and that the last payload was
// sent. The thread sleeps while nothing completes.
class End {
 public:
  static absl::StatusOr<std::unique_ptr<End>> Create(const Device& device,
                                                     const Settings& settings);
  EndAddress address() const;
  absl::Status Connect(const EndAddress& peer);

  struct Task {
    bool sends = false;
    bool receives = false;
    // Returns whether that many sent payloads are enough; called repeatedly.
    std::function<bool(uint64_t sent)> enough{};
    Channel* channel = nullptr;  // detects a failure of the peer; may be null
  };
  // Runs once, after both ends are connected, until this end and the peer have sent enough. Checks
  // the received payloads. DEADLINE_EXCEEDED if nothing completes any more.
  absl::StatusOr<Outcome> Run(const Task& task);

 private:
  End(const Device& device, const Settings& settings) : device_(device), settings_(settings) {}
  absl::Status Transfer(const Task& task);
  absl::Status PostWhatMayGo(const Task& task);
  absl::Status PostControl(uint32_t immediate);
  bool Finished(const Task& task) const;
  absl::Status Wait(const Task& task);
  absl::Status Complete(std::span<const ibv_wc> completed);
  absl::Status OnImmediate(uint32_t immediate, uint32_t bytes);
  uint64_t release_after() const { return (settings_.depth + 1) / 2; }

  const Device& device_;
  const Settings settings_;
  // The queue pair is destroyed before the memory: afterwards no peer writes to it.
  std::optional<Outgoing> outgoing_;
  std::optional<Incoming> incoming_;
  std::unique_ptr<QueuePair> queue_pair_;
  EndAddress peer_;

  uint64_t sent_ = 0, payloads_in_flight_ = 0, controls_in_flight_ = 0;
  uint64_t released_ = 0;  // sent payloads that the peer has checked
  bool finish_sent_ = false;
  uint64_t received_ = 0, release_sent_ = 0;
  bool peer_finished_ = false;
  absl::Time last_arrival_ = absl::InfinitePast();
};

}  // namespace addend::verbs
