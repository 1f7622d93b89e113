// The scheduler's records in Secrets.
#include "services/scheduler/store/kubernetes_log.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "lib/base/failure.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/wire/crc32c.h"
#include "services/scheduler/store/standby.h"

namespace addend {
namespace {

using nlohmann::json;

// A Secret has at most 1 MiB, names included.
constexpr size_t kSegmentBytes = 768 << 10;
constexpr size_t kRecordPartBytes = 256 << 10;  // of a value
// The head is written with each batch, so its tail is short.
constexpr size_t kTailBytes = 32 << 10;
constexpr size_t kRecordBytes = 32;  // a record's share of the encoding, at most
// A log of more segments is compacted if they are half empty.
constexpr int kManySegments = 64;
// At a time, since each is a call.
constexpr int kMostDeletions = 100;
// A short log is not worth a compaction.
constexpr uint64_t kShortLogBytes = 1 << 20;
constexpr absl::Duration kBetweenCalls = absl::Milliseconds(200);
// For a server that renews the Lease and takes no records: calls of members wait meanwhile.
constexpr absl::Duration kLongestWait = absl::Seconds(15);
constexpr char kType[] = "addend.io/scheduler-store";
constexpr char kHead[] = "head";
constexpr char kRecords[] = "records";

size_t SizeOf(std::string_view key, std::string_view value) {
  return key.size() + value.size() + kRecordBytes;
}
size_t SizeOf(const v1::JournalRecord& record) { return SizeOf(record.key(), record.value()); }

// Of a segment's name, STORE-EPOCH-NUMBER; nullopt: it is another's.
std::optional<uint64_t> EpochOf(const std::string& store, const std::string& name) {
  uint64_t epoch = 0, number = 0;
  if (!name.starts_with(store + "-")) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(name.substr(store.size() + 1), '-');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &epoch) ||
      !absl::SimpleAtoi(parts[1], &number)) {
    return std::nullopt;
  }
  return epoch;
}

uint64_t SizeOfTail(const v1::LogHead& head) {
  uint64_t bytes = 0;
  for (const v1::JournalRecord& record : head.tail()) bytes += SizeOf(record);
  return bytes;
}

json SecretWith(const std::string& name, const std::string& label, const char* key,
                const std::string& bytes) {
  return {{"apiVersion", "v1"},
          {"kind", "Secret"},
          {"type", kType},
          {"metadata", {{"name", name}, {"labels", {{kStoreLabel, label}}}}},
          {"data", {{key, absl::Base64Escape(bytes)}}}};
}

std::string BytesOf(const json& object, const char* key) {
  std::string bytes;
  const std::string text = TextAt(object, absl::StrFormat("/data/%s", key).c_str());
  return absl::Base64Unescape(text, &bytes) ? bytes : "";
}

Bytes View(const std::string& bytes) {
  return Bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

v1::JournalRecord Record(const std::string& key, const std::optional<std::string>& value) {
  v1::JournalRecord record;
  record.set_key(key);
  record.set_deleted(!value.has_value());
  record.set_value(value.value_or(""));
  return record;
}

}  // namespace

KubernetesLog::KubernetesLog(KubernetesObjects* objects, std::string name, std::string writer,
                             std::function<bool(absl::Duration)> pause,
                             std::function<absl::Time()> deadline)
    : objects_(objects),
      name_(std::move(name)),
      writer_(std::move(writer)),
      pause_(std::move(pause)),
      deadline_(std::move(deadline)),
      parts_(kRecordPartBytes) {}

absl::Status KubernetesLog::Persist(Attempt attempt) {
  const absl::Time latest = SteadyNow() + kLongestWait;
  while (true) {
    const absl::Time deadline = std::min(latest, deadline_());
    const absl::Status status = attempt(deadline);
    // A server that has just started may refuse every account for a moment.
    const bool again = absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
    if (!again || SteadyNow() + kBetweenCalls >= std::min(latest, deadline_())) return status;
    if (!pause_(kBetweenCalls)) return absl::CancelledError("this scheduler ends");
  }
}

