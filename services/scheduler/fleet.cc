// The registry of summation servers: numbers, indices, memory.
#include "services/scheduler/fleet.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace addend {
namespace {

// No scheduler gives so many numbers between two copies of its store. A higher claim is refused, so
// that no member can use up the numbers.
constexpr uint32_t kMostServersSkipped = uint32_t{1} << 20;

}  // namespace

bool Server::Owes(const std::pair<JobId, TensorId>& asked) const {
  return std::any_of(unanswered.begin(), unanswered.end(), [&asked](const auto& update) {
    return std::find(update.second.begin(), update.second.end(), asked) != update.second.end();
  });
}

bool Server::Owes(JobId job) const {
  return std::any_of(unanswered.begin(), unanswered.end(), [job](const auto& update) {
    return std::any_of(update.second.begin(), update.second.end(),
                       [job](const auto& asked) { return asked.first == job; });
  });
}

std::string NameOf(const Server& server) {
  return server.colocated()
             ? absl::StrFormat("server %d (of node %d on %s)", server.id.value(),
                               server.info.colocated_node(), server.info.hostname())
             : absl::StrFormat("server %d (on %s)", server.id.value(), server.info.hostname());
}

Server* Fleet::Find(ServerId id) {
  const auto found = servers_.find(id);
  return found == servers_.end() ? nullptr : &found->second;
}

const Server* Fleet::Find(ServerId id) const {
  const auto found = servers_.find(id);
  return found == servers_.end() ? nullptr : &found->second;
}

const Server* Fleet::FindColocated(const std::string& job, NodeId node,
                                   const std::string& digest) const {
  const auto found = colocated_.find(std::tie(job, node, digest));
  return found == colocated_.end() ? nullptr : &servers_.at(found->second);
}

std::vector<const Server*> Fleet::ColocatedWith(const std::string& job) const {
  std::vector<const Server*> servers;
  for (auto it = colocated_.lower_bound({job, NodeId(), ""});
       it != colocated_.end() && std::get<0>(it->first) == job; ++it) {
    servers.push_back(&servers_.at(it->second));
  }
  return servers;
}

Fleet::Colocation Fleet::ColocationOf(const Server& server) {
  return {server.info.colocated_job(), NodeId(server.info.colocated_node()), server.secret_digest};
}

Server* Fleet::FindProcess(Incarnation incarnation) {
  const auto found = processes_.lower_bound({incarnation.value(), ServerId()});
  if (found == processes_.end() || found->first != incarnation.value()) return nullptr;
  return &servers_.at(found->second);
}

const Server* Fleet::FindCpuServerAt(const std::string& control_address) const {
  const auto found = cpu_servers_at_.lower_bound({control_address, ServerId()});
  if (found == cpu_servers_at_.end() || found->first != control_address) return nullptr;
  return &servers_.at(found->second);
}

void Fleet::Enter(const Server& server) {
  if (server.draining) draining_.insert(server.id);
  processes_.emplace(server.info.incarnation(), server.id);
  if (server.colocated()) {
    colocated_[ColocationOf(server)] = server.id;
  } else {
    cpu_servers_.insert(server.id);
    cpu_servers_at_.emplace(server.info.control_address(), server.id);
  }
}

void Fleet::Strike(const Server& server) {
  processes_.erase({server.info.incarnation(), server.id});
  draining_.erase(server.id);
  cpu_servers_.erase(server.id);
  cpu_servers_at_.erase({server.info.control_address(), server.id});
  if (server.colocated()) colocated_.erase(ColocationOf(server));
}

void Fleet::Add(Server server) {
  Enter(server);
  const ServerId id = server.id;
  servers_.emplace(id, std::move(server));
}

Server Fleet::Remove(ServerId id) {
  const auto found = servers_.find(id);
  Server server = std::move(found->second);
  servers_.erase(found);
  Strike(server);
  return server;
}

void Fleet::Drain(Server* server) {
  server->draining = true;
  draining_.insert(server->id);
}

void Fleet::Replace(Server* server, v1::RegisterServerRequest info) {
  Strike(*server);
  server->info = std::move(info);
  Enter(*server);
}

ServerId Fleet::NumberFor(uint32_t former) {
  const bool forgotten = former >= first_ && former - first_ < kMostServersSkipped;
  if (!forgotten || given_.Contains(former)) {
    const ServerId id(next_++);
    given_.Insert(id.value());
    return id;
  }
  given_.Insert(former);
  next_ = std::max(next_, former + 1);
  return ServerId(former);
}

void Fleet::KeepNumber(ServerId id) {
  given_.Insert(id.value());
  next_ = std::max(next_, id.value() + 1);
}

void Fleet::Reserve(ServerId id, uint64_t bytes) {
  Server* const server = Find(id);
  if (server == nullptr || server->free_bytes == ServerLoad::kUnlimited) return;
  server->free_bytes -= std::min(server->free_bytes, bytes);
}

void Fleet::Release(ServerId id, uint64_t bytes) {
  Server* const server = Find(id);
  if (server == nullptr || server->free_bytes == ServerLoad::kUnlimited) return;
  server->free_bytes = std::min(server->free_bytes + bytes, server->info.memory_limit_bytes());
}

}  // namespace addend
