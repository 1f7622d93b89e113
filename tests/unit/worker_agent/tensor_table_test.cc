// Declarations of tensors, and their end.
#include "services/worker_agent/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/limits.h"
#include "tests/unit/worker_agent/fake_node.h"

namespace addend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<NodeTensor> Attach(uint32_t rank, const TensorShape& shape) {
    auto tensor = table_.Attach(rank, shape, &conflicting_);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    table_.DeclareFront(shape.name);
    return *tensor;
  }

  void Release(const std::shared_ptr<NodeTensor>& tensor, uint32_t rank) {
    if (table_.Release(tensor, rank)) table_.Remove(tensor);
  }
  void EnterPlan(const std::shared_ptr<NodeTensor>& tensor) {
    tensor->SetPlan(TensorId(6), 4, std::vector<PartitionOwner>(1));
    table_.EnterPlan(tensor);
  }

  LocalRanks ranks_{NodeId(1), 2, "host"};
  FakeReports reports_;
  ResultSlots slots_;
  TensorTable table_{Generation(4), /*nodes=*/2, &ranks_, &reports_, &slots_};
  std::shared_ptr<NodeTensor> conflicting_;
};

TEST_F(TensorTableTest, RanksThatDeclareTheSameShareATensorThatIsDeclaredOnce) {
  const auto tensor = Attach(0, Floats("t", 4));
  EXPECT_EQ(Attach(1, Floats("t", 4)), tensor);
  EXPECT_THAT(reports_.said, ElementsAre("declare t"));
  EXPECT_EQ(table_.Attached(tensor->number, 1), tensor);
  EXPECT_EQ(table_.ByName("t"), tensor);
  EXPECT_TRUE(slots_.Find(Generation(4), "t").has_value());
}

TEST_F(TensorTableTest, OtherDeclarationOfTheNameIsAMismatch) {
  const auto tensor = Attach(0, Floats("t", 4));
  const auto other = table_.Attach(1, Floats("t", 5), &conflicting_);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("float32 [4] sum by rank 2 but as float32 [5] "
                                                  "sum by rank 3 (both on node 1)"));
  EXPECT_EQ(conflicting_, tensor);
  EXPECT_EQ(table_.Attached(tensor->number, 1), nullptr);
  EXPECT_THAT(reports_.said, ElementsAre("declare t", "declare t")) << "the other nodes hear of it";
}

TEST_F(TensorTableTest, NameIsFreeAgainAfterAMismatch) {
  const auto tensor = Attach(0, Floats("t", 4));
  EXPECT_FALSE(table_.Attach(1, Floats("t", 5), &conflicting_).ok());
  conflicting_->error = absl::FailedPreconditionError("differs");
  const auto next = Attach(1, Floats("t", 4));
  EXPECT_NE(next, tensor) << "the rank has done with the first";
  EXPECT_FALSE(table_.Release(tensor, 0)) << "the refusal on its way would be taken for the next";
  tensor->agreement.refused = true;
  EXPECT_TRUE(TensorTable::IsDone(*tensor));
  table_.Remove(tensor);
  EXPECT_EQ(Attach(0, Floats("t", 4)), next);
  EXPECT_EQ(table_.ByName("t"), next);
}

TEST_F(TensorTableTest, MismatchBehindATensorInUseIsToldWhenItsTurnHasCome) {
  const auto first = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  Release(first, 0);
  const auto second = Attach(0, Floats("t", 5));
  Release(first, 1);
  EXPECT_FALSE(table_.Attach(1, Floats("t", 6), &conflicting_).ok());
  conflicting_->error = absl::FailedPreconditionError("differs");
  Release(second, 0);
  reports_.said.clear();
  EnterPlan(first);
  table_.Remove(first);
  EXPECT_THAT(reports_.said, ElementsAre("undeclare t", "declare t", "declare t"));
}

