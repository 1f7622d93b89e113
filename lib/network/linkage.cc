// Of each cluster the sums of the distances to its neighbours are kept, and moved from the smaller
// to the larger cluster of a merge: about as many steps as distances, times a logarithm.
#include "lib/network/linkage.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace addend {
namespace {

class Clusters {
 public:
  Clusters(uint32_t hosts, std::span<const Distance> distances) : near_(hosts) {
    for (const Distance& one : distances) {
      if (one.a == one.b) continue;
      near_[one.a][one.b].Add({one.value, 1});
      near_[one.b][one.a].Add({one.value, 1});
    }
    for (uint32_t a = 0; a < hosts; ++a) {
      for (const auto& [b, between] : near_[a]) {
        if (a < b) Offer(a, b, between);
      }
    }
  }

  std::vector<Merge> MergeAll() {
    std::vector<Merge> merges;
    while (!queue_.empty()) {
      const auto [mean, a, b, pairs] = queue_.top();
      queue_.pop();
      const auto between = near_[a].find(b);
      // Since this entry was made, a cluster of the two has grown, or was merged into another.
      if (between == near_[a].end() || between->second.pairs != pairs) continue;
      merges.push_back({a, b, mean});
      near_[a].size() < near_[b].size() ? MergeInto(b, a) : MergeInto(a, b);
    }
    return merges;
  }

 private:
  struct Between {
    double sum = 0;
    uint32_t pairs = 0;
    void Add(const Between& other) {
      sum += other.sum;
      pairs += other.pairs;
    }
  };
  using Entry = std::tuple<double, uint32_t, uint32_t, uint32_t>;  // mean, clusters, pairs

  void Offer(uint32_t a, uint32_t b, const Between& between) {
    queue_.emplace(between.sum / between.pairs, std::min(a, b), std::max(a, b), between.pairs);
  }
  void MergeInto(uint32_t left, uint32_t gone) {
    near_[left].erase(gone);
    for (const auto& [other, between] : std::exchange(near_[gone], {})) {
      if (other == left) continue;
      near_[other].erase(gone);
      Between& sum = near_[left][other];
      sum.Add(between);
      near_[other][left] = sum;
      Offer(left, other, sum);
    }
  }

  std::vector<absl::flat_hash_map<uint32_t, Between>> near_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

std::vector<Merge> AverageLinkage(uint32_t hosts, std::span<const Distance> distances) {
  return Clusters(hosts, distances).MergeAll();
}

std::vector<uint32_t> ClustersAfter(uint32_t hosts, std::span<const Merge> merges, size_t count) {
  std::vector<uint32_t> parent(hosts);
  std::iota(parent.begin(), parent.end(), 0U);
  const auto find = [&parent](uint32_t host) {
    while (parent[host] != host) host = parent[host] = parent[parent[host]];
    return host;
  };
  for (const Merge& merge : merges.first(std::min(count, merges.size()))) {
    const uint32_t a = find(merge.a);
    const uint32_t b = find(merge.b);
    parent[std::max(a, b)] = std::min(a, b);  // the root is the cluster's first host
  }
  std::vector<uint32_t> cluster(hosts);
  uint32_t clusters = 0;
  for (uint32_t host = 0; host < hosts; ++host) {
    const uint32_t first = find(host);
    cluster[host] = first == host ? clusters++ : cluster[first];
  }
  return cluster;
}

}  // namespace addend
