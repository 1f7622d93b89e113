#include "lib/telemetry/labelled_gauges.h"

namespace addend {

LabelledGauges::LabelledGauges(prometheus::Registry* registry, const std::string& name,
                               const std::string& help)
    : family_(prometheus::BuildGauge().Name(name).Help(help).Register(*registry)) {}

void LabelledGauges::Set(const Values& values) {
  for (auto gauge = gauges_.begin(); gauge != gauges_.end();) {
    if (values.contains(gauge->first)) {
      ++gauge;
      continue;
    }
    family_.Remove(gauge->second);
    gauge = gauges_.erase(gauge);
  }
  for (const auto& [labels, value] : values) {
    prometheus::Gauge*& gauge = gauges_[labels];
    if (gauge == nullptr) gauge = &family_.Add(labels);
    gauge->Set(value);
  }
}

}  // namespace addend
