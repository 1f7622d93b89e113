#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "bench/floor.h"
#include "bench/hops.h"
#include "bench/local.h"
#include "bench/options.h"
#include "bench/push_pull.h"
#include "bench/reduce.h"
#include "bench/training.h"
#include "lib/base/status_macros.h"
#include "lib/options/options.h"

namespace addend {
namespace {

constexpr char kSummary[] =
    "measures push-pulls and sums\n"
    "  addend-bench push-pull --socket=PATH   one rank of a running job; start it once per rank, "
    "with\n"
    "                                         torchrun's variables\n"
    "  addend-bench train --socket=PATH       the same, of a training that is only simulated\n"
    "  addend-bench local --nodes=N           a whole cluster on this machine, in one command\n"
    "  addend-bench reduce                    the summation kernels against the memory's "
    "bandwidth\n"
    "  addend-bench floor --nodes=N           what a byte costs on the wire, and in a sum\n"
    "  addend-bench hops                      what it takes to wake another thread";

absl::Status Run(const std::vector<std::string>& words) {
  if (words.size() != 1) {
    return absl::InvalidArgumentError(
        "give one command: push-pull, train, local, reduce, floor or hops; --help explains them");
  }
  ADDEND_ASSIGN_OR_RETURN(const BenchOptions options, ReadBenchOptions());
  if (words[0] == "push-pull") return RunPushPull(options);
  if (words[0] == "local") return RunLocal(options);
  if (words[0] == "train") return RunTraining(options);
  if (words[0] == "reduce") return RunReduce(options);
  if (words[0] == "floor") return RunFloor(options);
  if (words[0] == "hops") return RunHops(options);
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown command '%s'; it is push-pull, train, local, reduce, floor or hops", words[0]));
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  std::vector<std::string> words;
  return addend::RunProgram(
      {"addend-bench", addend::kSummary}, argc, argv, [&words] { return addend::Run(words); },
      &words);
}
