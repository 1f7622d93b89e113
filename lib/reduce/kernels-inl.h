// The vector kernels, compiled once for every instruction set (Highway's foreach_target.h includes
// reduce.cc repeatedly; hence the guard that toggles). Only reduce.cc includes this file.
#if defined(ADDEND_LIB_REDUCE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_LIB_REDUCE_KERNELS_INL_H_
#undef ADDEND_LIB_REDUCE_KERNELS_INL_H_
#else
#define ADDEND_LIB_REDUCE_KERNELS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "lib/reduce/elements-inl.h"
#include "lib/reduce/request.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- The operations; Average adds, and the finish divides ----

struct SumOp {
  template <class D>
  static HWY_INLINE hn::Vec<D> Apply(D d, hn::Vec<D> acc, hn::Vec<D> in) {
    if constexpr (std::is_integral_v<hn::TFromD<D>>) {
      const hn::RebindToUnsigned<D> du;  // unsigned: wraps
      return hn::BitCast(d, hn::Add(hn::BitCast(du, acc), hn::BitCast(du, in)));
    } else {
      return hn::Add(acc, in);
    }
  }
};

// The earlier value stays unless the new value wins: so the earlier of two equal values (-0.0,
// +0.0) stays, and a NaN stays for ever.
template <class D, class M>
HWY_INLINE hn::Vec<D> TakeIf(D, M wins, hn::Vec<D> acc, hn::Vec<D> in) {
  if constexpr (!std::is_integral_v<hn::TFromD<D>>) wins = hn::Or(wins, hn::IsNaN(in));
  return hn::IfThenElse(wins, in, acc);
}
struct MinOp {
  template <class D>
  static HWY_INLINE hn::Vec<D> Apply(D d, hn::Vec<D> acc, hn::Vec<D> in) {
    return TakeIf(d, hn::Lt(in, acc), acc, in);
  }
};
struct MaxOp {
  template <class D>
  static HWY_INLINE hn::Vec<D> Apply(D d, hn::Vec<D> acc, hn::Vec<D> in) {
    return TakeIf(d, hn::Gt(in, acc), acc, in);
  }
};

// ---- The finish: division, canonical NaN ----

template <class D>
HWY_INLINE hn::Vec<D> WithCanonicalNaN(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  constexpr hn::TFromD<decltype(du)> kNan =
      sizeof(hn::TFromD<D>) == 4 ? 0x7fc00000u
                                 : static_cast<hn::TFromD<decltype(du)>>(0x7ff8000000000000u);
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(du, kNan)), v);
}

// True if any of the vectors has a NaN; possibly also if some have infinities.
template <class D, class V>
HWY_INLINE bool MayHaveNaN(D d, V v0, V v1, V v2, V v3) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // A single instruction tests two vectors; Highway has no function for it.
  if constexpr (sizeof(v0.raw) == 32 && sizeof(hn::TFromD<D>) == 4) {
    return (_mm256_cmp_ps_mask(v0.raw, v1.raw, _CMP_UNORD_Q) |
            _mm256_cmp_ps_mask(v2.raw, v3.raw, _CMP_UNORD_Q)) != 0;
  } else if constexpr (sizeof(v0.raw) == 32) {
    return (_mm256_cmp_pd_mask(v0.raw, v1.raw, _CMP_UNORD_Q) |
            _mm256_cmp_pd_mask(v2.raw, v3.raw, _CMP_UNORD_Q)) != 0;
  } else if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return (_mm512_cmp_ps_mask(v0.raw, v1.raw, _CMP_UNORD_Q) |
            _mm512_cmp_ps_mask(v2.raw, v3.raw, _CMP_UNORD_Q)) != 0;
  } else {
    return (_mm512_cmp_pd_mask(v0.raw, v1.raw, _CMP_UNORD_Q) |
            _mm512_cmp_pd_mask(v2.raw, v3.raw, _CMP_UNORD_Q)) != 0;
  }
#else
  return !hn::AllFalse(d, hn::IsNaN(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))));
#endif
}

template <typename T>
HWY_NOINLINE void DivideIntegers(uint8_t* p, size_t elements, uint64_t divisor) {
  for (size_t i = 0; i < elements; ++i) {
    T value;
    std::memcpy(&value, p + i * sizeof(T), sizeof(T));
    value = static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
    std::memcpy(p + i * sizeof(T), &value, sizeof(T));
  }
}

// ---- The loop ----
// out = finish(first op inputs[0] op inputs[1] ...): `First`, `In` and `Out` are the layouts of
// these streams in memory. A block is read from all streams before it is written, so `out` may be
// any of them.
template <class First, class In, class Out, class Op, bool kFinish,
          class D = hn::ScalableTag<typename In::Acc>>
