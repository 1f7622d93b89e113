// The table behind the C ABI's opaque pointers. A pointer that the caller holds is a number in this
// table, never an address: so a call with a released handle, after addend_shutdown or in a forked
// child finds no object and fails with an error instead of touching freed memory.
//
// One per process, never destroyed. Any thread; no call blocks, and no call runs an object's
// destructor under the table's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "lib/client/error.h"

namespace addend::client {

class Context;
struct Tensor;
struct Operation;

// The object of an opaque pointer. The other members are its owners.
struct Object {
  enum class Kind { kContext, kTensor, kHandle, kPin };
  Kind kind = Kind::kContext;
  std::shared_ptr<Context> context;
  std::shared_ptr<Tensor> tensor;        // kTensor, kHandle, kPin
  std::shared_ptr<Operation> operation;  // kHandle
};

class Objects {
 public:
  static Objects& Get();

  // Numbers are not used twice in a process.
  uint64_t NewId();
  // Replaces the object with this number.
  void Put(uint64_t id, Object object);
  // ADDEND_ERROR_INVALID for NULL or another kind, ADDEND_ERROR_STATE for a former object.
  Error Find(const void* opaque, Object::Kind kind, Object* object);
  // Does nothing if the object is already removed.
  void Remove(const void* opaque, Object::Kind kind);
  // Also removes the context's tensors and handles; pins stay.
  void RemoveContext(const Context* context);

  template <typename Opaque>
  static Opaque* ToOpaque(uint64_t id) {
    return reinterpret_cast<Opaque*>(static_cast<uintptr_t>(id));
  }

  // For fork_guard.cc only.
  void LockForFork() { mu_.lock(); }
  void UnlockInParent() { mu_.unlock(); }
  // Forgets all objects without destroying them: their threads and locks exist only in the parent.
  void UnlockInChild();

 private:
  using Map = std::unordered_map<uint64_t, Object>;
  Objects() = default;

  std::mutex mu_;
  Map* map_ = new Map;         // guarded by mu_
  Map* inherited_ = nullptr;   // guarded by mu_; keeps the parent's objects reachable
  uint64_t last_id_ = 0;       // guarded by mu_
  uint64_t forked_at_id_ = 0;  // guarded by mu_; numbers up to this are the parent's
};

}  // namespace addend::client
