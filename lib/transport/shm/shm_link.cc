// A link over a local socket, with two differences to TCP: a payload that the peer has lent is
// copied from where it lies, and the Done of a payload that this end has lent runs when the peer
// says that it has copied it.
//
// When does an owner overwrite lent memory? Only when the round has its result, so the peer has
// copied it, or has no more say in it; or when the link closes, after it has said so on the page;
// or when its trainer gives up, after it has set the guard of the segment. The receiver looks at
// page and guard after each copy.

#include "lib/transport/shm/shm_link.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"

namespace addend::shm {
namespace {

// Only tensors far larger than the caches have such partitions (PartitionSize in lib/plan).
constexpr size_t kOfLargeTensor = 256 << 10;

}  // namespace

void ShmLink::Share(uint64_t group) {
  stranger_ = false;
  SocketLink::Share(group);
}

void ShmLink::SetPage(LinkPage page) {
  page_.emplace(std::move(page));
  outgoing_.Push({.kind = Kind::kPage}, page_->file());
}

void ShmLink::OnClosing() {
  if (page_) page_->Withdraw();
}

void ShmLink::Queue(const FrameHeader& header, Bytes payload, Done done) {
  FrameHeader signed_header = header;
  version_.Sign(&signed_header);
  Record record{.kind = Kind::kFrame};
  // Until the page is there, this end could not take back the payloads that it lends.
  if (const auto place = page_ ? lent_.Find(payload) : std::nullopt) {
    const Mapping& segment = place->announce;
    if (!segment.memory.empty()) {
      outgoing_.Push({.kind = Kind::kSegment,
                      .segment = place->lent.segment,
                      .value = segment.memory.size(),
                      .guard = segment.guard},
                     segment.file);
    }
    record = place->lent;
  }
  shared()->stats.local_bytes.fetch_add(payload.size(), std::memory_order_relaxed);
  outgoing_.Push(record, signed_header, payload, std::move(done));
}

void ShmLink::Forget(uint64_t mapping) {
  const auto segment = lent_.Forget(mapping);
  if (!segment || closed()) return;
  outgoing_.Push({.kind = Kind::kForget, .segment = *segment});
  WaitToWrite();
}

absl::Status ShmLink::Receive(size_t most, FairTurns::Waiter::Work* work) {
  size_t& cost = work->cost;
  bool more = true;
  ADDEND_RETURN_IF_ERROR(TakeRecords(most, &cost));
  while (!closed() && more && cost < most) {
    ADDEND_ASSIGN_OR_RETURN(more, Read(&cost));
    ADDEND_RETURN_IF_ERROR(TakeRecords(most, &cost));
  }
  if (closed()) return absl::OkStatus();
  SayReleased();
  RunDue();
  work->again = more || cost >= most;
  return absl::OkStatus();
}

void ShmLink::SayReleased() {
  if (released_ == 0) return;
  outgoing_.Push({.kind = Kind::kRelease, .value = std::exchange(released_, 0)});
  WaitToWrite();
}

absl::StatusOr<bool> ShmLink::Read(size_t* cost) {
  MutableBytes room;
  if (coming_) room = coming_->room.subspan(std::min(coming_->got, coming_->room.size()));
  const auto received = input_.Read(fd(), room);
  if (absl::IsUnavailable(received.status())) {
    return absl::UnavailableError(
        absl::StrFormat("the connection to %s %s", peer(), Message(received.status())));
  }
  if (!received.ok()) return received.status();
  if (coming_) coming_->got += received->into_room;
  *cost += received->bytes;
  // The end of a connection causes no second event.
  return received->more || (ended() && received->bytes > 0);
}

absl::Status ShmLink::TakeRecords(size_t most, size_t* cost) {
  while (!closed() && *cost < most) {
    ADDEND_ASSIGN_OR_RETURN(const bool taken, TakeRecord(cost));
    if (!taken) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ShmLink::TakeRecord(size_t* cost) {
  if (coming_) {
    if (!TakePayload(cost)) return false;
    const Coming complete = *std::exchange(coming_, std::nullopt);
    ADDEND_RETURN_IF_ERROR(Deliver(complete.header, complete.room));
    return true;
  }
  const Bytes there = input_.bytes();
  Record record;
  if (there.size() < sizeof(record)) return false;
  std::memcpy(&record, there.data(), sizeof(record));
  const bool frame = record.kind == Kind::kFrame || record.kind == Kind::kLent;
  if (frame && there.size() < sizeof(record) + kFrameHeaderBytes) return false;
  input_.Skip(sizeof(record));
  if ((record.kind == Kind::kPage) == page_.has_value()) {
    return absl::InvalidArgumentError("the page of the link comes first, and once");
  }
  *cost += FairTurns::kFrameCost;
  if (!frame) {
    ADDEND_RETURN_IF_ERROR(OnRecord(record));
    return true;
  }
  ADDEND_ASSIGN_OR_RETURN(const FrameHeader header, TakeHeader());
  if (record.kind == Kind::kLent) {
    *cost += header.payload_bytes;
    ADDEND_RETURN_IF_ERROR(OnLent(record, header));
    return true;
  }
  MutableBytes room;
  if (header.payload_bytes > 0) {
    ADDEND_ASSIGN_OR_RETURN(room, RoomFor(header));
  }
  coming_ = Coming{.header = header, .room = room};
  return true;
}

absl::StatusOr<FrameHeader> ShmLink::TakeHeader() {
  ADDEND_ASSIGN_OR_RETURN(const FrameHeader header,
                          DecodeHeader(input_.bytes().first<kFrameHeaderBytes>()));
  input_.Skip(kFrameHeaderBytes);
  ADDEND_RETURN_IF_ERROR(version_.Check(header));
  if (header.type == FrameType::kBundle) {
    return absl::InvalidArgumentError("a BUNDLE in shared memory, which needs none");
  }
  return header;
}

absl::Status ShmLink::OnRecord(const Record& record) {
  switch (record.kind) {
    case Kind::kPage: {
      ADDEND_ASSIGN_OR_RETURN(const UniqueFd file, input_.TakeFile());
      ADDEND_ASSIGN_OR_RETURN(LinkPage page, LinkPage::Map(file));
      page_.emplace(std::move(page));
      return absl::OkStatus();
    }
    case Kind::kSegment: {
      if (stranger_) return absl::InvalidArgumentError("a shared segment before the proof");
      ADDEND_ASSIGN_OR_RETURN(const UniqueFd file, input_.TakeFile());
      return borrowed_.Add(record, file);
    }
    case Kind::kForget:
      borrowed_.Drop(record.segment);
      return absl::OkStatus();
    case Kind::kRelease:
      return outgoing_.Release(record.value);
    default:
      return absl::DataLossError(absl::StrFormat("%s sent an unknown record", peer()));
  }
}

absl::Status ShmLink::OnLent(const Record& record, const FrameHeader& header) {
  ADDEND_RETURN_IF_ERROR(borrowed_.Check(record, header.payload_bytes));
  if (header.payload_bytes == 0 || header.type == FrameType::kGoaway) {
    return absl::InvalidArgumentError("a lent payload where there can be none");
  }
  ADDEND_ASSIGN_OR_RETURN(const MutableBytes room, RoomFor(header));
  if (!room.empty()) {
    const bool large = header.type == FrameType::kResult && room.size() >= kOfLargeTensor;
    ADDEND_RETURN_IF_ERROR(borrowed_.Copy(record, room, /*past_caches=*/large));
    if (page_->peer_has_withdrawn()) {
      return absl::UnavailableError(absl::StrFormat("%s has closed the link", peer()));
    }
  }
  ++released_;
  return Deliver(header, room);
}

// True: the payload is complete.
bool ShmLink::TakePayload(size_t* cost) {
  const size_t wanted = coming_->header.payload_bytes - coming_->got;
  const Bytes bytes = input_.bytes().first(std::min(wanted, input_.bytes().size()));
  if (!coming_->room.empty() && !bytes.empty()) {
    std::memcpy(coming_->room.data() + coming_->got, bytes.data(), bytes.size());
  }
  *cost += bytes.size();
  input_.Skip(bytes.size());
  coming_->got += bytes.size();
  return bytes.size() == wanted;
}

}  // namespace addend::shm
