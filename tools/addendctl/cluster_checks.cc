#include "tools/addendctl/cluster_checks.h"

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lib/base/strings.h"
#include "lib/base/units.h"
#include "lib/rpc/local_address.h"
#include "tools/addendctl/table.h"

namespace addend {
namespace {

constexpr double kClockTolerance_s = 1;
// A single gRPC connection reaches this rate on any machine: a lower rate is caused by the link, or
// by other traffic on it.
constexpr double kMeasurable_bps = 2e9;
constexpr double kFarBelow = 0.5;
constexpr double kFarAbove = 2;

std::string HostOf(const std::string& address) {
  const auto parsed = ParseHostPort(address);
  return parsed.ok() ? parsed->host : address;
}

std::vector<std::string> AddressesOf(const MemberFacts& member) {
  std::vector<std::string> addresses = {member.control_address};
  for (const AddressFacts& data : member.data) addresses.push_back(data.address);
  return addresses;
}

std::string RoundedBandwidth(double bps) {
  return bps >= 1e9 ? absl::StrFormat("%.1f Gbps", bps / 1e9)
                    : absl::StrFormat("%.0f Mbps", bps / 1e6);
}

// A loopback address means a different machine on each machine; it is correct only if all members
// are on a single machine.
std::vector<std::string> LoopbackMembers(const std::string& hostname,
                                         const std::vector<MemberFacts>& members) {
  std::set<std::string> machines = {hostname};
  for (const MemberFacts& member : members) machines.insert(member.hostname);
  std::vector<std::string> wrong;
  for (const MemberFacts& member : members) {
    if (machines.size() > 1 && IsLoopback(HostOf(member.control_address))) {
      wrong.push_back(absl::StrFormat("%s advertises %s", member.name, member.control_address));
    }
  }
  return wrong;
}

std::vector<std::string> SharedAddresses(const std::vector<MemberFacts>& members) {
  std::map<std::string, std::vector<std::string>> users;
  for (const MemberFacts& member : members) {
    for (const std::string& address : AddressesOf(member)) users[address].push_back(member.name);
  }
  std::vector<std::string> wrong;
  for (const auto& [address, names] : users) {
    if (names.size() < 2) continue;
    wrong.push_back(absl::StrFormat("%s all advertise %s", absl::StrJoin(names, " and "), address));
  }
  return wrong;
}

}  // namespace

Finding CheckSchedulers(const std::vector<SchedulerFacts>& schedulers) {
  std::vector<std::string> leads, stands_by, away;
  for (const SchedulerFacts& scheduler : schedulers) {
    if (scheduler.answer.ok()) {
      leads.push_back(absl::StrFormat("%s answers (version %s, %d servers, %d jobs)",
                                      scheduler.address, scheduler.status.version(),
                                      scheduler.status.servers_size(),
                                      scheduler.status.jobs_size()));
    } else if (scheduler.refused) {
      stands_by.push_back(scheduler.address);
    } else {
      away.push_back(absl::StrFormat("%s: %s", scheduler.address, Message(scheduler.answer)));
    }
  }
  if (leads.empty()) {
    for (const std::string& address : stands_by) away.push_back(address + ": connection refused");
    return {"scheduler", Verdict::kProblem,
            absl::StrFormat("none answers (%s)", absl::StrJoin(away, "; ")),
            "check --scheduler, and that the scheduler runs and can be reached from here"};
  }
  std::string found = absl::StrJoin(leads, "; ");
  if (!stands_by.empty()) {
    found += absl::StrFormat("; %s takes no calls: it stands by, or does not run",
                             absl::StrJoin(stands_by, ", "));
  }
  if (leads.size() > 1) {
    return {"scheduler", Verdict::kProblem, found + "; these do not share a store",
            "give all schedulers of a cluster the same --store=etcd:..., or name one of them only"};
  }
  if (!away.empty()) {
    return {"scheduler", Verdict::kWarning,
            absl::StrFormat("%s; away: %s", found, absl::StrJoin(away, "; ")),
            "start it again: while it is away nobody stands by for the one that leads"};
  }
  return {"scheduler", Verdict::kOk, found, ""};
}

Finding CheckClock(const SchedulerFacts& scheduler) {
  if (scheduler.status.now_unix_s() == 0) {
    return {"clock", Verdict::kNotApplicable, "this scheduler does not tell its time", ""};
  }
  const double ahead = scheduler.clock_ahead_s;
  const std::string found = absl::StrFormat(
      "the scheduler's clock is %s %s (known to %s)", FormatSeconds(std::abs(ahead)),
      ahead < 0 ? "behind" : "ahead", FormatSeconds(scheduler.clock_uncertain_s));
  if (std::abs(ahead) - scheduler.clock_uncertain_s <= kClockTolerance_s) {
    return {"clock", Verdict::kOk, found, ""};
  }
  return {"clock", Verdict::kWarning, found,
          "let both machines follow NTP: times of events, logs and certificates do not fit "
          "together"};
}

Finding CheckVersions(const std::string& version, const SchedulerFacts& scheduler,
                      const std::vector<MemberFacts>& members) {
  std::map<std::string, std::vector<std::string>> others;
  const auto compare = [&](const std::string& name, const std::string& its) {
    if (its != version) others[its.empty() ? "an unknown version" : its].push_back(name);
  };
  compare("the scheduler", scheduler.status.version());
  for (const MemberFacts& member : members) {
    if (member.control_error.empty()) compare(member.name, member.version);
  }
  if (others.empty()) {
    return {"versions", Verdict::kOk, absl::StrFormat("all that answer are of %s", version), ""};
  }
  std::vector<std::string> parts;
  for (const auto& [its, names] : others) {
    parts.push_back(absl::StrFormat("%s: %s", its, absl::StrJoin(names, ", ")));
  }
  return {"versions", Verdict::kWarning,
          absl::StrFormat("this program is %s, but %s", version, absl::StrJoin(parts, "; ")),
          "bring all to one version; members of another protocol are refused (exit status 66)"};
}

Finding CheckAdvertised(const std::string& hostname, const std::vector<MemberFacts>& members) {
  if (members.empty()) return {"addresses", Verdict::kNotApplicable, "there are no members", ""};
  if (const auto wrong = LoopbackMembers(hostname, members); !wrong.empty()) {
    return {"addresses", Verdict::kProblem,
            absl::StrFormat("%s, which only that machine can reach", absl::StrJoin(wrong, "; ")),
            "give these members --advertise with an address that the others reach"};
  }
  if (const auto wrong = SharedAddresses(members); !wrong.empty()) {
    return {"addresses", Verdict::kProblem, absl::StrJoin(wrong, "; "),
            "give each member an --advertise and ports of its own"};
  }
  return {"addresses", Verdict::kOk, "every member advertises addresses of its own", ""};
}

Finding CheckReachable(const MemberFacts& member) {
  Finding finding{.name = "member", .found = "", .advice = ""};
  if (!member.control_error.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrFormat(
        "%s does not answer on its control port %s: %s (last seen by the "
        "scheduler %s ago)",
        member.name, member.control_address, member.control_error,
        FormatSeconds(member.last_seen_s));
    finding.advice =
        "check that it runs, that --advertise is its address for this machine, and that no "
        "firewall or NetworkPolicy is between";
    return finding;
  }
  for (const AddressFacts& data : member.data) {
    if (data.error.empty()) continue;
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrFormat("%s takes no connection on its data port %s: %s", member.name,
                                    data.address, data.error);
    finding.advice = "open the data port between all machines of the job (--data-listen)";
    return finding;
  }
  finding.found = absl::StrFormat("%s answers on %s", member.name, member.control_address);
  for (const AddressFacts& data : member.data) finding.found += ", takes data on " + data.address;
  return finding;
}

Finding CheckBandwidth(const MemberFacts& member, bool probed) {
  const auto not_applicable = [&member](const std::string& why) {
    return Finding{"bandwidth", Verdict::kNotApplicable,
                   absl::StrFormat("from %s: not measured: %s", member.name, why), ""};
  };
  if (!probed) return not_applicable("--bandwidth-probe=0");
  if (!member.control_error.empty()) return not_applicable("it does not answer");
  if (!member.measured_bps) {
    return not_applicable(member.measure_error);
  }
  const double measured = *member.measured_bps;
  const double declared = member.bandwidth_bps;
  const std::string found = absl::StrFormat(
      "from %s: at least %s on one connection, it declares %s", member.name,
      RoundedBandwidth(measured), declared > 0 ? FormatBandwidth(declared) : "nothing");
  if (declared > 0 && measured < kFarBelow * declared && measured < kMeasurable_bps) {
    return {"bandwidth", Verdict::kWarning, found,
            "measure the link with iperf3 while nothing trains; if it is slower than declared, say "
            "so with --bandwidth, because the plan believes it"};
  }
  if (declared > 0 && measured > kFarAbove * declared &&
      !IsLoopback(HostOf(member.control_address))) {
    return {
        "bandwidth", Verdict::kWarning, found,
        "declare the link's real speed with --bandwidth: the plan gives this member too little"};
  }
  return {"bandwidth", Verdict::kOk, found, ""};
}

}  // namespace addend
