// The plan of a job's tensors.
#include "services/scheduler/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/limits.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "services/scheduler/updates.h"

namespace addend {
namespace {

using Stages = v1::AgreementRecord;

// The time between two updates of the nodes with new tensors, for each node: a few times as long as
// the update of a node takes.
constexpr absl::Duration kPublishIntervalForEach = absl::Microseconds(250);

bool Waits(const DeclaredTensor& tensor) {
  return (tensor.stage == Stages::RESERVING && !tensor.awaited.empty()) ||
         !tensor.recovering.empty();
}

std::string DescribeRelays(const v1::TensorPlan& plan) {
  if (!plan.has_relays()) return "";
  return absl::StrFormat(", with relays for %d groups of nodes", plan.relays().units_size());
}

}  // namespace

void Placement::Refuse(DeclaredTensor* tensor, FailureKind kind, std::string message) {
  tensor->stage = Stages::REFUSED;
  tensor->error = TensorErrorOf(tensor->descriptor.name(), kind, std::move(message));
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  *scope_.changes.Broadcast(job_.id).add_errors() = tensor->error;
  scope_.changes.Note(event_kind::kRefused, job_.name,
                      absl::StrFormat("job '%s': %s", job_.name, tensor->error.message()));
}

void Placement::PlanAll(const std::vector<uint64_t>& agreed) {
  if (agreed.empty() || job_.current.state != v1::READY) return;
  std::map<Participants, std::vector<uint64_t>> sets;
  for (const uint64_t agreement : WithinPartitions(agreed)) {
    sets[job_.current.tensors.at(agreement).participants].push_back(agreement);
  }
  for (const auto& [set, ready] : sets) PlanSet(set, ready);
}

// Tensors of the same ranks.
void Placement::PlanSet(const Participants& set, const std::vector<uint64_t>& ready) {
  Agreements& tensors = job_.current.tensors;
  double bytes = 0;
  std::vector<const v1::TensorDescriptor*> descriptors;
  for (const uint64_t agreement : ready) {
    descriptors.push_back(&tensors.at(agreement).descriptor);
    bytes += static_cast<double>(BytesOf(*descriptors.back()));
  }
  PlannerJob view = ViewOf(job_, scope_.fleet, scope_.jobs, set, bytes);
  const PartitionSize partition_size = PartitionSizeOf(job_, scope_.fleet);
  uint64_t partitions = 0;
  for (const v1::TensorDescriptor* tensor : descriptors) {
    partitions += CountPartitions(*tensor, partition_size);
  }
  const RelayChoice relays = RelaysFor(set, partitions);
  KeepOwners(relays, &view);
  auto plans = PlanTensors(descriptors, partition_size, &view);
  if (!plans.ok()) {
    // Planned alone, each tensor shows whether it is at fault.
    for (const uint64_t agreement : ready) PlanAlone(&tensors.at(agreement));
    return;
  }
  ledger_.NextPlanVersion(PlanReason::kDeclare);
  // The machines that the set shares with others have less left for these.
  const auto loads = job_.current.loads.find(set);
  const bool is_new = loads == job_.current.loads.end() || loads->second.empty();
  if (is_new && !job_.current.loads.empty()) job_.current.rebalance = PlanReason::kDeclare;
  for (size_t i = 0; i < ready.size(); ++i) {
    Reserve(&tensors.at(ready[i]), std::move((*plans)[i]), relays);
  }
}

void Placement::PlanAlone(DeclaredTensor* tensor) {
  if (job_.current.state != v1::READY) return;
  if (WithinPartitions({tensor->agreement}).empty() || PlanWithRelays(tensor)) return;
  PlannerJob view;
  auto plan = PlanAmong(Candidates::kHeard, *tensor, RelayChoice(), &view);
  if (!plan.ok()) plan = PlanAmong(Candidates::kAll, *tensor, RelayChoice(), &view);
  if (view.servers.empty() && job_.current.servers_due.until) {
    job_.current.servers_due.awaited = true;
    return scope_.changes.Say(
        absl::StrFormat("job '%s': tensor '%s' waits for a summation server to come back",
                        job_.name, tensor->descriptor.name()));
  }
  if (view.servers.empty()) {
    return Refuse(tensor, FailureKind::kResources,
                  absl::StrFormat("tensor '%s' cannot be summed because there is no summation "
                                  "server: start addend-summation, or do not switch off "
                                  "--colocated-summation",
                                  tensor->descriptor.name()));
  }
  if (!plan.ok()) {
    const PartitionSize partition_size = PartitionSizeOf(job_, scope_.fleet);
    const absl::Status why = absl::IsResourceExhausted(plan.status())
                                 ? NoRoom(tensor->descriptor, partition_size, view)
                                 : plan.status();
    return Refuse(tensor, FailureKind::kResources, Message(why));
  }
  ledger_.NextPlanVersion(PlanReason::kDeclare);
  Reserve(tensor, *std::move(plan), RelayChoice());
}

// False if it has none, or no room with them. A tensor that a server has refused does without.
bool Placement::PlanWithRelays(DeclaredTensor* tensor) {
  const uint64_t partitions =
      CountPartitions(tensor->descriptor, PartitionSizeOf(job_, scope_.fleet));
  const RelayChoice relays = RelaysFor(tensor->participants, partitions);
  if (relays.units.empty() || !tensor->limit_bytes.empty()) return false;
  PlannerJob view;
  auto plan = PlanAmong(Candidates::kHeard, *tensor, relays, &view);
  if (!plan.ok()) return false;
  ledger_.NextPlanVersion(PlanReason::kDeclare);
  Reserve(tensor, *std::move(plan), relays);
  return true;
}

// Only for tensors of all ranks, and while the job's relays stay within their bound. `coming`: the
// partitions of the tensors that are planned.
RelayChoice Placement::RelaysFor(const Participants& set, uint64_t coming) const {
  if (!set.all()) return {};
  RelayChoice choice = ChooseRelays(job_, scope_.fleet);
  if ((job_.current.partitions + coming) * choice.units.size() > kMostRelayTurns) return {};
  return choice;
}

// `view`: takes the job as the planner saw it.
absl::StatusOr<v1::TensorPlan> Placement::PlanAmong(Candidates candidates,
                                                    const DeclaredTensor& tensor,
                                                    const RelayChoice& relays,
                                                    PlannerJob* view) const {
  *view = ViewOf(job_, scope_.fleet, scope_.jobs, tensor.participants,
                 static_cast<double>(BytesOf(tensor.descriptor)), candidates);
  KeepOwners(relays, view);
  for (PlannerServer& server : view->servers) {
    const auto limit = tensor.limit_bytes.find(server.id);
    if (limit != tensor.limit_bytes.end()) {
      server.load.free_bytes = std::min(server.load.free_bytes, limit->second);
    }
  }
  const v1::TensorDescriptor* descriptor = &tensor.descriptor;
  ADDEND_ASSIGN_OR_RETURN(auto plans,
                          PlanTensors({&descriptor, 1}, PartitionSizeOf(job_, scope_.fleet), view));
  return std::move(plans.front());
}

// Refuses the tensors whose partitions are too many beside those of the other tensors; returns the
// rest. Before a plan is made, because a plan has an owner for each partition: here, in the store
// and at every member.
std::vector<uint64_t> Placement::WithinPartitions(const std::vector<uint64_t>& agreements) {
  const PartitionSize partition_size = PartitionSizeOf(job_, scope_.fleet);
  std::vector<uint64_t> within;
  uint64_t others = job_.current.partitions;
  for (const uint64_t agreement : agreements) {
    DeclaredTensor& tensor = job_.current.tensors.at(agreement);
    const uint64_t partitions = CountPartitions(tensor.descriptor, partition_size);
    if (partitions <= kMaxPartitions - std::min(kMaxPartitions, others)) {
      others += partitions;
      within.push_back(agreement);
      continue;
    }
    Refuse(
        &tensor, FailureKind::kResources,
        absl::StrFormat("tensor '%s' would have %d partitions, but the other tensors of job "
                        "'%s' have %d already, and a job has at most %d: raise "
                        "--partition-bytes",
                        tensor.descriptor.name(), partitions, job_.name, others, kMaxPartitions));
  }
  return within;
}

// Every attempt has a tensor id of its own, so that a server never confuses two attempts.
void Placement::Reserve(DeclaredTensor* tensor, v1::TensorPlan plan, const RelayChoice& relays) {
  tensor->plan = std::move(plan);
  const auto op = static_cast<ReduceOp>(tensor->descriptor.op());
  if (!relays.units.empty() && IsReduction(op)) {
    *tensor->plan.mutable_relays() = PlanRelays(relays, tensor->plan, job_.settings.num_nodes(),
                                                job_.current.loads[tensor->participants]);
  }
  job_.current.tensors.SetId(tensor, job_.NextTensor());
  tensor->stage = Stages::RESERVING;
  tensor->refusers.clear();
  PartitionLedger::Enter(&job_, tensor, &scope_.fleet);
  tensor->awaited.clear();
  for (const auto& [server, owned] : tensor->owned) {
    tensor->awaited.insert(server);
    ledger_.Ask(*tensor, server, owned);
  }
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  scope_.changes.StorePlan(job_.id, tensor->agreement);
  scope_.changes.CountPlanned();
  if (tensor->awaited.empty()) {  // no elements, no partitions
    Publish(tensor);
    return;
  }
  job_.current.told.unsettled.insert(tensor->agreement);
}

void Placement::TakeAnswer(const Server& server, DeclaredTensor* tensor, bool settled) {
  if (tensor->stage == Stages::PLANNED && settled) ledger_.OwnerReady(tensor, server.id);
  if (tensor->stage != Stages::RESERVING) return;
  tensor->awaited.erase(server.id);
  EndReservation(tensor);
}

void Placement::TakeRefusal(const Server& server, DeclaredTensor* tensor,
                            const std::string& reason) {
  scope_.changes.Say(absl::StrFormat("job '%s': %s refused tensor '%s': %s", job_.name,
                                     NameOf(server), tensor->descriptor.name(), reason));
  if (tensor->stage == Stages::PLANNED && tensor->recovering.contains(server.id)) {
    return lifecycle_.Fail(
        absl::StrFormat("a summation server was lost, and %s has no room for what it summed of "
                        "tensor '%s': %s",
                        NameOf(server), tensor->descriptor.name(), reason),
        FailureKind::kShortage);
  }
  if (tensor->stage == Stages::PLANNED && job_.current.change.awaited.contains(server.id)) {
    return ledger_.CancelMoves(tensor, server.id);  // all stays as it is
  }
  if (tensor->stage == Stages::PLANNED) {
    return lifecycle_.Fail(absl::StrFormat("%s no longer holds its partitions of tensor '%s': %s",
                                           NameOf(server), tensor->descriptor.name(), reason),
                           FailureKind::kInternal);
  }
  tensor->refusers.insert(server.id);
  // Whatever memory the server counts as free, the next plan asks it for less; and a third plan for
  // nothing.
  const uint64_t asked = tensor->owned.at(server.id).accumulator_bytes;
  const bool again = tensor->limit_bytes.contains(server.id);
  tensor->limit_bytes[server.id] = again || asked == 0 ? 0 : std::min(server.free_bytes, asked - 1);
}

void Placement::LoseReservation(ServerId server, DeclaredTensor* tensor) {
  tensor->awaited.erase(server);
  tensor->refusers.insert(server);
  EndReservation(tensor);
}

void Placement::ReserveAnew(DeclaredTensor* tensor, const std::set<ServerId>& told) {
  ledger_.Remove(tensor, told);
  tensor->stage = Stages::COLLECTING;
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  PlanAlone(tensor);
}

void Placement::TakeAsPublished(DeclaredTensor* tensor) {
  tensor->stage = Stages::PLANNED;
  tensor->recovering = std::exchange(tensor->awaited, {});
  job_.current.told.unsettled.insert(tensor->agreement);
  tensor->refusers.clear();
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  for (const auto& [server, owned] : tensor->owned) job_.current.plan_servers.insert(server);
}

// When the last server of its plan has answered, a tensor is published or planned again.
void Placement::EndReservation(DeclaredTensor* tensor) {
  if (!tensor->awaited.empty()) return;
  if (tensor->refusers.empty()) {
    job_.current.told.answered.insert(tensor->agreement);
    return;
  }
  ReserveAnew(tensor, std::set<ServerId>(tensor->refusers));
}

bool Placement::AnyWaits() {
  std::set<uint64_t>& unsettled = job_.current.told.unsettled;
  while (!unsettled.empty()) {
    const DeclaredTensor* const tensor = job_.current.tensors.Find(*unsettled.begin());
    if (tensor != nullptr && Waits(*tensor)) return true;
    unsettled.erase(unsettled.begin());
  }
  return false;
}

void Placement::PublishAnswered() {
  JobGeneration& current = job_.current;
  if (current.told.answered.empty()) return;
  const absl::Time now = scope_.changes.now();
  const auto nodes = static_cast<double>(job_.nodes.size());
  if (now - current.told.at < kPublishIntervalForEach * nodes && AnyWaits()) return;
  current.told.at = now;
  bool untold = false;
  for (const uint64_t agreement : std::exchange(current.told.answered, {})) {
    DeclaredTensor* const tensor = current.tensors.Find(agreement);
    if (tensor == nullptr || Waits(*tensor)) continue;
    if (tensor->stage == Stages::PLANNED) {  // recovered
      *scope_.changes.Broadcast(job_.id).add_tensors() = PlanForNodes(job_, *tensor);
      untold = true;
    } else if (tensor->stage == Stages::RESERVING && tensor->refusers.empty()) {
      untold |= Publish(tensor);
    }
  }
  if (untold) scope_.changes.TellServers(job_.id);
}

bool Placement::Publish(DeclaredTensor* tensor) {
  tensor->stage = Stages::PLANNED;
  tensor->limit_bytes.clear();
  scope_.changes.StoreAgreement(job_.id, tensor->agreement);
  *scope_.changes.Broadcast(job_.id).add_tensors() = tensor->plan;
  NoteFirstPlan(*tensor);
  // A server that recovers other partitions meanwhile is among the plan's servers, but no node has
  // been told of it yet.
  bool untold = false;
  for (const auto& [id, owned] : tensor->owned) {
    job_.current.plan_servers.insert(id);
    untold |= !job_.current.told.servers.contains(id);
    const Server* const server = scope_.fleet.Find(id);
    if (server != nullptr && server->draining) job_.current.rebalance = PlanReason::kDrain;
  }
  return untold;
}

// The first plan of a generation only: later plans would flood the log.
void Placement::NoteFirstPlan(const DeclaredTensor& tensor) {
  if (!job_.current.plan_servers.empty() || tensor.owned.empty()) return;
  const std::vector<const Server*> servers = EligibleServers(job_, scope_.fleet);
  const auto cpu = std::count_if(servers.begin(), servers.end(), [](const Server* server) {
    return !server->colocated() && !server->draining;
  });
  const auto colocated = std::count_if(servers.begin(), servers.end(),
                                       [](const Server* server) { return server->colocated(); });
  scope_.changes.Note(event_kind::kPlanned, job_.name,
                      absl::StrFormat("job '%s': its tensors are shared out over %d CPU servers "
                                      "and %d colocated ones (plan version %d)%s",
                                      job_.name, cpu, colocated, job_.plan_version.value(),
                                      DescribeRelays(tensor.plan)));
}

}  // namespace addend
