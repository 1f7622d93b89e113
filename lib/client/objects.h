// The table behind the C ABI's opaque pointers. A pointer that the caller holds is a number in this
// table, never an address: so a call with a released handle, after addend_shutdown or in a forked
// child finds nothing and fails with a sentence instead of touching freed memory.
//
// One per process, never destroyed. Any thread; no call blocks, and none runs another's destructor
// under the table's lock.
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

// What an opaque pointer stands for. The further members say to whom it belongs.
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
  // Replaces what has this number.
  void Put(uint64_t id, Object object);
  // ADDEND_ERROR_INVALID for NULL or another kind, ADDEND_ERROR_STATE for what is no more.
  Error Find(const void* opaque, Object::Kind kind, Object* object);
  // Nothing happens when it is gone already.
  void Remove(const void* opaque, Object::Kind kind);
  // Tensors and handles go with their context, pins stay.
  void RemoveContext(const Context* context);

  template <typename Opaque>
  static Opaque* ToOpaque(uint64_t id) {
    return reinterpret_cast<Opaque*>(static_cast<uintptr_t>(id));
  }

  // For fork_guard.cc only.
  void LockForFork() { mu_.lock(); }
  void UnlockInParent() { mu_.unlock(); }
  // Forgets everything without destroying it: the threads and locks of those objects exist only in
  // the parent.
  void UnlockInChild();

 private:
  using Map = std::unordered_map<uint64_t, Object>;
  Objects() = default;

  std::mutex mu_;
  Map* map_ = new Map;         // guarded by mu_
  Map* inherited_ = nullptr;   // guarded by mu_; keeps the parent's objects reachable
  uint64_t last_id_ = 0;       // guarded by mu_
  uint64_t forked_at_id_ = 0;  // guarded by mu_; numbers up to this one are the parent's
};

}  // namespace addend::client
