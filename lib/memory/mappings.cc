#include "lib/memory/mappings.h"

#include <map>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"

namespace addend {
namespace {

struct Mappings {
  Mutex mu;
  std::map<const std::byte*, Mapping> by_start ABSL_GUARDED_BY(mu);
  uint64_t last_number ABSL_GUARDED_BY(mu) = 0;
  std::vector<std::weak_ptr<UnmapObserver>> observers ABSL_GUARDED_BY(mu);
};

// Never destroyed: memory may be unmapped when the process ends.
Mappings& All() {
  static Mappings* const all = new Mappings;
  return *all;
}

}  // namespace

void AddMapping(Bytes mapping, int dmabuf) {
  Mappings& all = All();
  MutexLock lock(&all.mu);
  all.by_start[mapping.data()] = {.memory = mapping, .dmabuf = dmabuf, .number = ++all.last_number};
}

void LendMapping(Bytes mapping, int file, size_t guard) {
  Mappings& all = All();
  MutexLock lock(&all.mu);
  const auto it = all.by_start.find(mapping.data());
  if (it == all.by_start.end()) return;
  it->second.file = file;
  it->second.guard = guard;
}

void RemoveMapping(Bytes mapping) {
  Mappings& all = All();
  std::vector<std::shared_ptr<UnmapObserver>> observers;
  Mapping removed{.memory = mapping};
  {
    MutexLock lock(&all.mu);
    const auto it = all.by_start.find(mapping.data());
    if (it != all.by_start.end()) {
      removed = it->second;
      all.by_start.erase(it);
    }
    for (const auto& weak : all.observers) {
      if (auto observer = weak.lock()) observers.push_back(std::move(observer));
    }
  }
  for (const auto& observer : observers) observer->BeforeUnmap(removed);
}

Mapping FindMapping(Bytes part) {
  Mappings& all = All();
  MutexLock lock(&all.mu);
  auto it = all.by_start.upper_bound(part.data());
  if (it == all.by_start.begin()) return {};
  const Mapping mapping = (--it)->second;
  const Bytes memory = mapping.memory;
  const bool inside = part.data() + part.size() <= memory.data() + memory.size();
  return inside ? mapping : Mapping();
}

void ObserveUnmapping(std::weak_ptr<UnmapObserver> observer) {
  Mappings& all = All();
  MutexLock lock(&all.mu);
  std::erase_if(all.observers, [](const auto& weak) { return weak.expired(); });
  all.observers.push_back(std::move(observer));
}

}  // namespace addend
