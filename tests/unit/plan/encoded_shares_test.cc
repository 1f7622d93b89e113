// The plan for payloads that travel in fewer bytes: docs/architecture.md, "Shares and the shortest
// time".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "lib/base/strings.h"
#include "lib/plan/shares.h"

namespace addend {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kBytes = 1e9;
constexpr double kBps = 100e9;
// t_opt of one machine's own bytes.
constexpr double kUnit = kBytes * 8 / kBps;

Plan PlanOf(const PlanInput& input) {
  absl::StatusOr<Plan> plan = MakePlan(input);
  EXPECT_TRUE(plan.ok()) << Message(plan.status());
  return plan.ok() ? *plan : Plan{};
}

PlanInput Equal(size_t n, size_t k, double c, double r) {
  PlanInput input = HomogeneousInput(n, k, kBytes, kBps);
  input.ratios = {c, r};
  return input;
}

std::vector<double> AllShares(const Plan& plan) {
  std::vector<double> shares = plan.gpu_shares;
  shares.insert(shares.end(), plan.cpu_shares.begin(), plan.cpu_shares.end());
  return shares;
}

double Total(const std::vector<double>& shares) {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

// The bytes, in units of M, that machine `i` sends and receives with share x.
struct Load {
  double sent;
  double received;
};
Load LoadOf(const PlanInput& input, size_t i, double x) {
  const auto n = static_cast<double>(input.gpu_bps.size());
  const double c = input.ratios.contributions, r = input.ratios.results;
  if (i >= input.gpu_bps.size()) return {r * n * x, c * n * x};
  return {c * (1 - x) + r * (n - 1) * x, r * (1 - x) + c * (n - 1) * x};
}

double BandwidthOf(const PlanInput& input, size_t i) {
  const size_t n = input.gpu_bps.size();
  return i < n ? input.gpu_bps[i] : input.cpu_bps[i - n];
}

double TimeWith(const PlanInput& input, const std::vector<double>& shares) {
  double time = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Load load = LoadOf(input, i, shares[i]);
    time = std::max(time,
                    8 * input.bytes * std::max(load.sent, load.received) / BandwidthOf(input, i));
  }
  return time;
}

double MostOf(const PlanInput& input, size_t i) {
  if (i < input.gpu_sums.size() && !input.gpu_sums[i]) return 0;
  return input.limit_bytes.empty() ? 1 : std::min(1.0, input.limit_bytes[i] / input.bytes);
}

// Whether shares that sum to 1 exist whose links all fit the time: every machine may have a range
// of shares, found from its two directions at the ends of a range.
bool FitsIn(const PlanInput& input, double time) {
  double least = 0, most = 0;
  for (size_t i = 0; i < input.gpu_bps.size() + input.cpu_bps.size(); ++i) {
    double low = 0, high = MostOf(input, i);
    const double fits = time * BandwidthOf(input, i) / (8 * input.bytes);
    const Load at_0 = LoadOf(input, i, 0), at_1 = LoadOf(input, i, 1);
    for (const auto& [none, all] :
         {std::pair{at_0.sent, at_1.sent}, std::pair{at_0.received, at_1.received}}) {
      if (none == all && none > fits) return false;
      if (all > none) high = std::min(high, (fits - none) / (all - none));
      if (all < none) low = std::max(low, (none - fits) / (none - all));
    }
    if (low > high) return false;
    least += low;
    most += high;
  }
  return least <= 1 && most >= 1;
}

double LeastTime(const PlanInput& input) {
  double low = 0, high = kUnit;
  while (!FitsIn(input, high)) high *= 2;
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (FitsIn(input, middle) ? high : low) = middle;
  }
  return high;
}

// Machines, ratios, limits and GPU machines without a server, all at random.
class RandomInputs {
 public:
  explicit RandomInputs(uint32_t seed) : random_(seed) {}

