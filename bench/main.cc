#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "bench/local.h"
#include "bench/options.h"
#include "bench/push_pull.h"
#include "lib/base/status_macros.h"
#include "lib/options/options.h"

namespace addend {
namespace {

constexpr char kSummary[] =
    "measures push-pulls\n"
    "  addend-bench push-pull --socket=PATH   one rank of a running job; start it once per rank, "
    "with\n"
    "                                         torchrun's variables\n"
    "  addend-bench local --nodes=N           a whole cluster on this machine, in one command";

absl::Status Run(const std::vector<std::string>& words) {
  if (words.size() != 1) {
    return absl::InvalidArgumentError("give one command, push-pull or local; --help explains both");
  }
  ADDEND_ASSIGN_OR_RETURN(const BenchOptions options, ReadBenchOptions());
  if (words[0] == "push-pull") return RunPushPull(options);
  if (words[0] == "local") return RunLocal(options);
  return absl::InvalidArgumentError(
      absl::StrFormat("unknown command '%s'; it is push-pull or local", words[0]));
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  std::vector<std::string> words;
  return addend::RunProgram(
      {"addend-bench", addend::kSummary}, argc, argv, [&words] { return addend::Run(words); },
      &words);
}
