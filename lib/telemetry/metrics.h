// Declares instruments. Each component has a metrics.h with a struct of its instruments, made by
// these functions. Names start with "addend_" and end with the unit ("_bytes", "_seconds", counters
// in "_total"). The registry owns the instruments, and the references stay valid as long as it
// exists; they may be used from any thread.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/trace/duration_histogram.h"

namespace addend {

using MetricLabels = std::map<std::string, std::string>;

// The same name with other labels is another instrument of the same family.
prometheus::Counter& AddCounter(prometheus::Registry* registry, const std::string& name,
                                const std::string& help, const MetricLabels& labels = {});
prometheus::Gauge& AddGauge(prometheus::Registry* registry, const std::string& name,
                            const std::string& help, const MetricLabels& labels = {});
// `bounds`: the upper bounds of the buckets, ascending, without infinity.
prometheus::Histogram& AddHistogram(prometheus::Registry* registry, const std::string& name,
                                    const std::string& help, const std::vector<double>& bounds,
                                    const MetricLabels& labels = {});

// A value of a family with several labels.
prometheus::ClientMetric MakeValue(const MetricLabels& labels, double value,
                                   prometheus::MetricType type);
// A histogram of such a family, in seconds.
prometheus::ClientMetric MakeValue(const MetricLabels& labels, const DurationHistogram& durations);
prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type,
                                    std::vector<prometheus::ClientMetric> values);

// A family with the values of a source that keeps its own counters (a prometheus::Collectable):
// each value has a value of `label`, which may be empty.
prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type,
                                    std::vector<std::pair<std::string, double>> values,
                                    const std::string& label = "");

}  // namespace addend