  double Ratio() { return random_() % 4 == 0 ? 1 : std::pow(10, -2 * unit_(random_)); }
  PlanInput Next() {
    PlanInput input;
    input.bytes = 1e8;
    const size_t n = 2 + random_() % 5, k = random_() % 5;
    const bool equal = random_() % 3 == 0;
    for (size_t i = 0; i < n; ++i) input.gpu_bps.push_back(Bandwidth(equal));
    for (size_t j = 0; j < k; ++j) input.cpu_bps.push_back(Bandwidth(equal));
    for (size_t i = 0; i < n; ++i) input.gpu_sums.push_back(random_() % 4 > 0);
    if (k == 0) input.gpu_sums[0] = true;
    if (random_() % 2 == 0) {
      for (size_t i = 0; i < n + k; ++i) {
        input.limit_bytes.push_back(random_() % 3 == 0 ? kInfinity : input.bytes * unit_(random_));
      }
    }
    input.ratios = {Ratio(), Ratio()};
    return input;
  }
  // Shares near the given shares or anywhere, which sum to 1 and respect the limits.
  std::vector<double> OtherShares(const PlanInput& input, std::vector<double> shares) {
    const bool near = random_() % 2 == 0;
    for (double& share : shares) {
      share = near ? share + 0.02 * part_(random_) : part_(random_);
    }
    for (int pass = 0; pass < 50; ++pass) {
      const double sum = Total(shares);
      for (size_t i = 0; i < shares.size(); ++i) {
        shares[i] = std::min(shares[i] / sum, MostOf(input, i));
      }
    }
    return shares;
  }

 private:
  double Bandwidth(bool equal) { return equal ? 10e9 : 1e9 + 99e9 * unit_(random_); }

  std::mt19937 random_;
  std::uniform_real_distribution<double> unit_{0, 1};
  std::exponential_distribution<double> part_{1};
};

TEST(EncodedSharesTest, EqualLinksFollowTheClosedForm) {
  for (size_t machines = 2; machines <= 9; ++machines) {
    for (size_t servers = 0; servers <= machines + 2; ++servers) {
      for (const auto& [c, r] :
           {std::pair{0.5, 1.0}, {1.0, 0.5}, {0.3, 0.3}, {0.9, 0.7}, {0.05, 1.0}, {0.25, 1.0}}) {
        SCOPED_TRACE(testing::Message() << "n " << machines << ", k " << servers << ", c " << c);
        const Plan plan = PlanOf(Equal(machines, servers, c, r));
        const auto n = static_cast<double>(machines), k = static_cast<double>(servers);
        const double larger = std::max(c, r), q = std::min(c, r) / larger;
        const double a = q * (n - 1) - 1;
        double x = (n - k) / (n * n + k * a), time = (c + r) * n * (n - 1) / (n * n + k * a);
        if (k > n) x = 0, time = larger;
        if (a <= 1e-9) x = 1 / n, time = (c + r) * (n - 1) / n;
        EXPECT_NEAR(*plan.t_opt_encoded_s, time * kUnit, 1e-12);
        EXPECT_NEAR(Total(AllShares(plan)), 1, 1e-12);
        EXPECT_LE(TimeWith(Equal(machines, servers, c, r), AllShares(plan)),
                  *plan.t_opt_encoded_s * (1 + 1e-12));
        // Machines have a choice if neither direction depends on the share.
        if (std::abs(a) < 1e-9 || (a > 0 && k > n)) continue;
        for (const double share : plan.gpu_shares) EXPECT_NEAR(share, x, 1e-12);
        for (const double share : plan.cpu_shares) EXPECT_NEAR(share, (1 - n * x) / k, 1e-12);
      }
    }
  }
}

TEST(EncodedSharesTest, WithoutCpuMachinesContributionsAndResultsCountAlike) {
  for (size_t n = 2; n <= 16; ++n) {
    const Plan plan = PlanOf(Equal(n, 0, 0.5, 1));
    EXPECT_NEAR(*plan.t_opt_encoded_s / *plan.t_opt_s, 0.75, 1e-12);
  }
}

TEST(EncodedSharesTest, TwoMachinesAreNotHelpedByCpuMachines) {
  for (size_t k = 0; k <= 3; ++k) {
    const Plan plan = PlanOf(Equal(2, k, 0.4, 0.8));
    EXPECT_NEAR(*plan.t_opt_encoded_s, 0.6 * kUnit, 1e-12);
    EXPECT_NEAR(plan.gpu_shares[0], 0.5, 1e-12) << "with less it would receive more";
    EXPECT_EQ(plan.floor, Floor::kOneShare);
    EXPECT_THAT(ExplainFloor(plan), HasSubstr("even with the share that suits it best"));
  }
}

TEST(EncodedSharesTest, TwoUnequalMachinesKeepTheirLeastShares) {
  PlanInput input = Equal(2, 1, 0.5, 1);
  input.gpu_bps[1] = 1.1 * kBps;
  const Plan plan = PlanOf(input);
  EXPECT_NEAR(*plan.t_opt_encoded_s, 0.75 * kUnit, 1e-12) << "of the slower machine";
  EXPECT_NEAR(plan.gpu_shares[0], 0.5, 1e-12);
  EXPECT_GE(plan.gpu_shares[1], (1 - 1.1 * 0.75) / 0.5 - 1e-12);
  EXPECT_NEAR(TimeWith(input, AllShares(plan)), *plan.t_opt_encoded_s, 1e-12);
}

