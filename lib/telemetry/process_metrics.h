// The metrics of every process: its build, memory, CPU time and descriptors.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

namespace addend {

// Reads /proc/self at every collection; a value that cannot be read is left out. From any thread.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace addend
