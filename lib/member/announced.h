// Keeps the highest numbers that the scheduler has announced to this member. The member sends them
// back when it opens a watch (v1::Announced), so that a scheduler that has lost its latest records
// does not reuse them. Pure.
#pragma once

#include <map>

#include "lib/base/ids.h"
#include "proto/addend/v1/scheduler.pb.h"

namespace addend::internal {

// The numbers of a node's only job.
class NodeAnnounced {
 public:
  void Note(const v1::NodeUpdate& update);
  void AddTo(v1::WatchRequest* watch) const;

 private:
  v1::Announced highest_;  // generation 0: nothing announced yet; job_id is filled in by AddTo()
};

// The numbers of the jobs that a server may sum for.
class ServerAnnounced {
 public:
  void Note(const v1::ServerUpdate& update);
  void AddTo(v1::WatchRequest* watch) const;
  // With the jobs' keys: a scheduler that has lost its store does not know them.
  void AddTo(v1::RegisterServerRequest* request) const;

 private:
  std::map<JobId, v1::Announced> highest_;  // with the keys
};

}  // namespace addend::internal