TEST(EncodedSharesTest, AMachineByItselfNeedsNoNetwork) {
  const Plan plan = PlanOf(Equal(1, 2, 0.5, 1));
  EXPECT_EQ(plan.gpu_shares, std::vector<double>{1});
  EXPECT_FALSE(plan.t_opt_s || plan.t_opt_encoded_s);
  PlanInput without_server = Equal(1, 2, 0.5, 0.25);
  without_server.gpu_sums = {false};
  EXPECT_EQ(PlanOf(without_server).cpu_shares, (std::vector<double>{0.5, 0.5}));
}

TEST(EncodedSharesTest, RatiosOf1AreTheRawPlan) {
  PlanInput input = Equal(5, 3, 1, 1);
  input.gpu_bps[1] = 1.7 * kBps;
  const Plan plan = PlanOf(input);
  EXPECT_EQ(plan.t_opt_encoded_s, plan.t_opt_s);
  input.ratios = {0.5, 0.5};
  const Plan half = PlanOf(input);
  EXPECT_EQ(half.gpu_shares, plan.gpu_shares);
  EXPECT_EQ(*half.t_opt_encoded_s, *plan.t_opt_s / 2);
}

TEST(EncodedSharesTest, TimesOfRawBytesAndOfTheOthersStay) {
  PlanInput input = Equal(6, 2, 1, 1);
  input.cpu_bps[0] = 2 * kBps;
  const Plan raw = PlanOf(input);
  input.ratios = {0.2, 0.9};
  const Plan encoded = PlanOf(input);
  EXPECT_EQ(encoded.t_opt_s, raw.t_opt_s);
  EXPECT_EQ(encoded.t_allreduce_s, raw.t_allreduce_s);
  EXPECT_EQ(encoded.t_ps_s, raw.t_ps_s);
  EXPECT_EQ(encoded.speedup_vs_allreduce, raw.speedup_vs_allreduce);
  EXPECT_EQ(encoded.speedup_vs_ps, raw.speedup_vs_ps);
  EXPECT_LT(*encoded.t_opt_encoded_s, *raw.t_opt_s);
}

TEST(EncodedSharesTest, UnknownBandwidthsHaveSharesAndNoTime) {
  PlanInput input = HomogeneousInput(4, 2, kBytes, 0);
  input.ratios = {0.5, 1};
  const Plan plan = PlanOf(input);
  EXPECT_FALSE(plan.t_opt_encoded_s);
  EXPECT_EQ(plan.gpu_shares, PlanOf(Equal(4, 2, 0.5, 1)).gpu_shares);
}

TEST(EncodedSharesTest, AMachineThatMustNotTakeItsLeastShareIsTheFloor) {
  PlanInput input = Equal(4, 1, 0.1, 1);
  input.limit_bytes.assign(5, kInfinity);
  input.limit_bytes[2] = 0.05 * kBytes;
  const Plan plan = PlanOf(input);
  EXPECT_EQ(plan.floor, Floor::kOneShare);
  EXPECT_EQ(plan.floor_machine, 2u);
  EXPECT_NEAR(plan.gpu_shares[2], 0.05, 1e-12);
  EXPECT_NEAR(*plan.t_opt_encoded_s, LeastTime(input), 1e-12);
}

TEST(EncodedSharesTest, NoOtherSharesAreFaster) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  RandomInputs random(seed);
  int planned = 0;
  for (int round = 0; round < 600; ++round) {
    const PlanInput input = random.Next();
    const auto plan = MakePlan(input);
    if (!plan.ok()) continue;  // too little memory
    ++planned;
    const std::vector<double> shares = AllShares(*plan);
    const double time = *plan->t_opt_encoded_s;
    ASSERT_NEAR(time, LeastTime(input), 2e-8 * time);
    ASSERT_NEAR(Total(shares), 1, 1e-9);
    ASSERT_LE(TimeWith(input, shares), time * (1 + 2e-8));
    for (size_t i = 0; i < shares.size(); ++i) {
      ASSERT_GE(shares[i], 0);
      ASSERT_LE(shares[i], MostOf(input, i) * (1 + 1e-6));
    }
    for (int attempt = 0; attempt < 30; ++attempt) {
      const std::vector<double> other = random.OtherShares(input, shares);
      if (std::abs(Total(other) - 1) > 1e-6) continue;
      ASSERT_GE(TimeWith(input, other), time * (1 - 1e-5));
    }
  }
  EXPECT_GT(planned, 300);
}

