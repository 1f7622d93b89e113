// The objects that all jobs of a shard share. Owned by the shard; outlives its jobs and links.
// Belongs to the shard's thread, except for the counters, which any thread may read.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "lib/base/clock.h"
#include "lib/encoding/payload_encoder.h"
#include "lib/summation/auditor.h"
#include "lib/summation/dropped_partitions.h"
#include "lib/summation/early_buffers.h"
#include "lib/summation/server_identity.h"
#include "lib/summation/shard_journal.h"
#include "lib/summation/shard_stats.h"

namespace addend {

struct Outgoing;

struct ShardContext {
  // Runs a task at the end of the thread's turn, between the turns of the links.
  using DeferFn = std::function<void(absl::AnyInvocable<void()>)>;

  // `server` and `budget` outlive the context.
  ShardContext(const ServerIdentity* server, MemoryBudget* budget, Auditor::FindingFn on_finding,
               DeferFn defer_task, std::function<absl::Time()> clock = SteadyNow,
               WireEncoding encoding = WireEncoding::kAuto)
      : server(server),
        now(std::move(clock)),
        defer(std::move(defer_task)),
        encoder(encoding),
        early_buffers(EarlyBuffers::Create(budget)),
        auditor(std::move(on_finding)),
        dropped(defer, [this] { early_buffers->DropUnused(); }) {}

  const ServerIdentity* const server;
  const std::function<absl::Time()> now;
  const DeferFn defer;
  ShardStats stats;
  ShardJournal journal;
  PayloadEncoder encoder;  // of results
  const std::shared_ptr<EarlyBuffers> early_buffers;
  Auditor auditor;
  DroppedPartitions dropped;
  Outgoing* outgoing = nullptr;  // outlives the context's jobs; null: this server relays nothing
};

}  // namespace addend
