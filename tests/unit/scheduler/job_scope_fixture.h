// A job with nodes and servers for tests of the objects that act on a job during an event. Time
// passes and events begin only by NextEvent().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "services/scheduler/changes.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/job_scope.h"
#include "services/scheduler/leases.h"
#include "services/scheduler/placement.h"
#include "services/scheduler/updates.h"

namespace addend {

class JobScopeTest : public testing::Test {
 protected:
  JobScopeTest() : job_(jobs_.Create("a")) {
    job_.settings.set_local_size(1);
    job_.settings.set_partition_bytes(4096);
    NextEvent();
  }

  // A further event, so much later.
  void NextEvent(absl::Duration later = absl::Seconds(1)) {
    now_ += later;
    changes_.emplace(now_, &history_, &numbers_);
  }
  JobScope scope() { return {job_, fleet_, *changes_, jobs_.size()}; }

  // The job's nodes: registered, connected, their trainers initialised; the generation is READY.
  void AddNodes(uint32_t count) {
    job_.settings.set_num_nodes(count);
    for (uint32_t rank = 0; rank < count; ++rank) {
      Node& node = job_.nodes[NodeId(rank)];
      node.rank = NodeId(rank);
      node.info.set_incarnation(100 + rank);
      node.info.set_node_rank(rank);
      node.info.set_hostname("gpu" + std::to_string(rank));
      node.info.set_takes_server_changes(true);
      node.trainers = 1;
      node.lease = Leases::Begun(now_);
      node.lease.watch = 200 + rank;
      node.lease.has_watched = true;
      job_.frames.Add(node.info.protocols());
    }
    job_.current.state = v1::READY;
  }
  // A connected CPU server. `memory_limit`: 0: no limit.
  Server& AddServer(uint64_t memory_limit = 0) {
    Server server;
    server.id = fleet_.NumberFor(0);
    server.info.set_incarnation(300 + server.id.value());
    server.info.set_hostname("cpu" + std::to_string(server.id.value()));
    server.info.set_shards(1);
    server.info.set_memory_limit_bytes(memory_limit);
    if (memory_limit != 0) server.free_bytes = memory_limit;
    server.lease = Leases::Begun(now_);
    server.lease.watch = 400 + server.id.value();
    server.lease.has_watched = true;
    const ServerId id = server.id;
    fleet_.Add(std::move(server));
    return *fleet_.Find(id);
  }

  static v1::TensorDescriptor Descriptor(const std::string& name, int64_t elements) {
    v1::TensorDescriptor descriptor;
    descriptor.set_name(name);
    descriptor.set_dtype(v1::FLOAT32);
    descriptor.add_shape(elements);
    return descriptor;
  }
  // All nodes have declared the tensor; nothing is planned yet.
  DeclaredTensor& Declared(const std::string& name, int64_t elements) {
    DeclaredTensor* tensor = nullptr;
    for (const auto& [rank, node] : job_.nodes) {
      tensor = job_.current.tensors
                   .Declare(job_.name, rank, Descriptor(name, elements), {}, &job_.next_agreement)
                   .tensor;
    }
    job_.CountNodes(tensor);
    return *tensor;
  }
  // All servers of the plan have answered, too.
  DeclaredTensor& Published(const std::string& name, int64_t elements) {
    DeclaredTensor& tensor = Declared(name, elements);
    Placement placement(scope());
    placement.PlanAll({tensor.agreement});
    const std::set<ServerId> awaited = tensor.awaited;
    for (const ServerId id : awaited) placement.TakeAnswer(*fleet_.Find(id), &tensor, true);
    placement.PublishAnswered();
    EXPECT_EQ(tensor.stage, v1::AgreementRecord::PLANNED);
    EXPECT_NE(Broadcast(), nullptr);  // the nodes know it, and its servers
    NextEvent();
    return tensor;
  }
  static int PartitionsAt(const DeclaredTensor& tensor, ServerId server) {
    const auto& servers = tensor.plan.servers();
    return static_cast<int>(std::count(servers.begin(), servers.end(), server.value()));
  }
  // The update that all nodes of the job get from this event, with its servers; null: no update.
  const v1::NodeUpdate* Broadcast() {
    Changes::Updates& updates = changes_->updates();
    const auto found = updates.broadcasts.find(job_.id);
    if (found == updates.broadcasts.end()) return nullptr;
    if (updates.with_servers.erase(job_.id) > 0) TellServers(&job_, fleet_, &found->second);
    return &found->second;
  }
  // Whether the event asks the server for an answer.
  bool Asks(ServerId server) { return changes_->updates().reserved.contains(server); }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  History history_;
  UpdateNumbers numbers_{now_};
  Fleet fleet_;
  Jobs jobs_;
  Job& job_;
  std::optional<Changes> changes_;
};

}  // namespace addend
