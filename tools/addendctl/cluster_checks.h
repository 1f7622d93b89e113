// The cluster checks of `addendctl doctor`, as seen from this machine. Pure.
#pragma once

#include <string>
#include <vector>

#include "tools/addendctl/cluster_facts.h"
#include "tools/addendctl/finding.h"

namespace addend {

Finding CheckSchedulers(const std::vector<SchedulerFacts>& schedulers);
Finding CheckClock(const SchedulerFacts& scheduler);
// `version`: this program's version.
Finding CheckVersions(const std::string& version, const SchedulerFacts& scheduler,
                      const std::vector<MemberFacts>& members);
// `hostname`: this machine's name.
Finding CheckAdvertised(const std::string& hostname, const std::vector<MemberFacts>& members);
Finding CheckReachable(const MemberFacts& member);
// `probed`: a measurement was requested.
Finding CheckBandwidth(const MemberFacts& member, bool probed);

}  // namespace addend
