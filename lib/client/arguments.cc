// The checks of the C ABI's arguments, and their sentences.
#include "lib/client/arguments.h"

#include <cstddef>
#include <limits>
#include <span>

#include "lib/base/types.h"
#include "lib/client/ipc.h"

namespace addend::client {
namespace {

// More bytes than any machine has, and few enough that no later arithmetic on it overflows.
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 46;

// Returns the length of the UTF-8 sequence that starts with `lead`, or 0 if `lead` starts no
// sequence. The allowed range of the second byte excludes overlong forms, surrogates and code
// points above U+10FFFF.
size_t SequenceLength(uint8_t lead, uint8_t* second_min, uint8_t* second_max) {
  *second_min = 0x80;
  *second_max = 0xbf;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (lead == 0xe0) *second_min = 0xa0;
    if (lead == 0xed) *second_max = 0x9f;
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (lead == 0xf0) *second_min = 0x90;
    if (lead == 0xf4) *second_max = 0x8f;
    return 4;
  }
  return 0;
}

Error CheckName(const char* name) {
  if (name == nullptr || *name == '\0') {
    return MakeError(ADDEND_ERROR_INVALID, "a tensor needs a name, but this one is empty");
  }
  const std::string_view view = name;
  if (view.size() > ipc::kMaxNameBytes) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "the tensor name \"%.40s...\" has %zu bytes, but at most %zu are allowed",
                     name, view.size(), ipc::kMaxNameBytes);
  }
  if (!IsUtf8(view)) {
    return MakeError(ADDEND_ERROR_INVALID, "the tensor name \"%s\" is not UTF-8", name);
  }
  return {};
}

Error CheckShape(const char* name, const int64_t* shape, int32_t dims, size_t element_bytes) {
  if (dims < 0 || static_cast<size_t>(dims) > ipc::kMaxDims || (dims > 0 && shape == nullptr)) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "tensor \"%s\" has %d dimensions, but 0 to %zu are allowed", name, dims,
                     ipc::kMaxDims);
  }
  uint64_t bytes = element_bytes;
  bool too_large = false;
  bool no_elements = false;
  for (int32_t i = 0; i < dims; ++i) {
    if (shape[i] < 0) {
      return MakeError(ADDEND_ERROR_INVALID,
                       "dimension %d of tensor \"%s\" is %lld, which is negative", i, name,
                       static_cast<long long>(shape[i]));
    }
    const uint64_t dimension = static_cast<uint64_t>(shape[i]);
    if (dimension == 0) no_elements = true;
    if (too_large || (dimension != 0 && bytes > kMaxTensorBytes / dimension)) too_large = true;
    if (!too_large && dimension != 0) bytes *= dimension;
  }
  if (too_large && !no_elements) {
    return MakeError(ADDEND_ERROR_INVALID, "tensor \"%s\" has more than 2^46 bytes", name);
  }
  return {};
}

}  // namespace

bool IsUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    uint8_t second_min;
    uint8_t second_max;
    const size_t length = SequenceLength(byte(i), &second_min, &second_max);
    if (length == 0 || i + length > text.size()) return false;
    if (length > 1 && (byte(i + 1) < second_min || byte(i + 1) > second_max)) return false;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

Error CheckDeclaration(const char* name, const int64_t* shape, int32_t dims, addend_dtype dtype,
                       addend_op op, Declaration* declaration) {
  Error error = CheckName(name);
  if (!error.ok()) return error;
  if (static_cast<uint32_t>(dtype) >= static_cast<uint32_t>(kDTypes)) {
    return MakeError(ADDEND_ERROR_INVALID, "tensor \"%s\" has the unknown dtype %d", name,
                     static_cast<int>(dtype));
  }
  if (static_cast<uint32_t>(op) >= static_cast<uint32_t>(kReduceOps)) {
    return MakeError(ADDEND_ERROR_INVALID, "tensor \"%s\" has the unknown operation %d", name,
                     static_cast<int>(op));
  }
  error = CheckShape(name, shape, dims, SizeOf(static_cast<DType>(dtype)));
  if (!error.ok()) return error;
  declaration->name = name;
  declaration->shape.assign(shape, shape + dims);
  declaration->dtype = static_cast<DType>(dtype);
  declaration->op = static_cast<ReduceOp>(op);
  return {};
}

Error CheckWire(const char* wire, Declaration* declaration) {
  declaration->wire = WireFormatOf(wire);
  const std::string& name = declaration->name;
  if (!declaration->wire) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "tensor \"%s\" cannot travel as \"%.40s\": use same, bf16, fp16 or int8, the "
                     "last three perhaps with \" stochastic\" behind",
                     name.c_str(), wire);
  }
  if (declaration->wire->lossy() && !MayBeLossy(declaration->dtype, declaration->op)) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "tensor \"%s\" cannot travel as %s: only sums and averages of float32 can",
                     name.c_str(), wire);
  }
  return {};
}

Error CheckParticipants(const char* name, const int32_t* ranks, int32_t count, int32_t size,
                        int32_t rank, Participants* participants) {
  if (ranks == nullptr || count < 1) {
    return MakeError(ADDEND_ERROR_INVALID, "tensor \"%s\" has an empty list of participants", name);
  }
  for (int32_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      return MakeError(ADDEND_ERROR_INVALID,
                       "tensor \"%s\" names rank %d as a participant, but the job has ranks 0..%d",
                       name, ranks[i], size - 1);
    }
  }
  const auto among =
      Participants::Of(std::span(ranks, static_cast<size_t>(count)), static_cast<uint64_t>(size));
  if (!among) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "tensor \"%s\" names rank %zu or a later rank as a participant: ranks from "
                     "there on can only take part in tensors of all ranks",
                     name, Participants::kMaxBits);
  }
  if (!among->Contains(static_cast<uint64_t>(rank))) {
    return MakeError(ADDEND_ERROR_INVALID,
                     "rank %d declares tensor \"%s\" of %s, to which it does not belong", rank,
                     name, among->Text().c_str());
  }
  *participants = *among;
  return {};
}

}  // namespace addend::client