class Loop {
  using Acc = typename In::Acc;
  using V = hn::Vec<D>;

 public:
  static void Run(const Request& r) {
    const D d;
    if constexpr (kNarrowPairs) {
      if (r.inputs == 1 && r.from == From::kCache) {
        return Loop<First, In, Out, Op, kFinish, Narrow>::Run(r);
      }
    }
    const size_t lanes = hn::Lanes(d);
    size_t i = 0;
    if constexpr (kMayStream) {
      if (r.from == From::kMemoryPastCaches) {
        i = HWY_MIN(UnalignedElements(r.out), r.elements);
        for (size_t j = 0; j < i; j += lanes) Rest(d, r, j, HWY_MIN(lanes, i - j));
        i = Blocks<true, true>(d, r, i);
        hwy::FlushStream();
      }
    }
    if (!kManySums || r.from != From::kCache) i = Blocks<true, false>(d, r, i);
    if constexpr (kManySums) i = Blocks<false, false>(d, r, i);
    for (; i < r.elements; i += lanes) Rest(d, r, i, HWY_MIN(lanes, r.elements - i));
  }

 private:
  static constexpr bool kIntegers = std::is_integral_v<Acc>;
  // Training sums many contributions at once; the other steps are compiled for size.
  static constexpr bool kManySums =
      kFinish && std::is_same_v<First, Out> && std::is_same_v<Op, SumOp>;
  // Narrow vectors, for two contributions in the second-level cache: with loads of whole lines the
  // cache's prefetching has nothing to hide behind.
  using Narrow = hn::CappedTag<Acc, 32 / sizeof(Acc)>;
  static constexpr bool kNarrowPairs = kManySums && !kIntegers && In::kBytes == sizeof(Acc) &&
                                       HWY_ARCH_X86 && hn::MaxLanes(D()) > hn::MaxLanes(Narrow());
  // Results of integers are read again to be divided.
  static constexpr bool kMayStream = kManySums && Out::kCanStream && !kIntegers;

  // The number of elements before the first aligned vector.
  static HWY_INLINE size_t UnalignedElements(const uint8_t* p) {
    const size_t past = reinterpret_cast<uintptr_t>(p) % HWY_MAX_BYTES;
    return past == 0 ? 0 : (HWY_MAX_BYTES - past) / Out::kBytes;
  }

  // The first few contributions have load instructions of their own: a processor predicts the next
  // load of an instruction from its earlier loads.
  static constexpr size_t kNamed = kManySums ? 7 : 1;

  // The request's fields in registers, where stores cannot change them.
  struct Streams {
    explicit Streams(const Request& r)
        : first(r.first),
          out(r.out),
          input(r.input),
          inputs(r.inputs),
          divide(r.divide),
          divisor(static_cast<Acc>(r.divisor)) {
      for (size_t j = 0; j < HWY_MIN(kNamed, inputs); ++j) {
        named[j] = static_cast<const uint8_t*>(r.input[j]);
      }
    }
    const uint8_t* first;
    uint8_t* out;
    const void* const* input;
    size_t inputs;
    bool divide;
    Acc divisor;
    const uint8_t* named[kNamed];
  };

  static HWY_INLINE void FinishBlock(D d, const Streams& s, V& v0, V& v1, V& v2, V& v3) {
    if constexpr (kFinish && !kIntegers) {
      if (HWY_UNLIKELY(s.divide)) {
        const V divisor = hn::Set(d, s.divisor);
        v0 = hn::Div(v0, divisor);
        v1 = hn::Div(v1, divisor);
        v2 = hn::Div(v2, divisor);
        v3 = hn::Div(v3, divisor);
      }
      if (HWY_UNLIKELY(MayHaveNaN(d, v0, v1, v2, v3))) {
        v0 = WithCanonicalNaN(d, v0);
        v1 = WithCanonicalNaN(d, v1);
        v2 = WithCanonicalNaN(d, v2);
        v3 = WithCanonicalNaN(d, v3);
      }
    }
  }
  // Integers are divided after they were stored: there is no vector instruction for their division.
  static HWY_INLINE void FinishStored(const Request& r, uint8_t* p, size_t elements) {
    if constexpr (kFinish && kIntegers) {
      if (r.divide) DivideIntegers<Acc>(p, elements, r.divisor);
    }
  }

  template <bool kPrefetch>
  static HWY_INLINE void Add(D d, const void* stream, size_t i, size_t lanes, V& v0, V& v1, V& v2,
                             V& v3) {
    V w0, w1, w2, w3;
    const uint8_t* p = static_cast<const uint8_t*>(stream) + i * In::kBytes;
    if constexpr (kPrefetch) PrefetchAhead(p, 4 * lanes * In::kBytes);
    LoadBlock<In>(d, p, w0, w1, w2, w3);
    v0 = Op::Apply(d, v0, w0);
    v1 = Op::Apply(d, v1, w1);
    v2 = Op::Apply(d, v2, w2);
    v3 = Op::Apply(d, v3, w3);
  }

