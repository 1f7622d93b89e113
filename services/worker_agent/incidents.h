// Incidents on this node that people want to know of; heartbeats tell the scheduler. Belongs to the
// agent's core thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace addend {

class Incidents {
 public:
  struct Incident {
    std::string kind;
    std::string text;
    int64_t at;            // in nanoseconds of the trace clock
    bool follows = false;  // as in v1::Incident
  };

  // Drops the incident when too many have not been told yet.
  void Note(Incident incident) {
    if (untold_.size() < kMax) untold_.push_back(std::move(incident));
  }
  // The incidents since the last call.
  std::vector<Incident> Take() { return std::exchange(untold_, {}); }

 private:
  static constexpr size_t kMax = 100;
  std::vector<Incident> untold_;
};

}  // namespace addend