json KubernetesLog::HeadObject(const v1::LogHead& head) const {
  json object = SecretWith(name_, name_, kHead, head.SerializeAsString());
  object["metadata"]["annotations"] = {{"addend.io/leader", head.writer()}};  // for people
  return object;
}

absl::StatusOr<v1::LogHead> KubernetesLog::ReadHead(const json& object) const {
  v1::LogHead head;
  const std::string bytes = BytesOf(object, kHead);
  if (bytes.empty() || !head.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrFormat(
        "%s: the Secret %s is not the head of a scheduler's records: delete it, and the "
        "scheduler asks its members, or name another with --store=kubernetes:NAME",
        objects_->Describe(), name_));
  }
  return head;
}

absl::Status KubernetesLog::TakeOver() {
  ADDEND_RETURN_IF_ERROR(Persist([&](absl::Time deadline) -> absl::Status {
    v1::LogHead head;
    auto object = objects_->Get(ObjectKind::kSecret, name_, deadline);
    const bool absent = absl::IsNotFound(object.status());
    if (!absent) {
      ADDEND_RETURN_IF_ERROR(object.status());
      ADDEND_ASSIGN_OR_RETURN(head, ReadHead(*object));
    }
    head.set_epoch(head.epoch() + 1);
    head.set_writer(writer_);
    head.set_commit(0);
    json mine = HeadObject(head);
    if (!absent) {
      mine["metadata"]["resourceVersion"] = TextAt(*object, "/metadata/resourceVersion");
    }
    const auto written = absent ? objects_->Create(ObjectKind::kSecret, mine, deadline)
                                : objects_->Replace(ObjectKind::kSecret, mine, deadline);
    // A former leader's last write came between: the next attempt sees it.
    if (absl::IsAborted(written.status()) || absl::IsAlreadyExists(written.status())) {
      return absl::UnavailableError(Message(written.status()));
    }
    ADDEND_RETURN_IF_ERROR(written.status());
    head_ = std::move(head);
    version_ = TextAt(*written, "/metadata/resourceVersion");
    return absl::OkStatus();
  }));
  DeleteUnnamed();
  return absl::OkStatus();
}

// A leader that was deposed without knowing it sees segments of later epochs, which are not its to
// judge.
void KubernetesLog::DeleteUnnamed() {
  std::set<std::string> named;
  for (const auto& segment : head_.segments()) named.insert(segment.name());
  const auto names = objects_->List(ObjectKind::kSecret, kStoreLabel, name_, deadline_());
  if (!names.ok()) return;  // the next leader deletes them
  int deleted = 0;
  for (const std::string& name : *names) {
    const auto epoch = EpochOf(name_, name);
    if (!epoch || *epoch > head_.epoch() || named.contains(name)) continue;
    if (++deleted > kMostDeletions || SteadyNow() >= deadline_() || !pause_(absl::ZeroDuration())) {
      return;
    }
    objects_->Delete(ObjectKind::kSecret, name, deadline_()).IgnoreError();
  }
}

void KubernetesLog::Keep(const v1::JournalRecord& record) {
  const auto found = state_.find(record.key());
  if (found != state_.end()) {
    state_bytes_ -= SizeOf(found->first, found->second);
    state_.erase(found);
  }
  if (record.deleted()) return;
  state_[record.key()] = record.value();
  state_bytes_ += SizeOf(record);
}

uint64_t KubernetesLog::SizeAfter(std::span<const v1::JournalRecord> records) const {
  std::map<std::string_view, uint64_t> sizes;  // of the last write of each key
  for (const v1::JournalRecord& record : records) {
    sizes[record.key()] = record.deleted() ? 0 : SizeOf(record);
  }
  uint64_t bytes = state_bytes_;
  for (const auto& [key, size] : sizes) {
    const auto found = state_.find(std::string(key));
    if (found != state_.end()) bytes -= SizeOf(found->first, found->second);
    bytes += size;
  }
  return bytes;
}

