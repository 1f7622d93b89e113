// A family of gauges whose labels come and go with the objects that they describe.
#pragma once

#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <map>
#include <string>

#include "lib/telemetry/metrics.h"

namespace addend {

// The registry must outlive it. Set() from a single thread at a time.
class LabelledGauges {
 public:
  using Values = std::map<MetricLabels, double>;

  LabelledGauges(prometheus::Registry* registry, const std::string& name, const std::string& help);
  // Replaces all gauges: a gauge whose labels are not in `values` is not exported any more.
  void Set(const Values& values);

 private:
  prometheus::Family<prometheus::Gauge>& family_;
  std::map<MetricLabels, prometheus::Gauge*> gauges_;
};

}  // namespace addend
