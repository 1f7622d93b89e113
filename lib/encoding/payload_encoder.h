// Encodes payloads that are about to leave through a link, where that is worth its processor time,
// and keeps the memory of the encodings. An encoding never changes a bit of a result, so all of
// this is a matter of time alone: each frame may be encoded or not.
//
// A partition that does not gain is tried again ever more seldom. By default (kAuto) payloads stay
// as they are where the network is cheaper than encoding (encoding_costs.h). Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "lib/base/bytes.h"
#include "lib/base/types.h"
#include "lib/encoding/encoded_bytes.h"
#include "lib/encoding/encoding_costs.h"

namespace addend {

// --wire-encoding. kAlways: wherever a payload gains, whatever it costs.
enum class WireEncoding : uint8_t { kAuto, kRaw, kAlways };
// "auto", "raw" or "always"; nullopt: another text.
std::optional<WireEncoding> WireEncodingOf(std::string_view text);

// A payload in the form in which it travels.
struct EncodedPayload {
  EncodedBytes content;              // no bytes: as it is
  std::shared_ptr<const void> keep;  // the memory of the encoding
};

class PayloadEncoder {
 public:
  // What is known of a partition's payloads.
  struct History {
    uint8_t failures = 0;  // in a row, up to kMostFailures
    uint8_t skip = 0;      // payloads to send as they are before the next attempt
  };
  static constexpr int kMostFailures = 6;
  // Smaller payloads are not worth a thought.
  static constexpr size_t kLeastBytes = 512;

  explicit PayloadEncoder(WireEncoding mode);

  // Encodes elements that may be read now. Without gain the result has no bytes.
  struct Purpose {
    bool wanted = false;  // whatever it costs: the user asked for a short form of this tensor
    uint32_t sends = 1;   // about so many links send the encoding
  };
  EncodedPayload Encode(DType dtype, Bytes raw, History* history, const Purpose& purpose);

  // The costs by which kAuto decides.
  EncodingCosts* costs() { return &costs_; }

 private:
  class Buffers;

  const WireEncoding mode_;
  const std::shared_ptr<Buffers> buffers_;
  EncodingCosts costs_;
  uint32_t left_out_ = 0;  // attempts left out in a row since encoding is not worth it
};

// The form in which a payload travels; without bytes as it is. Null: as it is, too.
using EncodeFn = absl::AnyInvocable<EncodedPayload()>;

// Encodes a payload without a history. `encoder` outlives the result.
inline EncodeFn EncodeOnce(PayloadEncoder* encoder, DType dtype, Bytes payload) {
  return [encoder, dtype, payload] {
    PayloadEncoder::History history;
    return encoder->Encode(dtype, payload, &history, {});
  };
}

}  // namespace addend