absl::Status KubernetesLog::Lost(const std::string& segment, std::string_view why) {
  // Perhaps another leader has written the state anew since this one took over.
  ADDEND_ASSIGN_OR_RETURN(const json now, objects_->Get(ObjectKind::kSecret, name_, deadline_()));
  ADDEND_ASSIGN_OR_RETURN(const v1::LogHead there, ReadHead(now));
  if (there.epoch() != head_.epoch() || there.writer() != writer_) return AnotherLeads();
  return absl::DataLossError(absl::StrFormat(
      "%s: the Secret %s of the scheduler's records %s: delete the Secrets with the label %s=%s, "
      "and the scheduler asks its members",
      objects_->Describe(), segment, why, kStoreLabel, name_));
}

absl::Status KubernetesLog::Replay() {
  state_.clear();
  state_bytes_ = log_bytes_ = 0;
  for (const auto& named : head_.segments()) {
    json object;
    const absl::Status got = Persist([&](absl::Time deadline) -> absl::Status {
      ADDEND_ASSIGN_OR_RETURN(object, objects_->Get(ObjectKind::kSecret, named.name(), deadline));
      return absl::OkStatus();
    });
    if (absl::IsNotFound(got)) return Lost(named.name(), "is missing");
    ADDEND_RETURN_IF_ERROR(got);
    const std::string bytes = BytesOf(object, kRecords);
    v1::LogSegment segment;
    if (bytes.size() != named.bytes() || Crc32c(View(bytes)) != named.crc32c() ||
        !segment.ParseFromString(bytes)) {
      return Lost(named.name(), "is damaged");
    }
    log_bytes_ += bytes.size();
    for (const v1::JournalRecord& record : segment.records()) Keep(record);
  }
  for (const v1::JournalRecord& record : head_.tail()) Keep(record);
  log_bytes_ += SizeOfTail(head_);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoreEntry>> KubernetesLog::Load() {
  ADDEND_RETURN_IF_ERROR(Replay());
  std::vector<StoreEntry> entries(state_.begin(), state_.end());
  return parts_.Join(objects_->Describe(), std::move(entries));
}

absl::Status KubernetesLog::Commit(v1::LogHead head) {
  head.set_commit(head_.commit() + 1);
  const absl::Status committed = Persist([&](absl::Time deadline) -> absl::Status {
    json object = HeadObject(head);
    object["metadata"]["resourceVersion"] = version_;
    const auto written = objects_->Replace(ObjectKind::kSecret, object, deadline);
    if (written.ok()) {
      version_ = TextAt(*written, "/metadata/resourceVersion");
      return absl::OkStatus();
    }
    if (!absl::IsAborted(written.status()) && !absl::IsUnavailable(written.status())) {
      return written.status();
    }
    // An attempt without an answer may have succeeded; and another program may have changed the
    // object without its content, by a label.
    ADDEND_ASSIGN_OR_RETURN(const json now, objects_->Get(ObjectKind::kSecret, name_, deadline));
    ADDEND_ASSIGN_OR_RETURN(const v1::LogHead there, ReadHead(now));
    if (there.epoch() != head.epoch() || there.writer() != writer_) return AnotherLeads();
    version_ = TextAt(now, "/metadata/resourceVersion");
    if (there.commit() == head.commit()) return absl::OkStatus();
    return absl::UnavailableError(Message(written.status()));
  });
  if (absl::IsNotFound(committed)) {
    return MakeFailure(FailureKind::kTemporary,
                       absl::StrFormat("%s: the Secret %s, the head of the scheduler's records, "
                                       "was deleted; started again, the scheduler asks its members",
                                       objects_->Describe(), name_));
  }
  ADDEND_RETURN_IF_ERROR(committed);
  head_ = std::move(head);
  return absl::OkStatus();
}

absl::Status KubernetesLog::AddSegment(const v1::LogSegment& segment, v1::LogHead* head) {
  const std::string bytes = segment.SerializeAsString();
  std::string name;
  absl::Status made;
  do {
    name = absl::StrFormat("%s-%d-%d", name_, head->epoch(), ++segments_);
    json object = SecretWith(name, name_, kRecords, bytes);
    object["immutable"] = true;
    made = Persist([&](absl::Time deadline) {
      return objects_->Create(ObjectKind::kSecret, object, deadline).status();
    });
    // An attempt that got no answer, or a remainder of a log whose head was deleted: the next
    // number is free, and unnamed segments are deleted.
  } while (absl::IsAlreadyExists(made));
  ADDEND_RETURN_IF_ERROR(made);
  auto* named = head->add_segments();
  named->set_name(name);
  named->set_bytes(bytes.size());
  named->set_crc32c(Crc32c(View(bytes)));
  return absl::OkStatus();
}

absl::Status KubernetesLog::AddSegments(std::span<const v1::JournalRecord> records,
                                        v1::LogHead* head) {
  v1::LogSegment segment;
  size_t bytes = 0;
  for (const v1::JournalRecord& record : records) {
    if (bytes > 0 && bytes + SizeOf(record) > kSegmentBytes) {
      ADDEND_RETURN_IF_ERROR(AddSegment(std::exchange(segment, {}), head));
      bytes = 0;
    }
    *segment.add_records() = record;
    bytes += SizeOf(record);
  }
  return bytes > 0 ? AddSegment(segment, head) : absl::OkStatus();
}

absl::Status KubernetesLog::Apply(std::span<const StoreWrite> writes) {
  std::vector<v1::JournalRecord> records;
  uint64_t bytes = 0;
  for (const StoreWrite& write : writes) {
    for (const StoreWrite& part : parts_.Split(write)) {
      records.push_back(Record(part.key, part.value));
      bytes += SizeOf(records.back());
    }
  }
  if (records.empty()) return absl::OkStatus();
  const uint64_t after = SizeAfter(records);
  if (after > kMaxBytes && after > state_bytes_) {
    return MakeFailure(FailureKind::kResources,
                       absl::StrFormat("the scheduler's records would be longer than %d MiB, too "
                                       "long for Kubernetes' API: use --store=etcd:... or "
                                       "--store=sqlite:...",
                                       kMaxBytes >> 20));
  }
  v1::LogHead head = head_;
  if (SizeOfTail(head) + bytes <= kTailBytes) {
    for (const v1::JournalRecord& record : records) *head.add_tail() = record;
  } else {
    std::vector<v1::JournalRecord> all(head.tail().begin(), head.tail().end());
    all.insert(all.end(), records.begin(), records.end());
    head.clear_tail();
    ADDEND_RETURN_IF_ERROR(AddSegments(all, &head));
  }
  ADDEND_RETURN_IF_ERROR(Commit(std::move(head)));
  log_bytes_ += bytes;
  for (const v1::JournalRecord& record : records) Keep(record);
  return IsLong() ? Compact() : absl::OkStatus();
}

bool KubernetesLog::IsLong() const {
  const bool parts = head_.segments_size() > kManySegments &&
                     state_bytes_ < head_.segments_size() * kSegmentBytes / 2;
  return (parts || log_bytes_ > 2 * state_bytes_ + kShortLogBytes) && log_bytes_ > long_bytes_;
}

absl::Status KubernetesLog::Compact() {
  v1::LogHead head = head_;
  head.clear_segments();
  head.clear_tail();
  std::vector<v1::JournalRecord> records;
  for (const auto& [key, value] : state_) records.push_back(Record(key, value));
  const absl::Status added = AddSegments(records, &head);
  if (!added.ok()) {
    // The batch is there, so a quota on Secrets, say, must not end this leader.
    spdlog::warn("the scheduler's records stay longer than they need to be: {}", Message(added));
    long_bytes_ = 2 * log_bytes_;
    return absl::OkStatus();
  }
  // Ambiguous if it fails, so then the leader ends.
  ADDEND_RETURN_IF_ERROR(Commit(std::move(head)));
  log_bytes_ = state_bytes_;
  long_bytes_ = 0;
  DeleteUnnamed();
  return absl::OkStatus();
}

}  // namespace addend
