// The decision, and buffers that are used again.
#include "lib/encoding/payload_encoder.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "lib/memory/arena.h"
#include "lib/reduce/block_codec.h"
#include "lib/trace/clock.h"

namespace addend {
namespace {

// An encoding has to be shorter by this part of the payload.
constexpr size_t kLeastGain = 16;
// Where encoding is not worth it, every so many attempts is made all the same: contents and costs
// change.
constexpr uint32_t kLeftOut = 256;

}  // namespace

std::optional<WireEncoding> WireEncodingOf(std::string_view text) {
  if (text == "auto") return WireEncoding::kAuto;
  if (text == "raw") return WireEncoding::kRaw;
  if (text == "always") return WireEncoding::kAlways;
  return std::nullopt;
}

// Arenas are whole mappings, which an RDMA transport registers once.
class PayloadEncoder::Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  // Used again when it is destroyed.
  class Buffer {
   public:
    Buffer(std::shared_ptr<Buffers> owner, std::shared_ptr<Arena> arena)
        : owner_(std::move(owner)), arena_(std::move(arena)) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { owner_->TakeBack(std::move(arena_)); }
    MutableBytes memory() const { return arena_->memory(); }

   private:
    const std::shared_ptr<Buffers> owner_;
    std::shared_ptr<Arena> arena_;
  };

  // Null without memory, and while the payloads on their way have much of it.
  std::shared_ptr<Buffer> Take(size_t bytes) {
    if (lent_bytes_ + bytes > kLentBytesMax) return nullptr;
    if (auto& unused = unused_[bytes]; !unused.empty()) {
      auto buffer = std::make_shared<Buffer>(shared_from_this(), std::move(unused.back()));
      unused.pop_back();
      unused_bytes_ -= bytes;
      lent_bytes_ += bytes;
      return buffer;
    }
    auto arena = Arena::Create(bytes);
    if (!arena.ok()) return nullptr;
    lent_bytes_ += bytes;
    return std::make_shared<Buffer>(shared_from_this(), *std::move(arena));
  }

 private:
  static constexpr size_t kLentBytesMax = 64 << 20;
  static constexpr size_t kUnusedBytesMax = 32 << 20;

  // Mostly of sizes that are not wanted any more, if there are so many.
  void TakeBack(std::shared_ptr<Arena> arena) {
    const size_t bytes = arena->memory().size();
    lent_bytes_ -= bytes;
    if (unused_bytes_ + bytes > kUnusedBytesMax) {
      unused_.clear();
      unused_bytes_ = 0;
    }
    unused_bytes_ += bytes;
    unused_[bytes].push_back(std::move(arena));
  }

  std::map<size_t, std::vector<std::shared_ptr<Arena>>> unused_;  // by size
  size_t unused_bytes_ = 0;
  size_t lent_bytes_ = 0;
};

PayloadEncoder::PayloadEncoder(WireEncoding mode)
    : mode_(mode), buffers_(std::make_shared<Buffers>()) {}

EncodedPayload PayloadEncoder::Encode(DType dtype, Bytes raw, History* history,
                                      const Purpose& purpose) {
  if (mode_ == WireEncoding::kRaw || raw.size() < kLeastBytes) return {};
  if (history->skip > 0) {
    --history->skip;
    return {};
  }
  const bool worth_it = purpose.wanted || mode_ == WireEncoding::kAlways || costs_.IsWorthIt();
  if (!worth_it && ++left_out_ % kLeftOut != 0) return {};
  const uint64_t elements = raw.size() / SizeOf(dtype);
  const auto room = buffers_->Take(EncodedBytesMax(dtype, elements));
  if (room == nullptr) return {};
  const int64_t began = TraceNow();
  const size_t limit = raw.size() - raw.size() / kLeastGain;
  const size_t bytes = EncodeBlocks(dtype, raw.data(), elements, limit, room->memory());
  if (bytes == 0) {
    history->failures = static_cast<uint8_t>(std::min(history->failures + 1, kMostFailures));
    history->skip = static_cast<uint8_t>((1 << history->failures) - 1);
    return {};
  }
  history->failures = 0;
  const auto size = static_cast<double>(raw.size());
  costs_.NoteEncoding(static_cast<double>(TraceNow() - began) / size,
                      1 - static_cast<double>(bytes) / size, purpose.sends);
  return {.content = {.bytes = room->memory().first(bytes), .encoding = Encoding::kBlocks},
          .keep = room};
}

}  // namespace addend