TEST_F(TensorTableTest, NameIsUndeclaredWhenAllRanksHaveReleasedIt) {
  const auto tensor = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  EnterPlan(tensor);
  EXPECT_FALSE(table_.Release(tensor, 0));
  EXPECT_EQ(table_.Attached(tensor->number, 0), nullptr);
  EXPECT_TRUE(table_.Release(tensor, 1));
  table_.Remove(tensor);
  EXPECT_THAT(reports_.said, ElementsAre("declare t", "undeclare t"));
  EXPECT_EQ(table_.ByName("t"), nullptr);
  EXPECT_EQ(table_.ByNumber(tensor->number), nullptr);
  EXPECT_FALSE(slots_.Find(Generation(4), "t").has_value());
}

TEST_F(TensorTableTest, TensorWithoutAnAnswerOfTheSchedulerIsNotRemoved) {
  const auto first = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  table_.Release(first, 0);
  EXPECT_FALSE(table_.Release(first, 1)) << "the plan of another node's instance would be taken";
  const auto second = Attach(0, Floats("t", 4));
  EXPECT_NE(second, first);
  EXPECT_EQ(table_.ByName("t"), first);
  EXPECT_THAT(reports_.said, ElementsAre("declare t"));
  table_.Remove(first);
  EXPECT_EQ(table_.ByName("t"), second);
  EXPECT_THAT(reports_.said, ElementsAre("declare t", "undeclare t", "declare t"));
}

TEST_F(TensorTableTest, RefusedTensorIsRemovedWhenAllRanksHaveReleasedIt) {
  const auto tensor = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  tensor->error = absl::InternalError("refused");
  tensor->agreement.refused = true;
  EXPECT_FALSE(table_.Release(tensor, 0));
  EXPECT_TRUE(table_.Release(tensor, 1));
}

TEST_F(TensorTableTest, SecondInstanceIsDeclaredWhenTheFirstEnds) {
  const auto first = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  EnterPlan(first);
  table_.Release(first, 0);
  const auto second = Attach(0, Floats("t", 9));
  EXPECT_NE(second, first);
  EXPECT_THAT(reports_.said, ElementsAre("declare t"));
  Release(first, 1);
  EXPECT_THAT(reports_.said, ElementsAre("declare t", "undeclare t", "declare t"));
  EXPECT_EQ(table_.ByName("t"), second);
}

TEST_F(TensorTableTest, PlannedTensorIsFoundByItsIdUntilItsPlanIsForgotten) {
  const auto tensor = Attach(0, Floats("t", 4));
  Attach(1, Floats("t", 4));
  EnterPlan(tensor);
  Release(tensor, 0);
  Release(tensor, 1);
  EXPECT_EQ(table_.ById(TensorId(6)), tensor) << "other nodes may need its result";
  table_.ForgetPlan(TensorId(6));
  EXPECT_EQ(table_.ById(TensorId(6)), nullptr);
}

TEST_F(TensorTableTest, OnlyDeclarationsWithoutAPlanAreRepeated) {
  Attach(0, Floats("waits", 4));
  Attach(0, Floats("planned", 4))->SetPlan(TensorId(6), 4, std::vector<PartitionOwner>(1));
  Attach(0, Floats("wrong", 4))->error = absl::InternalError("wrong");
  reports_.said.clear();
  table_.DeclareAgain();
  EXPECT_THAT(reports_.said, ElementsAre("declare waits"));
}

TEST_F(TensorTableTest, NamesTheFirstErrorOfATensor) {
  const auto tensor = Attach(0, Floats("t", 4));
  EXPECT_TRUE(table_.FirstError().ok());
  tensor->error = absl::InternalError("wrong");
  EXPECT_EQ(table_.FirstError(), tensor->error);
}

TEST(ReadShapeTest, RefusesNamesAndShapesThatNoTensorHas) {
  const auto shape = ReadShape({.shape = {3, 4}, .text = "t"}, 4);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->elements(), 12u);
  EXPECT_FALSE(ReadShape({.dtype = static_cast<DType>(kDTypes), .text = "t"}, 4).ok());
  EXPECT_FALSE(ReadShape({.op = static_cast<ReduceOp>(kReduceOps), .text = "t"}, 4).ok());
  EXPECT_FALSE(ReadShape({.text = ""}, 4).ok());
  EXPECT_FALSE(ReadShape({.text = "\xff"}, 4).ok());
  EXPECT_FALSE(ReadShape({.shape = {-1}, .text = "t"}, 4).ok());
}

}  // namespace
}  // namespace addend
