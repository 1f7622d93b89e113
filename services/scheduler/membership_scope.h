// Internal to Membership's source files.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "services/scheduler/membership.h"

namespace addend {

class Membership::Scope {
 public:
  Scope(Membership* membership, absl::Time now, Decision* decision) : membership_(*membership) {
    membership_.event_ = Event{};
    membership_.event_.now = now;
    membership_.event_.decision = decision;
  }
  ~Scope() {
    membership_.AdvanceChanges();
    membership_.Flush();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Membership& membership_;
};

// How people know a member.
inline std::string NameOf(const Server& server) {
  return server.colocated()
             ? absl::StrFormat("server %d (of node %d on %s)", server.id.value(),
                               server.info.colocated_node(), server.info.hostname())
             : absl::StrFormat("server %d (on %s)", server.id.value(), server.info.hostname());
}
inline std::string NameOf(const Node& node) {
  return absl::StrFormat("node %d (on %s)", node.rank.value(), node.info.hostname());
}
// With its ranks, for those who lose them: "node 1 (on gpu1, ranks 2..3)".
inline std::string NameOf(const Job& job, const Node& node) {
  const uint32_t size = job.settings.local_size();
  const uint32_t first = node.rank.value() * size;
  const std::string ranks = size == 1 ? absl::StrFormat("rank %d", first)
                                      : absl::StrFormat("ranks %d..%d", first, first + size - 1);
  return absl::StrFormat("node %d (on %s, %s)", node.rank.value(), node.info.hostname(), ranks);
}

inline bool Shrinks(const Job& job) { return job.settings.on_node_loss() == "shrink"; }

// What `owned` of a tensor asks of a server.
void AddReservation(const Tensor& tensor, ServerId server, const Owned& owned,
                    v1::JobReservation* job);
// The moves of the tensor's plan, by partition.
std::map<uint32_t, v1::PartitionMove> MovesOf(const Tensor& tensor);

// Fields that every server or job of this version has to fill in, checked where they arrive.
absl::Status CheckServerRequest(const v1::RegisterServerRequest& request);
absl::Status CheckNodeRequest(const v1::RegisterNodeRequest& request);
// The same of whatever version: of a member that a former scheduler has taken in.
absl::Status CheckServer(const v1::RegisterServerRequest& request);
absl::Status CheckNode(const v1::RegisterNodeRequest& request);
// Of one server.
inline constexpr uint32_t kMaxShards = 1024;
// A member of the job that has brought its secret; `digest`: of the proof, empty if there is none.
// PERMISSION_DENIED says what it has brought instead.
absl::Status CheckSecret(const Job& job, uint32_t rank, const std::string& host,
                         std::string_view digest);
// A member whose settings are those of the job's other nodes; FAILED_PRECONDITION names the first
// that differs.
absl::Status CheckSettings(const Job& job, const v1::RegisterNodeRequest& request);

// Whether a record of the store is one that a scheduler writes, beside those that were read before.
// DATA_LOSS says in a few words what is wrong.
absl::Status CheckRecord(const v1::IdsRecord& record);
absl::Status CheckRecord(const v1::JobRecord& record);
absl::Status CheckRecord(const v1::NodeRecord& record, const Job& job);
absl::Status CheckRecord(const v1::AgreementRecord& record, const Job& job);
absl::Status CheckRecord(const v1::PlanRecord& record, const Job& job, const Tensor& tensor);

}  // namespace addend
