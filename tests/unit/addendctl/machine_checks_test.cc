#include "tools/addendctl/machine_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace addend {
namespace {

using ::testing::HasSubstr;

RdmaFacts OnePort() {
  return {.ports = {{.device = "mlx5_0:1",
                     .fabric = "RoCEv2",
                     .gid = "10.0.0.1",
                     .mtu_bytes = 4096,
                     .registration_error = ""}},
          .why_none = ""};
}

TEST(MachineChecksTest, FewDescriptorsAreAWarningAndVeryFewAProblem) {
  EXPECT_EQ(CheckDescriptors({.nofile = kUnlimited}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckDescriptors({.nofile = 4096}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckDescriptors({.nofile = 1024}).verdict, Verdict::kWarning);
  const Finding few = CheckDescriptors({.nofile = 64});
  EXPECT_EQ(few.verdict, Verdict::kProblem);
  EXPECT_THAT(few.advice, HasSubstr("ulimit -n"));
}

TEST(MachineChecksTest, LockedMemoryMattersForRdmaAlone) {
  const LimitFacts little{.memlock_bytes = 65536};
  EXPECT_EQ(CheckLockedMemory(little, {}, WantedTransport::kAuto).verdict, Verdict::kNotApplicable);
  EXPECT_EQ(CheckLockedMemory(little, OnePort(), WantedTransport::kTcp).verdict,
            Verdict::kNotApplicable);
  EXPECT_EQ(CheckLockedMemory(little, OnePort(), WantedTransport::kAuto).verdict,
            Verdict::kProblem);
  EXPECT_EQ(
      CheckLockedMemory({.memlock_bytes = 1 << 30}, OnePort(), WantedTransport::kAuto).verdict,
      Verdict::kWarning);
  EXPECT_EQ(CheckLockedMemory({}, OnePort(), WantedTransport::kRdma).verdict, Verdict::kOk);
}

TEST(MachineChecksTest, MissingRdmaIsAProblemOnlyWhereItIsWanted) {
  const RdmaFacts none{.ports = {}, .why_none = "no device"};
  EXPECT_EQ(CheckRdma(none, WantedTransport::kAuto).verdict, Verdict::kNotApplicable);
  EXPECT_EQ(CheckRdma(none, WantedTransport::kRdma).verdict, Verdict::kProblem);
  EXPECT_EQ(CheckRdma(none, WantedTransport::kTcp).verdict, Verdict::kNotApplicable);
}

TEST(MachineChecksTest, ANicThatMayNotBeUsedIsAProblemAlways) {
  const RdmaFacts denied{.ports = {}, .why_none = "mlx5_0 cannot be opened", .denied = true};
  const Finding finding = CheckRdma(denied, WantedTransport::kAuto);
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.advice, HasSubstr("/dev/infiniband"));
  EXPECT_EQ(CheckLockedMemory({.memlock_bytes = 65536}, denied, WantedTransport::kAuto).verdict,
            Verdict::kProblem);
}

TEST(MachineChecksTest, ANicThatCannotRegisterMemoryIsNamed) {
  RdmaFacts rdma = OnePort();
  EXPECT_EQ(CheckRdma(rdma, WantedTransport::kAuto).verdict, Verdict::kOk);
  rdma.ports[0].registration_error = "Cannot allocate memory";
  const Finding finding = CheckRdma(rdma, WantedTransport::kAuto);
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("mlx5_0:1"));
}

TEST(MachineChecksTest, MemoryNeededIsThreeTimesTheTensorsForOneRankAndMoreForSeveral) {
  const MemoryFacts limited{.limit_bytes = 512ull << 20, .source = "memory.max"};
  const uint64_t model = 100ull << 20;
  EXPECT_EQ(CheckMemory(limited, 0, model, 1).verdict, Verdict::kOk);  // 300 + 128 MiB
  const Finding two = CheckMemory(limited, 0, model, 2);               // 500 + 128 MiB
  EXPECT_EQ(two.verdict, Verdict::kProblem);
  EXPECT_THAT(two.advice, HasSubstr("628Mi"));
  EXPECT_THAT(two.found, HasSubstr("memory.max"));
}

TEST(MachineChecksTest, AGivenMemoryReplacesTheLimitAndWithoutOneTheMachineCounts) {
  const MemoryFacts machine{.limit_bytes = 0, .source = "", .machine_bytes = 1ull << 30};
  EXPECT_EQ(CheckMemory(machine, 0, 1ull << 30, 1).verdict, Verdict::kProblem);
  EXPECT_EQ(CheckMemory(machine, 4ull << 30, 1ull << 30, 1).verdict, Verdict::kOk);
  EXPECT_EQ(CheckMemory(machine, 0, 0, 1).verdict, Verdict::kNotApplicable);
}

TEST(MachineChecksTest, BrokenSharedMemoryAndSocketsAreProblems) {
  EXPECT_EQ(CheckSharedMemory("").verdict, Verdict::kOk);
  EXPECT_EQ(CheckSharedMemory("memfd_create: EPERM").verdict, Verdict::kProblem);
  EXPECT_EQ(CheckSocket({.path = "", .error = ""}).verdict, Verdict::kNotApplicable);
  EXPECT_EQ(CheckSocket({.path = "/s", .error = ""}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckSocket({.path = "/s", .error = "Permission denied"}).verdict, Verdict::kProblem);
}

TEST(MachineChecksTest, AnInterfaceIsJudgedByMtuAndKnownSpeed) {
  InterfaceFacts facts{.name = "eth0", .address = "10.0.0.1", .mtu_bytes = 1500, .speed_bps = 1e10};
  EXPECT_EQ(CheckInterface(facts).verdict, Verdict::kOk);
  facts.mtu_bytes = 1450;
  EXPECT_EQ(CheckInterface(facts).verdict, Verdict::kWarning);
  facts.mtu_bytes = 9000;
  facts.speed_bps = 0;
  EXPECT_THAT(CheckInterface(facts).advice, HasSubstr("--bandwidth"));
  facts.error = "there is no route";
  EXPECT_EQ(CheckInterface(facts).verdict, Verdict::kProblem);
}

TEST(MachineChecksTest, TakenPortsAreListedWithTheirUse) {
  const Finding finding =
      CheckPorts({{7070, "gRPC of addend-scheduler", true}, {7171, "data", false}});
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_EQ(finding.found, "taken: 7070 (gRPC of addend-scheduler)");
  EXPECT_EQ(CheckPorts({{7171, "data", false}}).verdict, Verdict::kOk);
}

TEST(MachineChecksTest, GpusAreReportedAndNeverAProblem) {
  EXPECT_EQ(CheckGpus({.devices = {}, .driver = ""}).verdict, Verdict::kNotApplicable);
  EXPECT_EQ(CheckGpus({.devices = {}, .driver = "535.1"}).verdict, Verdict::kWarning);
  EXPECT_THAT(CheckGpus({.devices = {"/dev/nvidia0"}, .driver = "535.1"}).found,
              HasSubstr("1 visible (/dev/nvidia0), driver 535.1"));
}

TEST(DoctorOutputTest, ShowsAdviceBelowTheFindingAndCounts) {
  const std::vector<Finding> checks = {{"a", Verdict::kProblem, "found it", "do this"},
                                       {"b", Verdict::kWarning, "hm", ""},
                                       {"c", Verdict::kNotApplicable, "nothing", ""}};
  EXPECT_TRUE(HasProblem(checks));
  EXPECT_FALSE(HasProblem({checks[1], checks[2]}));
  EXPECT_THAT(DoctorText(checks), HasSubstr("PROBLEM  a  found it\n            -> do this\n"));
  EXPECT_THAT(DoctorText(checks), HasSubstr("1 problem, 1 warning\n"));
  const auto json = nlohmann::json::parse(DoctorJson(checks));
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["checks"][2]["verdict"], "not_applicable");
}

}  // namespace
}  // namespace addend
