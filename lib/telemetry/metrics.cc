#include "lib/telemetry/metrics.h"

namespace addend {

prometheus::Counter& AddCounter(prometheus::Registry* registry, const std::string& name,
                                const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add(labels);
}

prometheus::Gauge& AddGauge(prometheus::Registry* registry, const std::string& name,
                            const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add(labels);
}

prometheus::Histogram& AddHistogram(prometheus::Registry* registry, const std::string& name,
                                    const std::string& help, const std::vector<double>& bounds,
                                    const MetricLabels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add(labels, bounds);
}

}  // namespace addend
