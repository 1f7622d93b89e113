// The links on which this server sends sums to other summation servers of a job: made when they are
// needed, and made again when they are lost. On such a link this server stands in the place of a
// node (RelayId). Belongs to a shard's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "lib/base/ids.h"
#include "lib/link/server_link.h"
#include "lib/summation/job_state.h"
#include "lib/transport/convoy.h"
#include "lib/transport/transport.h"

namespace addend {

// What a shard connects with. Owned by the shard; outlives its jobs.
struct Outgoing {
  using RunAfterFn = std::function<void(absl::Duration, absl::AnyInvocable<void()>)>;
  // A job cannot reach a server to which it has to send sums; `why` is a sentence. From any shard.
  using TroubleFn = std::function<void(JobId, ServerId, const std::string& why)>;

  Transport* tcp = nullptr;
  Transport* shm = nullptr;  // null: the machine has no shared memory
  Convoy* convoy = nullptr;
  RunAfterFn run_after;
  std::function<absl::Time()> now;
  std::function<absl::Time()> cluster_now;  // the scheduler's clock
  TroubleFn on_trouble;
  // Links that are closing, of jobs that have ended.
  std::vector<std::unique_ptr<ServerLink>> retired;

  void DropClosed() {
    std::erase_if(retired, [](const auto& link) { return link->closed(); });
  }
};

class PeerLinks {
 public:
  // `job`, `outgoing` and `events` outlive this object. The events come from all links.
  PeerLinks(const JobState* job, Outgoing* outgoing, ServerEvents* events);
  ~PeerLinks();

  // The link to a shard of a peer, which is made if there is none. Null if the server is not among
  // the job's peers.
  ServerLink* LinkTo(ServerId server, uint32_t shard);
  // Null: there is none.
  ServerLink* Find(ServerId server, uint32_t shard) const;
  // To be called for these events.
  void OnOpen(ServerLink* link, Incarnation server);
  void OnLost(ServerLink* link, const absl::Status& why);
  // Limits the bytes on their way over all links together to about `bytes`.
  void LimitInFlight(size_t bytes);
  // Links to other machines are encrypted from now on: those that are not are made anew.
  void Encrypt();
  // Nothing is sent any more, and no event follows.
  void CloseAll(const absl::Status& why);

 private:
  using Key = std::pair<ServerId, uint32_t>;  // and its shard
  struct Entry {
    std::unique_ptr<ServerLink> link;
    absl::Time down_since;  // while it is not open
    bool told = false;      // that it is down
  };

  void Connect(const Key& key);
  void Retry(const Key& key);
  void TellIfDown(const Key& key, Entry* entry, const std::string& why);

  const JobState* const job_;
  Outgoing* const outgoing_;
  ServerEvents* const events_;
  void Limit();

  NodeIdentity identity_;
  size_t in_flight_bytes_ = SendLimits::kUnlimited;
  std::map<Key, Entry> links_;
  // Expires with this object, before a deferred attempt.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace addend
