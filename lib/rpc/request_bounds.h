// Bounds for the texts and lists of a request. Every text and list has a bound, including fields
// that are added later: a field that is not in the table has the usual bound.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace addend {

// Bound of a text or bytes, unless the table in request_bounds.cc has another: host names,
// addresses, keys, settings.
inline constexpr size_t kUsualTextBytes = 256;
// Bound of a list: endpoints of a server, dimensions of a tensor.
inline constexpr size_t kUsualItems = 64;
// Bound of a sentence for people: the reason of a failure may name two tensors.
inline constexpr size_t kSentenceBytes = 10'000;
// Servers or jobs in a single call.
inline constexpr size_t kMemberItems = 16'384;
// Bound of a whole request: gRPC refuses a longer request while it arrives. Members send long lists
// in parts (lib/member/report_queue.h).
inline constexpr int kMaxRequestBytes = 16 << 20;

// INVALID_ARGUMENT names the first field that is too long, with its length and the bound, or the
// number that is not finite.
absl::Status CheckBounds(const google::protobuf::Message& request);

// For senders: cuts the sentences of `request` that exceed the receiver's bound, or their share of
// half a request if there are many.
void ShortenSentences(google::protobuf::Message* request);

// The bounds of a field: bytes of each text, items of a list.
size_t MostBytes(const google::protobuf::FieldDescriptor& field);
size_t MostItems(const google::protobuf::FieldDescriptor& field);

}  // namespace addend