  // Adds contributions kFirst and up.
  template <bool kPrefetch, size_t kFirst>
  static HWY_INLINE void AddFrom(D d, const Streams& s, size_t i, size_t lanes, V& v0, V& v1, V& v2,
                                 V& v3) {
    if constexpr (kFirst < kNamed) {
      if (s.inputs <= kFirst) return;
      Add<kPrefetch>(d, s.named[kFirst], i, lanes, v0, v1, v2, v3);
      AddFrom<kPrefetch, kFirst + 1>(d, s, i, lanes, v0, v1, v2, v3);
    } else {
      for (size_t j = kFirst; j < s.inputs; ++j) {
        Add<kPrefetch>(d, s.input[j], i, lanes, v0, v1, v2, v3);
      }
    }
  }

  // Handles all blocks from element i on; returns the first element behind them.
  template <bool kPrefetch, bool kStream>
  static HWY_INLINE size_t Blocks(D d, const Request& r, size_t i) {
    const Streams s(r);
    const size_t lanes = hn::Lanes(d);
    for (; i + 4 * lanes <= r.elements; i += 4 * lanes) {
      V v0, v1, v2, v3;
      const uint8_t* first = s.first + i * First::kBytes;
      if constexpr (kPrefetch) PrefetchAhead(first, 4 * lanes * First::kBytes);
      LoadBlock<First>(d, first, v0, v1, v2, v3);
      AddFrom<kPrefetch, 0>(d, s, i, lanes, v0, v1, v2, v3);
      FinishBlock(d, s, v0, v1, v2, v3);
      uint8_t* out = s.out + i * Out::kBytes;
      StoreBlock<Out, kStream>(d, v0, v1, v2, v3, out);
      FinishStored(r, out, 4 * lanes);
    }
    return i;
  }

  // Handles at most a vector of elements, through a buffer, so that no byte outside the streams is
  // touched.
  static HWY_NOINLINE void Rest(D d, const Request& r, size_t i, size_t count) {
    HWY_ALIGN uint8_t buffer[HWY_MAX_BYTES] = {};
    std::memcpy(buffer, r.first + i * First::kBytes, count * First::kBytes);
    V v = First::Load(d, buffer);
    for (size_t j = 0; j < r.inputs; ++j) {
      std::memcpy(buffer, static_cast<const uint8_t*>(r.input[j]) + i * In::kBytes,
                  count * In::kBytes);
      v = Op::Apply(d, v, In::Load(d, buffer));
    }
    if constexpr (kFinish && !kIntegers) {
      if (r.divide) v = hn::Div(v, hn::Set(d, static_cast<Acc>(r.divisor)));
      v = WithCanonicalNaN(d, v);
    }
    Out::Store(d, v, buffer);
    FinishStored(r, buffer, count);
    std::memcpy(r.out + i * Out::kBytes, buffer, count * Out::kBytes);
  }
};

// `Whole` replaces `Type` in the sums that see all contributions at once.
template <class Type, class Whole, class Op>
void RunStep(const Request& r) {
  using Wide = Native<typename Type::Acc>;
  switch (r.step) {
    case Step::kStart:
      return Loop<Type, Type, Wide, Op, false>::Run(r);
    case Step::kAccumulate:
      return Loop<Wide, Type, Wide, Op, false>::Run(r);
    case Step::kFinish:
      return Loop<Wide, Type, Type, Op, true>::Run(r);
    case Step::kReduce:
      return Loop<Whole, Whole, Whole, Op, true>::Run(r);
  }
}

template <class Type, class Whole = Type>
void RunOp(const Request& r) {
  switch (r.op) {
    case ReduceOp::kMin:
      return RunStep<Type, Whole, MinOp>(r);
    case ReduceOp::kMax:
      return RunStep<Type, Whole, MaxOp>(r);
    default:
      return RunStep<Type, Whole, SumOp>(r);
  }
}

void RunRequest(const Request& r) {
  switch (r.dtype) {
    case DType::kFloat32:
      return RunOp<Native<float>>(r);
    case DType::kFloat64:
      return RunOp<Native<double>>(r);
    case DType::kFloat16:
      return RunOp<Half>(r);
    case DType::kBFloat16:
      return RunOp<BFloat16, PairedBFloat16>(r);
    case DType::kInt32:
      return RunOp<Native<int32_t>>(r);
    case DType::kInt64:
      return RunOp<Native<int64_t>>(r);
  }
}

const char* CompiledTargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
