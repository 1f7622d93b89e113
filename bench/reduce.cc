#include "bench/reduce.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/plain_loops.h"
#include "bench/report.h"
#include "lib/base/clock.h"
#include "lib/reduce/reduce.h"

namespace addend {
namespace {

constexpr size_t kMostInputs = 8;
// Several times the share of a core in any last-level cache.
constexpr uint64_t kStreamBytes = 256 << 20;
constexpr uint64_t kUsualL2Bytes = 1 << 20;
// The least duration of a measurement, which takes many passes in cache.
constexpr double kShortestSeconds = 2e-3;
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

// A buffer that is resident in memory: all its pages were written.
class Stream {
 public:
  explicit Stream(uint64_t bytes)
      : memory_(static_cast<float*>(::operator new(bytes, kAlignment))),
        values_(memory_.get(), bytes / sizeof(float)) {
    std::fill(values_.begin(), values_.end(), 1.0f);
  }
  float* data() const { return memory_.get(); }
  std::span<float> values() const { return values_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<float, Free> memory_;
  std::span<float> values_;
};

// A contestant of the measurement. `bytes`: the bytes that a call stores.
struct Contender {
  std::string name;
  uint64_t bytes = 0;
  std::function<void()> call;
  std::vector<double> seconds{};  // of each call

  double rate() const { return static_cast<double>(bytes) / Percentile(seconds, 0.5); }
};

double SecondsOf(const std::function<void()>& call, int times) {
  const absl::Time start = SteadyNow();
  for (int i = 0; i < times; ++i) call();
  return absl::ToDoubleSeconds(SteadyNow() - start) / times;
}

// Measures alternately, so that other load of the machine affects all contestants.
void Measure(std::vector<Contender>* contenders, uint32_t repeats) {
  std::vector<int> times;
  for (Contender& contender : *contenders) {
    contender.call();
    const double once = std::max(SecondsOf(contender.call, 1), 1e-9);
    times.push_back(std::max(1, static_cast<int>(kShortestSeconds / once)));
  }
  for (uint32_t repeat = 0; repeat < repeats; ++repeat) {
    for (size_t i = 0; i < contenders->size(); ++i) {
      Contender& contender = (*contenders)[i];
      contender.seconds.push_back(SecondsOf(contender.call, times[i]));
    }
  }
}

// Addend's kernel against the plain loops over the same streams.
struct Comparison {
  const char* place;  // "memory", "L2"
  size_t inputs;
  DType dtype;
  uint64_t stream_bytes;
  double rate = 0;
  const char* best_plain = "none";
  double best_plain_rate = 0;

  double ratio() const { return rate / best_plain_rate; }
};

class ReduceBench {
 public:
  // The streams are the inputs and the output.
  ReduceBench(uint32_t repeats, size_t streams, uint64_t stream_bytes) : repeats_(repeats) {
    for (size_t i = 0; i < streams; ++i) streams_.emplace_back(stream_bytes);
    for (const Stream& stream : streams_) pointers_.push_back(stream.data());
  }

  // Returns bytes per second: reads, memcpy's copies, stores that read nothing.
  std::vector<Contender> Memory() {
    const std::span<float> from = streams_[0].values(), to = streams_[1].values();
    std::vector<Contender> contenders = {
        {"read", kStreamBytes, [this, from] { sink_ = ReadAll(from); }},
        {"copy", kStreamBytes, [from, to] { std::copy(from.begin(), from.end(), to.begin()); }},
        {"fill", kStreamBytes, [to] { FillAll(to, 1); }}};
    Measure(&contenders, repeats_);
    return contenders;
  }

  Contender Ours(DType dtype, size_t inputs, uint64_t stream_bytes) const {
    const std::vector<const void*> from(pointers_.begin(),
                                        pointers_.begin() + static_cast<std::ptrdiff_t>(inputs));
    float* const out = streams_.back().data();
    return {std::string(Name(dtype)), stream_bytes,
            [=] { Reduce(dtype, ReduceOp::kSum, out, from, stream_bytes / SizeOf(dtype), 1); }};
  }

