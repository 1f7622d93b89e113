// The members' measurements of the network: round trips and bandwidths between hosts. Chooses the
// next measurements. Not stored: after a restart members measure again. Pure.
//
// A host is a numeric address; several members may live there. The map takes a measurement only
// from a member that was asked for it. A member may lie, so nothing but speed may depend on it.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "lib/network/probe_choice.h"
#include "proto/addend/v1/scheduler.pb.h"
#include "services/scheduler/network_file.h"

namespace addend {

// A member as the map sees it.
struct NetworkMember {
  std::string name;             // for people: "node 3 of job"
  std::string control_address;  // host:port
  std::string hostname;
  std::string place;         // as RegisterServerRequest.place
  double bandwidth_bps = 0;  // 0: unknown
  // Gradients take another interface than calls, so a call cannot measure their bandwidth.
  bool has_data_network = false;
};

// A copy of the map, in terms of lib/network.
struct NetworkFacts {
  struct Host {
    std::string address;
    std::string hostname;
    std::string place;
    std::vector<std::string> members;
  };
  // Between two hosts, by their indices, a < b. 0: not measured.
  struct Pair {
    uint32_t a = 0;
    uint32_t b = 0;
    double first_s = 0;  // as PairLatency
    double second_s = 0;
    double bandwidth_bps = 0;
  };
  std::vector<Host> hosts;  // by address
  std::vector<Pair> pairs;
};

class NetworkMap {
 public:
  static constexpr size_t kAllPairsHosts = 64;
  using Probes = google::protobuf::RepeatedPtrField<v1::Probe>;
  using Targets = google::protobuf::RepeatedPtrField<v1::ProbeTarget>;

  // `measures`: false, members are asked for nothing.
  explicit NetworkMap(bool measures) : measures_(measures) {}

  // The member is there. A host of which nothing was heard for a minute is forgotten.
  void Hear(absl::Time now, const NetworkMember& member);
  // The measurements of a member there.
  void Take(absl::Time now, const std::string& control_address, const Probes& probes);
  // The targets for a member there, now: often nothing. A host measures every second or two at
  // first, and later once a minute.
  void Choose(absl::Time now, const std::string& control_address, Targets* targets);

  // Round trips between the two hosts were measured so many times, in either direction.
  uint32_t TimesMeasured(const std::string& a, const std::string& b) const;
  // Each pair of these addresses was measured so many times. False for more hosts than
  // kAllPairsHosts, of which not all pairs are measured.
  bool AllMeasured(const std::set<std::string>& addresses, uint32_t times) const;
  bool measures() const { return measures_; }
  // Every host has a place, so that measurements do not count.
  bool AllTold() const;
  NetworkFacts Facts() const;
  // Of these addresses only, in ascending order, without members.
  NetworkFacts FactsOf(const std::set<std::string>& addresses) const;

 private:
  struct Member {
    NetworkMember info;
    absl::Time heard;
  };
  struct Host {
    std::string address;
    std::map<std::string, Member> members;  // by control address
    std::vector<std::string> asked;         // hosts, of the last two choices
    uint32_t choices = 0;
    absl::Time next_choice = absl::InfinitePast();
  };
  struct Pair {
    double halves_s[2] = {0, 0};
    uint32_t times = 0;
    double bandwidth_bps = 0;
    absl::Time bandwidth_at = absl::InfinitePast();
    double least_s() const;
  };
  Host* Find(const std::string& control_address);
  const Pair* PairOf(const std::string& a, const std::string& b) const;
  void Note(absl::Time now, uint32_t a, uint32_t b, const v1::Probe& probe);
  void Know(uint32_t host, uint32_t other, double round_trip_s, absl::Time now);
  uint64_t BandwidthBytes(uint32_t host, uint32_t other) const;
  void ForgetSilent(absl::Time now);
  void Remove(uint32_t host);

  const bool measures_;
  std::mt19937_64 random_{20201104};  // any: other choices, the same groups
  std::vector<Host> hosts_;
  std::unordered_map<std::string, uint32_t> index_;  // by address
  KnownDistances near_;
  std::unordered_map<uint64_t, Pair> pairs_;  // by both indices, the smaller in the upper half
  absl::Time next_forgetting_ = absl::InfinitePast();
};

// The host of "host:port", if it is a number that other machines may use; else empty.
std::string NumericHost(const std::string& control_address);
// The place of a host at this address, "host:port", or of this name; `told`: by its member, whose
// word counts if the file has none.
std::string PlaceIn(const NetworkPlaces& places, const std::string& control_address,
                    const std::string& hostname, const std::string& told);
// The registration of a member with its place.
template <typename Request>
Request WithPlace(const NetworkPlaces& places, const Request& request) {
  Request placed = request;
  placed.set_place(PlaceIn(places, request.control_address(), request.hostname(), request.place()));
  return placed;
}

}  // namespace addend
