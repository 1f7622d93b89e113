#include "lib/plan/models.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace addend {
namespace {

// Collects the tensors of a model under the names of torchvision and Hugging Face Transformers.
class Builder {
 public:
  void Tensor(std::string name, uint64_t elements) {
    tensors_.push_back({std::move(name), elements});
  }
  void Weights(const std::string& layer, uint64_t weight, uint64_t bias) {
    Tensor(layer + ".weight", weight);
    Tensor(layer + ".bias", bias);
  }
  void Linear(const std::string& layer, uint64_t in, uint64_t out) {
    Weights(layer, in * out, out);
  }
  void Norm(const std::string& layer, uint64_t width) { Weights(layer, width, width); }
  std::vector<ModelTensor> Take() { return std::move(tensors_); }

 private:
  std::vector<ModelTensor> tensors_;
};

std::vector<ModelTensor> ResNet50() {
  Builder b;
  b.Tensor("conv1.weight", 64 * 3 * 7 * 7);
  b.Norm("bn1", 64);
  uint64_t in = 64;
  const std::array<int, 4> blocks = {3, 4, 6, 3};
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    const uint64_t out = 4 * width;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string prefix = absl::StrFormat("layer%d.%d.", stage + 1, block);
      b.Tensor(prefix + "conv1.weight", in * width);
      b.Norm(prefix + "bn1", width);
      b.Tensor(prefix + "conv2.weight", width * width * 3 * 3);
      b.Norm(prefix + "bn2", width);
      b.Tensor(prefix + "conv3.weight", width * out);
      b.Norm(prefix + "bn3", out);
      if (block == 0) {
        b.Tensor(prefix + "downsample.0.weight", in * out);
        b.Norm(prefix + "downsample.1", out);
      }
      in = out;
    }
  }
  b.Linear("fc", in, 1000);
  return b.Take();
}

std::vector<ModelTensor> Vgg16() {
  Builder b;
  uint64_t in = 3;
  int layer = 0;
  const std::array<std::pair<uint64_t, int>, 5> stages = {
      {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}}};
  for (const auto& [width, convolutions] : stages) {
    for (int i = 0; i < convolutions; ++i) {
      b.Weights(absl::StrFormat("features.%d", layer), width * in * 3 * 3, width);
      in = width;
      layer += 2;  // an activation follows
    }
    ++layer;  // pooling
  }
  b.Linear("classifier.0", in * 7 * 7, 4096);
  b.Linear("classifier.3", 4096, 4096);
  b.Linear("classifier.6", 4096, 1000);
  return b.Take();
}

std::vector<ModelTensor> BertLarge() {
  constexpr uint64_t kHidden = 1024;
  Builder b;
  b.Tensor("embeddings.word_embeddings.weight", 30522 * kHidden);
  b.Tensor("embeddings.position_embeddings.weight", 512 * kHidden);
  b.Tensor("embeddings.token_type_embeddings.weight", 2 * kHidden);
  b.Norm("embeddings.LayerNorm", kHidden);
  for (int layer = 0; layer < 24; ++layer) {
    const std::string prefix = absl::StrFormat("encoder.layer.%d.", layer);
    b.Linear(prefix + "attention.self.query", kHidden, kHidden);
    b.Linear(prefix + "attention.self.key", kHidden, kHidden);
    b.Linear(prefix + "attention.self.value", kHidden, kHidden);
    b.Linear(prefix + "attention.output.dense", kHidden, kHidden);
    b.Norm(prefix + "attention.output.LayerNorm", kHidden);
    b.Linear(prefix + "intermediate.dense", kHidden, 4 * kHidden);
    b.Linear(prefix + "output.dense", 4 * kHidden, kHidden);
    b.Norm(prefix + "output.LayerNorm", kHidden);
  }
  b.Linear("pooler.dense", kHidden, kHidden);
  return b.Take();
}

std::vector<ModelTensor> Gpt2() {
  constexpr uint64_t kHidden = 768;
  Builder b;
  b.Tensor("wte.weight", 50257 * kHidden);
  b.Tensor("wpe.weight", 1024 * kHidden);
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = absl::StrFormat("h.%d.", layer);
    b.Norm(prefix + "ln_1", kHidden);
    b.Linear(prefix + "attn.c_attn", kHidden, 3 * kHidden);
    b.Linear(prefix + "attn.c_proj", kHidden, kHidden);
    b.Norm(prefix + "ln_2", kHidden);
    b.Linear(prefix + "mlp.c_fc", kHidden, 4 * kHidden);
    b.Linear(prefix + "mlp.c_proj", 4 * kHidden, kHidden);
  }
  b.Norm("ln_f", kHidden);
  return b.Take();
}

using Maker = std::vector<ModelTensor> (*)();
constexpr std::array<std::pair<std::string_view, Maker>, 4> kModels = {
    {{"resnet50", ResNet50}, {"vgg16", Vgg16}, {"bert-large", BertLarge}, {"gpt2", Gpt2}}};

}  // namespace

absl::StatusOr<std::vector<ModelTensor>> ModelTensors(std::string_view model) {
  std::string known;
  for (const auto& [name, make] : kModels) {
    if (name == model) return make();
    known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("There is no model \"%s\"; the known ones are %s.", model, known));
}

std::vector<std::string_view> ModelNames() {
  std::vector<std::string_view> names;
  for (const auto& entry : kModels) names.push_back(entry.first);
  return names;
}

}  // namespace addend
