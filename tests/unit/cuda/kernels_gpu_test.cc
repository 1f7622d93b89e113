// The kernels on a GPU against the host's sums, bit for bit. Skipped on machines without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "lib/client/cuda/kernels.h"
#include "lib/reduce/reduce.h"

namespace addend::client::cuda {
namespace {

using Memory = std::vector<std::byte>;

// Any bits at all: NaNs with payloads, infinities, denormals, both zeros.
Memory RandomBits(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Memory memory(bytes);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  return memory;
}

// Memory of the GPU with the same bytes.
class OnGpu {
 public:
  explicit OnGpu(const Memory& bytes) : bytes_(bytes.size()) {
    EXPECT_EQ(cudaMalloc(&memory_, bytes_ + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, bytes.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnGpu() { cudaFree(memory_); }
  void* get() const { return memory_; }
  Memory Read() const {
    Memory bytes(bytes_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }

 private:
  const size_t bytes_;
  void* memory_ = nullptr;
};

class KernelsTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp, size_t>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "this machine has no GPU";
    }
    ASSERT_EQ(LoadKernels(), cudaSuccess);
  }
};

TEST_P(KernelsTest, AddInOrderAsTheHostDoes) {
  const auto [dtype, op, elements] = GetParam();
  const size_t bytes = elements * SizeOf(dtype);
  for (const size_t count : {1, 2, 3, 8}) {
    std::vector<Memory> inputs;
    std::vector<const void*> on_host;
    std::vector<std::unique_ptr<OnGpu>> on_gpu;
    SumInputs given;
    for (size_t i = 0; i < count; ++i) {
      inputs.push_back(RandomBits(bytes, 31 * i + elements));
      on_gpu.push_back(std::make_unique<OnGpu>(inputs.back()));
      given.at[given.count++] = on_gpu.back()->get();
    }
    for (const Memory& input : inputs) on_host.push_back(input.data());
    Memory expected(bytes);
    ReduceInNode(dtype, op, expected.data(), on_host, elements);
    const OnGpu out{Memory(bytes)};
    ASSERT_EQ(OrderedSum(dtype, op, out.get(), given, elements, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(out.Read(), expected) << count << " inputs";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, KernelsTest,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kBFloat16, DType::kInt32, DType::kInt64),
                       ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax),
                       ::testing::Values(size_t{1}, size_t{1023}, size_t{1'000'003})),
    [](const auto& info) {
      return std::string(Name(std::get<0>(info.param))) + "_" +
             std::string(Name(std::get<1>(info.param))) + "_" +
             std::to_string(std::get<2>(info.param));
    });

class ConversionTest : public KernelsTest {};

TEST_P(ConversionTest, RoundsAsTheHostDoes) {
  const auto [half, op, elements] = GetParam();
  const Memory values = RandomBits(elements * sizeof(float), elements);
  const OnGpu from(values);
  const OnGpu to{Memory(elements * 2)};
  ASSERT_EQ(Convert(DType::kFloat32, from.get(), half, to.get(), elements, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  // The host rounds an accumulator in float32 when it finishes a sum.
  Memory expected(elements * 2);
  Finish(half, op, expected.data(), values.data(), elements, 1);
  EXPECT_EQ(to.Read(), expected);
}

INSTANTIATE_TEST_SUITE_P(Halves, ConversionTest,
                         ::testing::Combine(::testing::Values(DType::kFloat16, DType::kBFloat16),
                                            ::testing::Values(ReduceOp::kSum),
                                            ::testing::Values(size_t{1'000'003})),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param)));
                         });

}  // namespace
}  // namespace addend::client::cuda
