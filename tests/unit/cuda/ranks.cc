#include "tests/unit/cuda/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lib/reduce/half.h"
#include "lib/reduce/reduce.h"

namespace addend::client {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
// The content of unwritten memory, which must never be read.
constexpr std::byte kUntouched{0xa5};

// Bits of all kinds: denormals, infinities, NaNs with payloads. Or small integers.
Bytes RandomElements(DType dtype, uint64_t elements, bool exact, std::mt19937_64& random) {
  const size_t size = SizeOf(dtype);
  Bytes bytes(elements * size);
  for (uint64_t at = 0; at < bytes.size() && !exact;) {
    const uint64_t bits = random();
    const size_t count = std::min<size_t>(sizeof(bits), bytes.size() - at);
    std::memcpy(bytes.data() + at, &bits, count);
    at += count;
  }
  for (uint64_t i = 0; i < elements && exact; ++i) {
    const auto number = static_cast<int64_t>(random() % 21) - 10;
    const auto narrow = static_cast<float>(number);
    const auto wide = static_cast<double>(number);
    auto bits = static_cast<uint64_t>(number);
    if (dtype == DType::kFloat32) std::memcpy(&bits, &narrow, sizeof(narrow));
    if (dtype == DType::kFloat64) std::memcpy(&bits, &wide, sizeof(wide));
    if (dtype == DType::kFloat16) bits = FloatToHalf(narrow);
    if (dtype == DType::kBFloat16) bits = FloatToBFloat16(narrow);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

template <typename T>
T At(const Bytes& bytes, uint64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

Bytes Narrowed(const Bytes& wide, DType dtype) {
  Bytes narrow(wide.size() / 2);
  for (uint64_t i = 0; i < wide.size() / 4; ++i) {
    const float value = At<float>(wide, i);
    const uint16_t half = dtype == DType::kFloat16 ? FloatToHalf(value) : FloatToBFloat16(value);
    std::memcpy(narrow.data() + 2 * i, &half, 2);
  }
  return narrow;
}

Bytes Widened(const Bytes& narrow, DType dtype) {
  Bytes wide(narrow.size() * 2);
  for (uint64_t i = 0; i < narrow.size() / 2; ++i) {
    const auto half = At<uint16_t>(narrow, i);
    const float value = dtype == DType::kFloat16 ? HalfToFloat(half) : BFloat16ToFloat(half);
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  return wide;
}

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("ADDEND_TEST_SEED");
    const uint64_t value =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("ADDEND_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

void Ear::Staged(uint64_t round, uint64_t bytes) {
  const std::lock_guard lock(mu_);
  staged_[round].push_back(bytes);
  changed_.notify_all();
}

void Ear::Failed(const char* why) {
  const std::lock_guard lock(mu_);
  EXPECT_EQ(failure_, "") << "told twice";
  failure_ = why;
  changed_.notify_all();
}

bool Ear::AwaitStaged(uint64_t round, uint64_t bytes) {
  std::unique_lock lock(mu_);
  const auto there = [&] { return !staged_[round].empty() && staged_[round].back() >= bytes; };
  changed_.wait_for(lock, kPatience, [&] { return there() || !failure_.empty(); });
  return there();
}

void Ear::Fetched(uint32_t tensor, uint64_t number, uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mu_);
  fetched_[offset] = {tensor, number, bytes};
  changed_.notify_all();
}

std::array<uint64_t, 3> Ear::AwaitFetched(uint64_t offset) {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, kPatience, [&] { return fetched_.contains(offset); });
  return fetched_[offset];
}

std::string Ear::AwaitFailure() {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, kPatience, [&] { return !failure_.empty(); });
  return failure_;
}

std::vector<uint64_t> Ear::StagedOf(uint64_t round) {
  const std::lock_guard lock(mu_);
  return staged_[round];
}

ipc::Group GroupOf(const Layout& layout, uint32_t members, uint32_t member) {
  ipc::Group group;
  group.members = members;
  group.member = member;
  group.scatter = layout.scatter;
  group.num_roots = static_cast<uint32_t>(layout.roots.size());
  std::copy(layout.roots.begin(), layout.roots.end(), group.roots);
  return group;
}

std::vector<Layout> LayoutsOf(uint32_t members) {
  std::vector<uint32_t> all;
  for (uint32_t member = members; member > 0; --member) all.push_back(member - 1);
  return {{"scattered", true, {}}, {"one root", false, {members - 1}}, {"roots", false, all}};
}

Rank::Rank(uint32_t of_member) : member(of_member) {
  cudaSetDevice(static_cast<int>(member));
  char why[512] = "";
  executor.reset(addend_make_device_executor(kDeviceVersion, &ear, why, sizeof(why)));
  EXPECT_NE(executor, nullptr) << why;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaSetDevice(0);
}

Rank::~Rank() {
  executor.reset();
  if (stream != nullptr) cudaStreamDestroy(stream);
}

bool Rank::Join(const Layout& layout, uint32_t members, const char* id, bool ordered) {
  return executor->Join(GroupOf(layout, members, member), id, ordered);
}

bool Rank::AwaitStream() const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return cudaStreamQuery(stream) == cudaSuccess;
}

std::vector<std::unique_ptr<Rank>> MakeRanks(const Layout& layout, uint32_t members, bool ordered) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (uint32_t member = 0; member < members; ++member) {
    ranks.push_back(std::make_unique<Rank>(member));
  }
  char id[kDeviceIdBytes] = {};
  if (members > 1) {
    EXPECT_TRUE(ranks[0]->executor->MakeId(id)) << ranks[0]->executor->Error();
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, joining = rank.get()] {
      EXPECT_TRUE(joining->Join(layout, members, id, ordered)) << joining->executor->Error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::string Describe(const Case& c) {
  std::string text = std::to_string(c.elements) + " of " + std::string(Name(c.dtype)) + ", " +
                     std::string(Name(c.op));
  if (c.caller_dtype != c.dtype) text += ", from " + std::string(Name(c.caller_dtype));
  if (c.in_place) text += ", in place";
  return text + ", with data " + std::to_string(c.with_data) + ", tensor " +
         std::to_string(c.tensor);
}

PushPull::PushPull(const Case& c, uint32_t members, std::mt19937_64& random)
    : case_(c), id_(NextId()), with_data_(c.with_data & ((uint64_t{1} << members) - 1)) {
  const bool converted = c.caller_dtype != c.dtype;
  sides_.resize(members);
  contribution_.assign(c.elements * SizeOf(c.dtype), kUntouched);
  // Sides have their places in memory from here on.
  for (uint32_t member = 0; member < members; ++member) {
    Side& side = sides_[member];
    side.in = RandomElements(c.caller_dtype, c.elements, c.exact, random);
    if ((with_data_ >> member & 1) != 0) {
      narrowed_.push_back(converted ? Narrowed(side.in, c.dtype) : side.in);
    }
    if (!c.in_place) side.out.assign(side.in.size(), kUntouched);
    DeviceRound& round = side.round;
    round.id = id_;
    round.tensor = c.tensor;
    round.elements = c.elements;
    round.dtype = c.dtype;
    round.caller_dtype = c.caller_dtype;
    round.op = c.op;
    // Also of no elements, in is not null.
    side.in.reserve(1);
    side.out.reserve(1);
    round.in = (with_data_ >> member & 1) != 0 ? side.in.data() : nullptr;
    round.out = c.in_place ? side.in.data() : side.out.data();
    contribution_.reserve(1);
    round.contribution = contribution_.data();
  }
  result_ = RandomElements(c.dtype, c.elements, false, random);
  result_.reserve(1);
  wanted_ = converted ? Widened(result_, c.dtype) : result_;
  Expect();
}

PushPull::~PushPull() {
  for (const Side& side : sides_) EXPECT_EQ(side.round.state, nullptr) << "not ended";
}

void PushPull::Expect() {
  expected_.assign(contribution_.size(), kUntouched);
  if (narrowed_.size() == 1) expected_ = narrowed_[0];
  if (narrowed_.size() <= 1) return;
  std::vector<const void*> inputs;
  for (const Bytes& bytes : narrowed_) inputs.push_back(bytes.data());
  ReduceInNode(case_.dtype, case_.op, expected_.data(), inputs, case_.elements);
}

bool PushPull::Begin(Rank& rank) {
  return rank.executor->Begin(&sides_[rank.member].round, rank.stream);
}

bool PushPull::Contribute(Rank& rank) {
  return rank.executor->Contribute(&sides_[rank.member].round, with_data_);
}

bool PushPull::WaitOn(Rank& rank) {
  return rank.executor->WaitOn(&sides_[rank.member].round, rank.stream);
}

void PushPull::Arrive(std::vector<std::unique_ptr<Rank>>& ranks, std::mt19937_64& random) {
  struct Part {
    uint64_t offset;
    uint64_t bytes;
  };
  const uint64_t size = SizeOf(case_.dtype);
  const uint64_t most = std::max<uint64_t>(1, case_.elements / (1 + random() % 5));
  std::vector<Part> parts;
  for (uint64_t begin = 0; begin < case_.elements;) {
    const uint64_t elements = std::min(case_.elements - begin, 1 + random() % most);
    parts.push_back({begin * size, elements * size});
    begin += elements;
  }
  if (parts.empty()) parts.push_back({0, 0});
  std::shuffle(parts.begin(), parts.end(), random);
  for (auto& rank : ranks) {
    DeviceRound& round = sides_[rank->member].round;
    round.result = result_.data();
    for (const Part& part : parts) {
      bool complete = false;
      ASSERT_TRUE(rank->executor->Arrived(&round, part.offset, part.bytes, &complete))
          << rank->executor->Error();
      ASSERT_EQ(complete, &part == &parts.back());
    }
  }
}

bool PushPull::HasResult(const Rank& rank) const {
  const Side& side = sides_[rank.member];
  return (case_.in_place ? side.in : side.out) == wanted_;
}

void PushPull::End(std::vector<std::unique_ptr<Rank>>& ranks) {
  for (auto& rank : ranks) rank->executor->End(&sides_[rank->member].round);
}

void RunOnce(std::vector<std::unique_ptr<Rank>>& ranks, const Case& c, std::mt19937_64& random) {
  SCOPED_TRACE(Describe(c));
  PushPull push_pull(c, static_cast<uint32_t>(ranks.size()), random);
  for (auto& rank : ranks) {
    ASSERT_TRUE(push_pull.Begin(*rank)) << rank->executor->Error();
  }
  for (auto& rank : ranks) {
    ASSERT_TRUE(push_pull.Contribute(*rank)) << rank->executor->Error();
  }
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->ear.AwaitStaged(push_pull.id(), push_pull.bytes()));
  }
  EXPECT_TRUE(push_pull.contribution() == push_pull.expected()) << "in host memory";
  push_pull.Arrive(ranks, random);
  for (auto& rank : ranks) {
    ASSERT_TRUE(push_pull.WaitOn(*rank)) << rank->executor->Error();
  }
  push_pull.End(ranks);
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->AwaitStream());
    EXPECT_TRUE(push_pull.HasResult(*rank)) << "on the device of member " << rank->member;
  }
}

}  // namespace addend::client
