// A scheduler without the records of its members' jobs: it has no store, or lost it. Members that a
// former scheduler let in bring their knowledge when they register again. They are answered
// UNAVAILABLE, which they repeat, until all nodes and servers of these jobs have come, or for two
// leases. Then the records that a store would have held are made of that knowledge
// (forgotten_job.h), checked as those of a store are, and taken in: the jobs go on as after any
// other restart, with all partitions recovered, since no member knows all that others were told. A
// job whose generation is FORMING, as far as its nodes know, goes on with the next generation.
//
// Owned by Membership; acts during its events. Does nothing until a member with such knowledge
// comes; members without it come and go as ever, but for those of the same jobs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/forgotten_job.h"
#include "services/scheduler/job.h"
#include "services/scheduler/leases.h"
#include "services/scheduler/roster.h"

namespace addend {

class Reunion {
 public:
  // The scheduler's state, which the reunion adds to.
  struct State {
    Fleet& fleet;
    Jobs& jobs;
    Leases& leases;
    Changes& changes;
  };
  // `make_key`: as Membership::Options has it.
  explicit Reunion(std::function<std::string()> make_key) : make_key_(std::move(make_key)) {}

  // OK: the member may register; its request has been checked for itself. UNAVAILABLE: it has to
  // come again. Another error refuses it for good.
  absl::Status Admit(const v1::RegisterNodeRequest& request, const State& state);
  absl::Status Admit(const v1::RegisterServerRequest& request, const State& state);
  // Nobody could come for so long, because this process did not run.
  void Prolong(absl::Duration gap) {
    if (deadline_) *deadline_ += gap;
  }
  // Goes on without the members that have not come, once they have had their time.
  void Tick(const State& state);

 private:
  // By incarnation: servers of several former schedulers may have the same number.
  using Servers = std::map<Incarnation, v1::RegisterServerRequest>;
  using Numbers = std::map<Incarnation, ServerId>;

  bool IsForgotten(uint64_t job, Jobs& jobs) const;
  absl::Status EndOrWait(const State& state);
  std::string Missing();
  void End(const State& state);
  void GiveUp(uint64_t job);
  static Numbers NumbersOf(const Servers& servers, const State& state);
  bool TakeIn(const ForgottenJob& told, const Servers& servers, const Numbers& numbers,
              const State& state);
  static bool Dissolve(const v1::RegisterNodeRequest& request, const State& state);
  static bool MakeWay(ServerId id, const State& state);
  static void GoOn(const ForgottenJob& told, const State& state);

  const std::function<std::string()> make_key_;
  // The reunion under way.
  std::optional<absl::Time> deadline_;
  std::map<uint64_t, ForgottenJob> told_;  // by job
  Servers servers_;
  // Jobs whose members' knowledge did not fit together, or of which no node has come.
  std::set<uint64_t> given_up_;
};

}  // namespace addend
