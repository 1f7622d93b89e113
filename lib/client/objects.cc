// All opaque pointers are numbers of one counter, so that an unknown number up to forked_at_id_ can
// be reported as an object of the parent process.
#include "lib/client/objects.h"

#include <vector>

namespace addend::client {
namespace {

const char* Name(Object::Kind kind) {
  switch (kind) {
    case Object::Kind::kContext:
      return "context";
    case Object::Kind::kTensor:
      return "tensor";
    case Object::Kind::kHandle:
      return "handle";
    default:
      return "pin";
  }
}

uint64_t ToId(const void* opaque) { return reinterpret_cast<uintptr_t>(opaque); }

}  // namespace

Objects& Objects::Get() {
  static Objects* const objects = new Objects;
  return *objects;
}

uint64_t Objects::NewId() {
  const std::lock_guard<std::mutex> lock(mu_);
  return ++last_id_;
}

void Objects::Put(uint64_t id, Object object) {
  const std::lock_guard<std::mutex> lock(mu_);
  std::swap((*map_)[id], object);
}

Error Objects::Find(const void* opaque, Object::Kind kind, Object* object) {
  const uint64_t id = ToId(opaque);
  if (id == 0) return MakeError(ADDEND_ERROR_INVALID, "the %s passed is NULL", Name(kind));
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = map_->find(id);
  if (found != map_->end() && found->second.kind == kind) {
    *object = found->second;
    return {};
  }
  if (found != map_->end()) {
    return MakeError(ADDEND_ERROR_INVALID, "a %s was passed where a %s is expected",
                     Name(found->second.kind), Name(kind));
  }
  if (id <= forked_at_id_) {
    return MakeError(ADDEND_ERROR_STATE,
                     "this process was forked after addend_init, and the context belongs to its "
                     "parent; call addend_init in the process that trains");
  }
  return MakeError(ADDEND_ERROR_STATE,
                   "this %s exists no more: addend_shutdown was called, or it was released",
                   Name(kind));
}

void Objects::Remove(const void* opaque, Object::Kind kind) {
  Object removed;  // destroyed after the lock is released
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = map_->find(ToId(opaque));
  if (found == map_->end() || found->second.kind != kind) return;
  removed = std::move(found->second);
  map_->erase(found);
}

void Objects::RemoveContext(const Context* context) {
  std::vector<Object> removed;  // destroyed after the lock is released
  const std::lock_guard<std::mutex> lock(mu_);
  for (auto it = map_->begin(); it != map_->end();) {
    if (it->second.context.get() == context && it->second.kind != Object::Kind::kPin) {
      removed.push_back(std::move(it->second));
      it = map_->erase(it);
    } else {
      ++it;
    }
  }
}

void Objects::UnlockInChild() {
  inherited_ = map_;
  map_ = new Map;
  forked_at_id_ = last_id_;
  mu_.unlock();
}

}  // namespace addend::client