// All divisions of M into 40 parts.
TEST(EncodedSharesTest, NoDivisionOnAGridIsFaster) {
  constexpr int kParts = 40;
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> unit(0.02, 1);
  for (int round = 0; round < 100; ++round) {
    PlanInput input = Equal(2 + round % 2, 1, unit(random), unit(random));
    for (double& bps : input.gpu_bps) bps *= unit(random);
    input.cpu_bps[0] *= unit(random);
    const double time = *PlanOf(input).t_opt_encoded_s;
    const size_t machines = input.gpu_bps.size() + 1;
    double best = kInfinity;
    for (int i = 0; i <= kParts; ++i) {
      for (int j = 0; i + j <= kParts; ++j) {
        if (machines == 3) {
          best = std::min(best, TimeWith(input, {1.0 * i / kParts, 1.0 * j / kParts,
                                                 1.0 * (kParts - i - j) / kParts}));
          continue;
        }
        for (int l = 0; i + j + l <= kParts; ++l) {
          best =
              std::min(best, TimeWith(input, {1.0 * i / kParts, 1.0 * j / kParts, 1.0 * l / kParts,
                                              1.0 * (kParts - i - j - l) / kParts}));
        }
      }
    }
    ASSERT_GE(best, time * (1 - 1e-9));
    // A share that is off by a part changes a link's load by at most n parts.
    const double slowest = *std::min_element(input.gpu_bps.begin(), input.gpu_bps.end());
    const double slower = std::min(slowest, input.cpu_bps[0]);
    ASSERT_LE(best, time + 3.0 * static_cast<double>(machines) / kParts * 8 * kBytes / slower);
  }
}

TEST(EncodedSharesTest, FewerBytesNeverTakeLonger) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  RandomInputs random(seed);
  for (int round = 0; round < 500; ++round) {
    PlanInput input = random.Next();
    input.limit_bytes.clear();
    const Plan plan = PlanOf(input);
    ASSERT_LE(*plan.t_opt_encoded_s, *plan.t_opt_s * (1 + 1e-9));
    PlanInput more = input;
    (round % 2 ? more.ratios.contributions : more.ratios.results) = 1;
    ASSERT_LE(*plan.t_opt_encoded_s, *PlanOf(more).t_opt_encoded_s * (1 + 2e-8));
    // Sending and receiving change places.
    std::swap(input.ratios.contributions, input.ratios.results);
    ASSERT_EQ(*plan.t_opt_encoded_s, *PlanOf(input).t_opt_encoded_s);
  }
}

// The slope of a machine's load by its share is nothing but rounding here.
TEST(EncodedSharesTest, ALoadThatHardlyDependsOnTheShareIsPlanned) {
  for (const double off : {0.0, 1e-17, -1e-17, 1e-12, -1e-12, 1e-9, -1e-9, 1e-7, -1e-7}) {
    for (const size_t n : {2, 3, 4, 7}) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", off " << off);
      PlanInput input = Equal(n, 2, 1, std::min(1.0, 1.0 / static_cast<double>(n - 1) + off));
      input.gpu_bps[1] *= 1.3;
      const Plan plan = PlanOf(input);
      EXPECT_NEAR(*plan.t_opt_encoded_s, LeastTime(input), 2e-8 * kUnit);
      EXPECT_NEAR(Total(AllShares(plan)), 1, 1e-9);
      EXPECT_LE(TimeWith(input, AllShares(plan)), *plan.t_opt_encoded_s * (1 + 1e-7));
    }
  }
}

TEST(EncodedSharesTest, RatiosOutsideTheirRangeAreRefused) {
  for (const double bad : {0.0, -0.5, 1.01, std::nan(""), kInfinity}) {
    EXPECT_EQ(MakePlan(Equal(2, 1, bad, 1)).status().code(), absl::StatusCode::kInvalidArgument);
    const absl::Status status = MakePlan(Equal(2, 1, 1, bad)).status();
    EXPECT_THAT(Message(status), HasSubstr("must be above 0 and at most 1"));
  }
  EXPECT_TRUE(MakePlan(Equal(2, 1, std::numeric_limits<double>::denorm_min(), 1)).ok());
}

}  // namespace
}  // namespace addend
