#include "lib/telemetry/metrics.h"

#include <limits>

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

prometheus::ClientMetric MakeValue(const MetricLabels& labels, double value,
                                   prometheus::MetricType type) {
  prometheus::ClientMetric metric;
  for (const auto& [name, of_label] : labels) metric.label.push_back({name, of_label});
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return metric;
}

prometheus::ClientMetric MakeValue(const MetricLabels& labels, const DurationHistogram& durations) {
  prometheus::ClientMetric metric;
  for (const auto& [name, of_label] : labels) metric.label.push_back({name, of_label});
  uint64_t cumulative = 0;
  for (size_t i = 0; i < DurationHistogram::kBounds; ++i) {
    cumulative += durations.counts()[i];
    metric.histogram.bucket.push_back(
        {cumulative, static_cast<double>(DurationHistogram::BoundNs(i)) * 1e-9});
  }
  metric.histogram.sample_count = durations.count();
  metric.histogram.bucket.push_back(
      {metric.histogram.sample_count, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_sum = static_cast<double>(durations.sum_ns()) * 1e-9;
  return metric;
}

prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type,
                                    std::vector<prometheus::ClientMetric> values) {
  return {name, help, type, std::move(values)};
}

prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type,
                                    std::vector<std::pair<std::string, double>> values,
                                    const std::string& label) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  for (const auto& [label_value, value] : values) {
    const MetricLabels labels = label.empty() ? MetricLabels() : MetricLabels{{label, label_value}};
    family.metric.push_back(MakeValue(labels, value, type));
  }
  return family;
}

}  // namespace addend
