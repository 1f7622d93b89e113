#include "lib/plan/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lib/base/strings.h"

namespace addend {
namespace {

uint64_t Total(std::string_view model) {
  const std::vector<ModelTensor> tensors = ModelTensors(model).value();
  uint64_t total = 0;
  for (const ModelTensor& t : tensors) total += t.elements;
  return total;
}

// The published numbers of parameters.
TEST(ModelsTest, TotalsAreThoseOfTheRealModels) {
  EXPECT_EQ(Total("resnet50"), 25'557'032u);
  EXPECT_EQ(Total("vgg16"), 138'357'544u);
  EXPECT_EQ(Total("bert-large"), 335'141'888u);
  EXPECT_EQ(Total("gpt2"), 124'439'808u);
}

TEST(ModelsTest, TensorCountsAreThoseOfTheRealModels) {
  EXPECT_EQ(ModelTensors("resnet50")->size(), 161u);
  EXPECT_EQ(ModelTensors("vgg16")->size(), 32u);
  EXPECT_EQ(ModelTensors("bert-large")->size(), 391u);
  EXPECT_EQ(ModelTensors("gpt2")->size(), 148u);
}

TEST(ModelsTest, NamesAreUniqueAndFamiliar) {
  for (const std::string_view model : ModelNames()) {
    const std::vector<ModelTensor> tensors = ModelTensors(model).value();
    std::set<std::string> names;
    for (const ModelTensor& t : tensors) {
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
      EXPECT_GT(t.elements, 0u) << t.name;
    }
  }
  EXPECT_EQ(ModelTensors("vgg16")->at(26).name, "classifier.0.weight");
  EXPECT_EQ(ModelTensors("vgg16")->at(24).name, "features.28.weight");
  EXPECT_EQ(ModelTensors("resnet50")->back().name, "fc.bias");
}

TEST(ModelsTest, AnUnknownModelIsRefusedWithTheKnownOnes) {
  const absl::Status status = ModelTensors("alexnet").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status),
            "There is no model \"alexnet\"; the known ones are resnet50, vgg16, bert-large, gpt2.");
}

}  // namespace
}  // namespace addend
