// Chooses the hosts that a host measures next. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace addend {

// The distances that are known. near[a] has b if and only if near[b] has a; each has the nearest
// first.
struct KnownDistance {
  uint32_t to = 0;
  double round_trip_s = 0;
  double measured_at = 0;  // on any scale
};
using KnownDistances = std::vector<std::vector<KnownDistance>>;

// A host that knows so many others measures no further hosts.
inline constexpr size_t kKnownMost = 512;

// At most `count` different hosts for `host`. The first half are unknown hosts that near hosts know
// as near (in a rack everybody soon knows everybody, whatever the size of the cluster). Then come
// unknown hosts at random, except hosts whose neighbours have shown already how far they must be;
// then known hosts, the oldest measurement first.
std::vector<uint32_t> ChooseProbes(uint32_t host, const KnownDistances& near, size_t count,
                                   std::mt19937_64* random);

}  // namespace addend
