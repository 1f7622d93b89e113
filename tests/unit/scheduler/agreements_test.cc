#include "services/scheduler/agreements.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/limits.h"

namespace addend {
namespace {

using Kind = Agreements::Declared::Kind;
using Verdict = Agreements::Verdict;

v1::TensorDescriptor Descriptor(const std::string& name, int64_t elements = 8) {
  v1::TensorDescriptor descriptor;
  descriptor.set_name(name);
  descriptor.set_dtype(v1::FLOAT32);
  descriptor.add_shape(elements);
  return descriptor;
}

class AgreementsTest : public testing::Test {
 protected:
  // Of one rank on each of eight nodes.
  Agreements::Declared Declare(uint32_t node, const v1::TensorDescriptor& descriptor) {
    return tensors_.Declare("a", NodeId(node), descriptor,
                            Participants::FromBits(descriptor.participants(), 8).value(), &next_);
  }
  Agreements tensors_;
  uint64_t next_ = 1;
};

TEST_F(AgreementsTest, FirstDeclarationCreatesTheAgreementAndTheNextJoinsIt) {
  const auto first = Declare(0, Descriptor("w"));
  EXPECT_TRUE(first.created);
  EXPECT_TRUE(first.front);
  const auto second = Declare(1, Descriptor("w"));
  EXPECT_FALSE(second.created);
  EXPECT_EQ(second.tensor, first.tensor);
  EXPECT_EQ(first.tensor->declared.size(), 2u);
  EXPECT_EQ(next_, 2u);
  EXPECT_EQ(Agreements::Judge(*first.tensor, /*all_declared=*/false), Verdict::kWaits);
  EXPECT_EQ(Agreements::Judge(*first.tensor, /*all_declared=*/true), Verdict::kAgreed);
}

TEST_F(AgreementsTest, RepeatedDeclarationChangesNothing) {
  const auto first = Declare(0, Descriptor("w"));
  const auto again = Declare(0, Descriptor("w", 9));
  EXPECT_EQ(again.kind, Kind::kRepeated);
  EXPECT_EQ(again.tensor, first.tensor);
  EXPECT_FALSE(first.tensor->differing.has_value());
}

TEST_F(AgreementsTest, FirstDifferingDeclarationIsKept) {
  Declare(0, Descriptor("w", 8));
  Declare(1, Descriptor("w", 9));
  const auto third = Declare(2, Descriptor("w", 10));
  EXPECT_EQ(third.tensor->differing->shape(0), 9);
  EXPECT_EQ(third.tensor->differing_node, NodeId(1));
  EXPECT_EQ(Agreements::Judge(*third.tensor, /*all_declared=*/false), Verdict::kDiffers);
}

TEST_F(AgreementsTest, DifferenceFromATensorOnWhichOthersHaveAgreedChangesNothing) {
  const auto first = Declare(0, Descriptor("w", 8));
  for (const auto stage : {v1::AgreementRecord::RESERVING, v1::AgreementRecord::PLANNED}) {
    first.tensor->stage = stage;
    const auto late = Declare(1, Descriptor("w", 9));
    EXPECT_EQ(late.kind, Kind::kLate);
    EXPECT_EQ(late.tensor, first.tensor);
    EXPECT_FALSE(first.tensor->differing.has_value());
    EXPECT_EQ(first.tensor->declared.size(), 1u);
  }
}

TEST_F(AgreementsTest, FlatTreeIsTheDefaultOfADeclaration) {
  v1::TensorDescriptor flat = Descriptor("w");
  flat.set_reduction_tree("flat");
  EXPECT_TRUE(Agree(Descriptor("w"), flat));
  flat.set_reduction_tree("other");
  EXPECT_FALSE(Agree(Descriptor("w"), flat));
}

TEST_F(AgreementsTest, DeclarationsAgreeInTypeOperationAndShape) {
  EXPECT_TRUE(Agree(Descriptor("w"), Descriptor("w")));
  v1::TensorDescriptor other = Descriptor("w");
  other.set_dtype(v1::BFLOAT16);
  EXPECT_FALSE(Agree(Descriptor("w"), other));
  other = Descriptor("w");
  other.set_op(v1::AVERAGE);
  EXPECT_FALSE(Agree(Descriptor("w"), other));
  other = Descriptor("w");
  other.add_shape(1);
  EXPECT_FALSE(Agree(Descriptor("w"), other)) << "8 and 8 x 1";
  EXPECT_FALSE(Agree(other, Descriptor("w")));
  EXPECT_FALSE(Agree(Descriptor("w", 8), Descriptor("w", 9)));
}

TEST_F(AgreementsTest, NameDeclaredAnewWaitsBehindTheFormerTensor) {
  DeclaredTensor* const former = Declare(0, Descriptor("w", 8)).tensor;
  Declare(1, Descriptor("w", 8));
  EXPECT_EQ(tensors_.Undeclare(NodeId(0), "w"), former);
  const auto anew = Declare(0, Descriptor("w", 9));
  EXPECT_TRUE(anew.created);
  EXPECT_FALSE(anew.front);
  EXPECT_EQ(tensors_.Front("w"), former);
  EXPECT_EQ(tensors_.Last("w"), anew.tensor);
  // Node 1 takes part in the new agreement only when it has left the former.
  EXPECT_EQ(Declare(1, Descriptor("w", 9)).kind, Kind::kRepeated);
  EXPECT_EQ(tensors_.Undeclare(NodeId(1), "w"), former);
  EXPECT_EQ(Declare(1, Descriptor("w", 9)).tensor, anew.tensor);
  EXPECT_EQ(tensors_.Remove(former->agreement), anew.tensor);
  EXPECT_EQ(tensors_.Remove(anew.tensor->agreement), nullptr);
  EXPECT_EQ(tensors_.Front("w"), nullptr);
  EXPECT_TRUE(tensors_.empty());
}

TEST_F(AgreementsTest, UndeclaringAnUnknownNameOrTwiceFindsNothing) {
  EXPECT_EQ(tensors_.Undeclare(NodeId(0), "w"), nullptr);
  Declare(0, Descriptor("w"));
  EXPECT_EQ(tensors_.Undeclare(NodeId(1), "w"), nullptr);
  EXPECT_NE(tensors_.Undeclare(NodeId(0), "w"), nullptr);
  EXPECT_EQ(tensors_.Undeclare(NodeId(0), "w"), nullptr);
}

TEST_F(AgreementsTest, TensorIsFoundByTheIdOfItsPlan) {
  DeclaredTensor* const tensor = Declare(0, Descriptor("w")).tensor;
  tensors_.SetId(tensor, TensorId(7));
  EXPECT_EQ(tensor->plan.tensor_id(), 7u);
  EXPECT_EQ(tensors_.Find(TensorId(7)), tensor);
  tensors_.ClearId(*tensor);
  EXPECT_EQ(tensors_.Find(TensorId(7)), nullptr);
}

TEST_F(AgreementsTest, NamesTogetherHaveALimit) {
  const std::string half(kMaxJobsTensorNameBytes / 2, 'n');
  EXPECT_EQ(Declare(0, Descriptor(half + "1")).kind, Kind::kTaken);
  const auto refused = Declare(0, Descriptor(half + "2"));
  EXPECT_EQ(refused.kind, Kind::kNoRoom);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.why));
  EXPECT_EQ(tensors_.Last(half + "2"), nullptr);
  // Removing a tensor makes room for a name again.
  tensors_.Remove(1);
  EXPECT_EQ(Declare(0, Descriptor(half + "2")).kind, Kind::kTaken);
}

TEST_F(AgreementsTest, RestoredAgreementsKeepTheirOrderOnAName) {
  for (const uint64_t number : {3, 5}) {
    DeclaredTensor tensor;
    tensor.agreement = number;
    tensor.descriptor = Descriptor("w");
    tensors_.Restore(std::move(tensor));
  }
  EXPECT_EQ(tensors_.Front("w")->agreement, 3u);
  EXPECT_EQ(tensors_.Last("w")->agreement, 5u);
}

TEST_F(AgreementsTest, DifferentParticipantsAreADifferenceThatConcernsBothSets) {
  v1::TensorDescriptor first = Descriptor("w");
  first.set_participants("\x03");
  v1::TensorDescriptor other = Descriptor("w");
  other.set_participants("\x06");
  Declare(0, first);
  const auto declared = Declare(1, other);
  EXPECT_EQ(Agreements::Judge(*declared.tensor, false), Agreements::Verdict::kDiffers);
  EXPECT_EQ(declared.tensor->participants.Text(), "ranks 0, 1, 2");
  EXPECT_FALSE(Declare(2, other).created) << "rank 2 hears of it too";
}

}  // namespace
}  // namespace addend
