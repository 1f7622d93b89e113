#include "lib/memory/container_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace addend {
namespace {

// Version 1 reports an unset limit as the largest multiple of a page.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// The limit in bytes; nullopt if the file has no limit.
std::optional<uint64_t> LimitIn(const std::string& file) {
  std::string word;
  uint64_t bytes = 0;
  if (!(std::ifstream(file) >> word) || !absl::SimpleAtoi(word, &bytes) || bytes >= kNoLimit) {
    return std::nullopt;
  }
  return bytes;
}

void TakeSmaller(const std::string& file, MemoryFacts* facts) {
  const auto bytes = LimitIn(file);
  if (!bytes || (facts->limit_bytes != 0 && *bytes >= facts->limit_bytes)) return;
  facts->limit_bytes = *bytes;
  facts->source = file;
}

// Takes the limits of the cgroup and of all its ancestors. In a container the path may be the
// host's, which does not exist there; the topmost path is then the container's own cgroup.
void TakeGroups(const std::string& mount, std::string group, const char* name, MemoryFacts* facts) {
  while (true) {
    TakeSmaller(mount + group + (absl::EndsWith(group, "/") ? "" : "/") + name, facts);
    const size_t slash = group.rfind('/');
    if (group.size() <= 1 || slash == std::string::npos) return;
    group.resize(std::max<size_t>(slash, 1));
  }
}

uint64_t MachineBytes(const std::string& root) {
  std::ifstream info(root + "/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    absl::string_view rest = line;
    uint64_t kib = 0;
    if (absl::ConsumePrefix(&rest, "MemTotal:") && absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(rest, &kib)) {
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace

MemoryFacts ReadMemory(const std::string& root) {
  MemoryFacts facts;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string base = root + "/sys/fs/cgroup";
    if (parts[1].empty()) {
      TakeGroups(base, parts[2], "memory.max", &facts);
    } else if (parts[1] == "memory") {
      TakeGroups(base + "/memory", parts[2], "memory.limit_in_bytes", &facts);
    }
  }
  if (facts.limit_bytes != 0) facts.source = facts.source.substr(root.size());
  facts.machine_bytes = MachineBytes(root);
  return facts;
}

}  // namespace addend
