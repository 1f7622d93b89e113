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
  all.by_start[mapping.data()] = {mapping, dmabuf};
}

void RemoveMapping(Bytes mapping) {
  Mappings& all = All();
  std::vector<std::shared_ptr<UnmapObserver>> observers;
  {
    MutexLock lock(&all.mu);
    all.by_start.erase(mapping.data());
    for (const auto& weak : all.observers) {
      if (auto observer = weak.lock()) observers.push_back(std::move(observer));
    }
  }
  for (const auto& observer : observers) observer->BeforeUnmap(mapping);
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
