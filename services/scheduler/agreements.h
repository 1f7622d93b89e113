// The tensors that the nodes of a job have declared in a generation: agreement on a name, refusal,
// undeclaration. Pure: no I/O, clock or thread.
//
// A node may undeclare a tensor and declare the name anew while other nodes still have the former
// tensor. A name therefore has a queue of agreements, oldest first, and only the front agreement is
// planned. A node takes part in the agreements on a name in turn.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "lib/base/failure.h"
#include "lib/base/ids.h"
#include "lib/base/participants.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/node_set.h"

namespace addend {

// The partitions of a tensor that a server holds.
struct Owned {
  std::vector<uint32_t> partitions;
  std::vector<uint32_t> shards;
  // Of other owners: the server relays them, each for a unit of the plan's relays (relays.h).
  std::vector<std::pair<uint32_t, uint32_t>> relayed = {};
  uint64_t accumulator_bytes = 0;  // of both
};

// A tensor of a generation, from the first node's declaration to the last node's undeclaration.
//
// Stages: COLLECTING until all nodes that take part have declared it, RESERVING until the servers
// of its plan have answered, then PLANNED; or REFUSED, with an error for every node.
struct DeclaredTensor {
  using Stage = v1::AgreementRecord::Stage;

  uint64_t agreement = 0;  // its number in the job
  Stage stage = v1::AgreementRecord::COLLECTING;
  v1::TensorDescriptor descriptor;  // of the first declaration: the others must agree with it
  // Of the first declaration, and of the first that differs. And the number of nodes that have any
  // of them, whatever has become of these nodes.
  Participants participants;
  uint32_t nodes = 0;
  NodeId first_node;
  NodeSet declared;
  NodeSet undeclared;
  std::optional<v1::TensorDescriptor> differing;  // the first declaration that differs
  NodeId differing_node;
  v1::TensorError error;  // REFUSED

  // RESERVING and PLANNED:
  v1::TensorPlan plan;
  std::map<ServerId, Owned> owned;  // of a partition that moves: both its owners
  // PLANNED: new owners that have not answered yet; the nodes are told when all have.
  std::set<ServerId> recovering;
  // RESERVING:
  std::set<ServerId> awaited;                // servers that have not answered
  std::set<ServerId> refusers;               // of this plan
  std::map<ServerId, uint64_t> limit_bytes;  // left for this tensor after earlier refusals
  // An earlier scheduler planned it. If the store has lost its last writes, nodes have the plan,
  // unless a server has refused its part.
  bool restored = false;
};

// The error that nodes get for a tensor.
v1::TensorError TensorErrorOf(const std::string& name, FailureKind kind, std::string message);
// Whether two declarations of a name can be summed together.
bool Agree(const v1::TensorDescriptor& a, const v1::TensorDescriptor& b);

class Agreements {
 public:
  struct Declared {
    enum class Kind : uint8_t {
      kTaken,     // the node now takes part in `tensor`
      kRepeated,  // the node took part in `tensor` before, and has not undeclared it
      kLate,      // it differs from `tensor`, on which others have agreed without this node
      kNoRoom,    // refused with `why`
    };
    Kind kind = Kind::kTaken;
    DeclaredTensor* tensor = nullptr;
    bool created = false;
    bool front = false;  // `tensor` is the front agreement on its name
    absl::Status why;
  };
  enum class Verdict : uint8_t { kWaits, kDiffers, kAgreed };

  // `job`: its name, for messages. `next_agreement`: the number of a new agreement; counted up.
  // `participants`: of the descriptor, a rank of the node among them.
  Declared Declare(const std::string& job, NodeId node, const v1::TensorDescriptor& descriptor,
                   const Participants& participants, uint64_t* next_agreement);
  // The tensor that the node undeclares by this: the oldest of that name in which it takes part.
  // Null if there is no such tensor.
  DeclaredTensor* Undeclare(NodeId node, const std::string& name);
  // Removes the front agreement on its name, which all nodes have undeclared. Returns the next
  // agreement on that name, null if the name is free.
  DeclaredTensor* Remove(uint64_t agreement);
  // `all_declared`: every node of the generation that takes part has declared the tensor.
  static Verdict Judge(const DeclaredTensor& tensor, bool all_declared);

  // A stored agreement; to be called in ascending order of their numbers.
  void Restore(DeclaredTensor tensor);
  // Gives the tensor's plan an id, and takes it back.
  void SetId(DeclaredTensor* tensor, TensorId id);
  void ClearId(const DeclaredTensor& tensor);

  DeclaredTensor& at(uint64_t agreement) { return tensors_.at(agreement); }
  const DeclaredTensor& at(uint64_t agreement) const { return tensors_.at(agreement); }
  // Null if there is no such tensor (any more).
  DeclaredTensor* Find(uint64_t agreement);
  DeclaredTensor* Find(TensorId id);
  bool Contains(TensorId id) const { return by_id_.contains(id.value()); }
  // The front and the last agreement on a name; null if there are no agreements.
  const DeclaredTensor* Front(const std::string& name) const;
  const DeclaredTensor* Last(const std::string& name) const;

  // By agreement.
  using Map = std::map<uint64_t, DeclaredTensor>;
  Map::iterator begin() { return tensors_.begin(); }
  Map::iterator end() { return tensors_.end(); }
  Map::const_iterator begin() const { return tensors_.begin(); }
  Map::const_iterator end() const { return tensors_.end(); }
  size_t size() const { return tensors_.size(); }
  bool empty() const { return tensors_.empty(); }

 private:
  absl::Status CheckRoom(const std::string& job, const v1::TensorDescriptor& descriptor) const;

  Map tensors_;
  absl::flat_hash_map<std::string, std::deque<uint64_t>> by_name_;
  absl::flat_hash_map<uint32_t, uint64_t> by_id_;
  uint64_t name_bytes_ = 0;  // of the names and participants of all tensors
};

}  // namespace addend
