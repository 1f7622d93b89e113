// The metrics of a summation engine, read from its counters when Prometheus asks: nothing on the
// hot path.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "lib/summation/engine.h"

namespace addend {

class EngineMetrics final : public prometheus::Collectable {
 public:
  // `engine` must outlive this.
  explicit EngineMetrics(const Engine* engine) : engine_(engine) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Engine* const engine_;
};

}  // namespace addend
