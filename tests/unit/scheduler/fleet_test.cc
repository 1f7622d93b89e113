#include "services/scheduler/fleet.h"

#include <gtest/gtest.h>

namespace addend {
namespace {

Server CpuServer(uint32_t id, uint64_t memory_limit = 0) {
  Server server;
  server.id = ServerId(id);
  server.info.set_hostname("cpu");
  server.info.set_memory_limit_bytes(memory_limit);
  if (memory_limit != 0) server.free_bytes = memory_limit;
  return server;
}

Server Colocated(uint32_t id, const std::string& job, uint32_t node, const std::string& digest) {
  Server server = CpuServer(id);
  server.info.set_colocated_job(job);
  server.info.set_colocated_node(node);
  server.secret_digest = digest;
  return server;
}

TEST(FleetTest, ColocatedServersAreFoundByJobNodeAndProof) {
  Fleet fleet;
  fleet.Add(CpuServer(1));
  fleet.Add(Colocated(2, "a", 0, "d"));
  fleet.Add(Colocated(3, "a", 1, "other"));
  fleet.Add(Colocated(4, "ab", 0, "d"));
  EXPECT_EQ(fleet.FindColocated("a", NodeId(0), "d")->id, ServerId(2));
  EXPECT_EQ(fleet.FindColocated("a", NodeId(1), "d"), nullptr) << "it has another proof";
  EXPECT_EQ(fleet.ColocatedWith("a").size(), 2u);
  EXPECT_EQ(fleet.cpu_servers().size(), 1u);
  EXPECT_EQ(fleet.Remove(ServerId(2)).id, ServerId(2));
  EXPECT_EQ(fleet.FindColocated("a", NodeId(0), "d"), nullptr);
  EXPECT_EQ(fleet.Find(ServerId(2)), nullptr);
}

TEST(FleetTest, ProcessesAreFoundByTheirIncarnation) {
  Fleet fleet;
  Server server = CpuServer(1);
  server.info.set_incarnation(70);
  fleet.Add(server);
  server.id = ServerId(2);
  fleet.Add(server);  // as a damaged store may have it
  EXPECT_EQ(fleet.FindProcess(Incarnation(70))->id, ServerId(1));
  EXPECT_EQ(fleet.FindProcess(Incarnation(71)), nullptr);
  fleet.Remove(ServerId(1));
  EXPECT_EQ(fleet.FindProcess(Incarnation(70))->id, ServerId(2));
  fleet.Remove(ServerId(2));
  EXPECT_EQ(fleet.FindProcess(Incarnation(70)), nullptr);
}

TEST(FleetTest, CpuServersAreFoundByTheirPresentAddress) {
  Fleet fleet;
  Server server = CpuServer(1);
  server.info.set_control_address("10.0.0.1:7070");
  fleet.Add(server);
  Server colocated = Colocated(2, "a", 0, "");
  colocated.info.set_control_address("10.0.0.2:7070");
  fleet.Add(colocated);
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.1:7070")->id, ServerId(1));
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.2:7070"), nullptr);
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.1"), nullptr);
  v1::RegisterServerRequest moved = server.info;
  moved.set_control_address("10.0.0.3:7070");
  fleet.Replace(fleet.Find(ServerId(1)), moved);
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.1:7070"), nullptr);
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.3:7070")->id, ServerId(1));
  fleet.Remove(ServerId(1));
  EXPECT_EQ(fleet.FindCpuServerAt("10.0.0.3:7070"), nullptr);
}

TEST(FleetTest, DrainingServersAreKnownUntilTheyAreGone) {
  Fleet fleet;
  fleet.Add(CpuServer(1));
  Server restored = CpuServer(2);
  restored.draining = true;
  fleet.Add(restored);
  fleet.Drain(fleet.Find(ServerId(1)));
  EXPECT_TRUE(fleet.Find(ServerId(1))->draining);
  EXPECT_EQ(fleet.draining(), (std::set<ServerId>{ServerId(1), ServerId(2)}));
  fleet.Replace(fleet.Find(ServerId(1)), {});
  fleet.Remove(ServerId(2));
  EXPECT_EQ(fleet.draining(), std::set<ServerId>{ServerId(1)});
}

TEST(FleetTest, MemoryIsReservedAndReleasedWithinTheLimit) {
  Fleet fleet;
  fleet.Add(CpuServer(1, 100));
  const Server& server = *fleet.Find(ServerId(1));
  fleet.Reserve(ServerId(1), 30);
  EXPECT_EQ(server.free_bytes, 70u);
  fleet.Reserve(ServerId(1), 1000);
  EXPECT_EQ(server.free_bytes, 0u);
  fleet.Release(ServerId(1), 1000);
  EXPECT_EQ(server.free_bytes, 100u);
}

TEST(FleetTest, MemoryOfAServerWithoutLimitOrThatIsGoneIsNotCounted) {
  Fleet fleet;
  fleet.Add(CpuServer(1));
  fleet.Reserve(ServerId(1), 30);
  EXPECT_EQ(fleet.Find(ServerId(1))->free_bytes, ServerLoad::kUnlimited);
  fleet.Release(ServerId(1), 30);
  EXPECT_EQ(fleet.Find(ServerId(1))->free_bytes, ServerLoad::kUnlimited);
  fleet.Reserve(ServerId(9), 30);
  fleet.Release(ServerId(9), 30);
}

TEST(FleetTest, NumbersAreNeverGivenTwice) {
  Fleet fleet;
  EXPECT_EQ(fleet.NumberFor(0), ServerId(1));
  EXPECT_EQ(fleet.NumberFor(0), ServerId(2));
  EXPECT_EQ(fleet.NumberFor(2), ServerId(3)) << "this scheduler has given it already";
  EXPECT_EQ(fleet.next_number(), 4u);
}

TEST(FleetTest, ForgottenNumbersStayWithTheirServers) {
  Fleet fleet;
  fleet.RestoreNextNumber(10);
  EXPECT_EQ(fleet.NumberFor(15), ServerId(15)) << "the store had lost it";
  EXPECT_EQ(fleet.NumberFor(15), ServerId(16)) << "another server has it";
  EXPECT_EQ(fleet.NumberFor(12), ServerId(12));
  EXPECT_EQ(fleet.NumberFor(9), ServerId(17)) << "the store knows it";
  EXPECT_EQ(fleet.NumberFor(1u << 30), ServerId(18)) << "no scheduler has given so many";
}

TEST(FleetTest, ServerOwesAnAnswerUntilItsUpdateIsAnswered) {
  Server server = CpuServer(1);
  server.unanswered[5] = {{JobId(1), TensorId(2)}};
  EXPECT_TRUE(server.Owes({JobId(1), TensorId(2)}));
  EXPECT_TRUE(server.Owes(JobId(1)));
  EXPECT_FALSE(server.Owes({JobId(1), TensorId(3)}));
  EXPECT_FALSE(server.Owes(JobId(2)));
}

}  // namespace
}  // namespace addend