  Comparison Compare(const char* place, size_t inputs, DType dtype, uint64_t stream_bytes) const {
    std::vector<Contender> contenders = {Ours(dtype, inputs, stream_bytes)};
    const std::vector<PlainLoop> plain = PlainSums(dtype, inputs);
    for (const PlainLoop& loop : plain) {
      contenders.push_back({loop.name, stream_bytes, [=, this, out = streams_.back().data()] {
                              loop.sum(out, pointers_.data(), stream_bytes / SizeOf(dtype));
                            }});
    }
    Measure(&contenders, repeats_);
    Comparison result{place, inputs, dtype, stream_bytes, contenders[0].rate()};
    for (size_t i = 0; i < plain.size(); ++i) {
      const double rate = contenders[i + 1].rate();
      if (rate <= result.best_plain_rate) continue;
      result.best_plain = plain[i].name;
      result.best_plain_rate = rate;
    }
    return result;
  }

 private:
  const uint32_t repeats_;
  std::vector<Stream> streams_;
  std::vector<const void*> pointers_;
  std::atomic<float> sink_{0};  // consumes the read values
};

// Returns the bytes of a stream if all streams of a sum together take half of the cache.
uint64_t StreamBytesInL2(size_t inputs) {
  const long l2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  const uint64_t bytes = l2 > 0 ? static_cast<uint64_t>(l2) : kUsualL2Bytes;
  return bytes / 2 / (inputs + 1) / 256 * 256;
}

std::string ToText(const std::vector<Contender>& memory, const std::vector<Comparison>& all) {
  std::string text = absl::StrFormat("One core (%s), GB/s of the result. Memory:", TargetName());
  for (const Contender& contender : memory) {
    absl::StrAppendFormat(&text, " %s %.1f", contender.name, contender.rate() / 1e9);
  }
  absl::StrAppendFormat(&text, "\n%-8s %6s %-9s %8s %11s %6s  %s\n", "streams", "inputs", "type",
                        "Addend", "best plain", "ratio", "which");
  for (const Comparison& c : all) {
    absl::StrAppendFormat(&text, "%-8s %6d %-9s %8.2f %11.2f %6.2f  %s\n", c.place, c.inputs,
                          Name(c.dtype), c.rate / 1e9, c.best_plain_rate / 1e9, c.ratio(),
                          c.best_plain);
  }
  return text;
}

std::string ToJson(const std::vector<Contender>& memory, const std::vector<Comparison>& all) {
  nlohmann::ordered_json object;
  object["target"] = TargetName();
  for (const Contender& contender : memory) {
    object["memory_Bps"][contender.name] = contender.rate();
  }
  object["sums"] = nlohmann::ordered_json::array();
  for (const Comparison& c : all) {
    object["sums"].push_back({{"place", c.place},
                              {"inputs", c.inputs},
                              {"dtype", Name(c.dtype)},
                              {"stream_bytes", c.stream_bytes},
                              {"result_Bps", c.rate},
                              {"best_plain", c.best_plain},
                              {"best_plain_Bps", c.best_plain_rate},
                              {"ratio", c.ratio()}});
  }
  return object.dump(2) + "\n";
}

}  // namespace

double SecondsPerSummedByte(size_t inputs) {
  constexpr uint32_t kRepeats = 21;
  const uint64_t bytes = StreamBytesInL2(inputs);
  const ReduceBench bench(kRepeats, inputs + 1, bytes);
  std::vector<Contender> one = {bench.Ours(DType::kFloat32, inputs, bytes)};
  Measure(&one, kRepeats);
  return 1 / one[0].rate();
}

absl::Status RunReduce(const BenchOptions& options) {
  ReduceBench bench(options.iterations, kMostInputs + 1, kStreamBytes);
  const std::vector<Contender> memory = bench.Memory();
  std::vector<Comparison> all;
  for (const size_t inputs : {2, 4, 8}) {
    for (const DType dtype : kFloats) {
      all.push_back(bench.Compare("memory", inputs, dtype, kStreamBytes));
    }
    for (const DType dtype : kFloats) {
      all.push_back(bench.Compare("L2", inputs, dtype, StreamBytesInL2(inputs)));
    }
  }
  const std::string text = options.json ? ToJson(memory, all) : ToText(memory, all);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace addend
