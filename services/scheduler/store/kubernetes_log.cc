// The scheduler's records in Secrets.
#include "services/scheduler/store/kubernetes_log.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
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
constexpr size_t kPartBytes = 256 << 10;  // of a value
// The head is written with each batch, so its tail is short.
constexpr size_t kTailBytes = 32 << 10;
constexpr size_t kRecordBytes = 32;  // a record's share of the encoding, at most
// A short log is not worth a compaction.
constexpr uint64_t kShortLogBytes = 1 << 20;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(200);
constexpr char kType[] = "addend.io/scheduler-store";
constexpr char kHead[] = "head";
constexpr char kRecords[] = "records";

size_t SizeOf(const v1::JournalRecord& record) {
  return record.key().size() + record.value().size() + kRecordBytes;
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
                             std::function<bool(absl::Duration)> pause)
    : objects_(objects),
      name_(std::move(name)),
      writer_(std::move(writer)),
      pause_(std::move(pause)),
      parts_(kPartBytes) {}

absl::Status KubernetesLog::Persist(absl::Time deadline, Attempt attempt) {
  while (true) {
    const absl::Status status = attempt();
    if (!absl::IsUnavailable(status) || SteadyNow() + kBetweenTries >= deadline) return status;
    if (!pause_(kBetweenTries)) return absl::CancelledError("this scheduler ends");
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

absl::Status KubernetesLog::TakeOver(absl::Time deadline) {
  ADDEND_RETURN_IF_ERROR(Persist(deadline, [&]() -> absl::Status {
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
    if (!absent) mine["metadata"]["resourceVersion"] = object->at("metadata").at("resourceVersion");
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
  DeleteUnnamed(deadline);
  return absl::OkStatus();
}

void KubernetesLog::DeleteUnnamed(absl::Time deadline) {
  std::set<std::string> named = {name_};
  for (const auto& segment : head_.segments()) named.insert(segment.name());
  const auto names = objects_->List(ObjectKind::kSecret, kStoreLabel, name_, deadline);
  if (!names.ok()) return;  // the next leader deletes them
  for (const std::string& name : *names) {
    if (named.contains(name) || !name.starts_with(name_ + "-")) continue;
    objects_->Delete(ObjectKind::kSecret, name, deadline).IgnoreError();
  }
}

void KubernetesLog::Keep(const v1::JournalRecord& record) {
  const auto found = state_.find(record.key());
  if (found != state_.end()) {
    state_bytes_ -= found->first.size() + found->second.size() + kRecordBytes;
    state_.erase(found);
  }
  if (record.deleted()) return;
  state_[record.key()] = record.value();
  state_bytes_ += SizeOf(record);
}

absl::Status KubernetesLog::Replay(absl::Time deadline) {
  state_.clear();
  state_bytes_ = log_bytes_ = 0;
  for (const auto& named : head_.segments()) {
    const auto lost = [&](std::string_view why) {
      return absl::DataLossError(absl::StrFormat(
          "%s: the Secret %s of the scheduler's records %s: delete the Secrets with the "
          "label %s=%s, and the scheduler asks its members",
          objects_->Describe(), named.name(), why, kStoreLabel, name_));
    };
    json object;
    const absl::Status got = Persist(deadline, [&]() -> absl::Status {
      ADDEND_ASSIGN_OR_RETURN(object, objects_->Get(ObjectKind::kSecret, named.name(), deadline));
      return absl::OkStatus();
    });
    if (absl::IsNotFound(got)) return lost("is missing");
    ADDEND_RETURN_IF_ERROR(got);
    const std::string bytes = BytesOf(object, kRecords);
    v1::LogSegment segment;
    if (bytes.size() != named.bytes() || Crc32c(View(bytes)) != named.crc32c() ||
        !segment.ParseFromString(bytes)) {
      return lost("is damaged");
    }
    log_bytes_ += bytes.size();
    for (const v1::JournalRecord& record : segment.records()) Keep(record);
  }
  for (const v1::JournalRecord& record : head_.tail()) Keep(record);
  log_bytes_ += SizeOfTail(head_);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoreEntry>> KubernetesLog::Load(absl::Time deadline) {
  ADDEND_RETURN_IF_ERROR(Replay(deadline));
  std::vector<StoreEntry> entries(state_.begin(), state_.end());
  return parts_.Join(objects_->Describe(), std::move(entries));
}

absl::Status KubernetesLog::Commit(v1::LogHead head, absl::Time deadline) {
  head.set_commit(head_.commit() + 1);
  const absl::Status committed = Persist(deadline, [&]() -> absl::Status {
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

absl::Status KubernetesLog::AddSegment(const v1::LogSegment& segment, v1::LogHead* head,
                                       absl::Time deadline) {
  const std::string bytes = segment.SerializeAsString();
  const std::string name = absl::StrFormat("%s-%d-%d", name_, head->epoch(), ++segments_);
  json object = SecretWith(name, name_, kRecords, bytes);
  object["immutable"] = true;
  ADDEND_RETURN_IF_ERROR(Persist(deadline, [&] {
    const absl::Status made = objects_->Create(ObjectKind::kSecret, object, deadline).status();
    // The number is new in this epoch: it is an attempt that got no answer.
    return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
  }));
  auto* named = head->add_segments();
  named->set_name(name);
  named->set_bytes(bytes.size());
  named->set_crc32c(Crc32c(View(bytes)));
  return absl::OkStatus();
}

absl::Status KubernetesLog::AddSegments(std::span<const v1::JournalRecord> records,
                                        v1::LogHead* head, absl::Time deadline) {
  v1::LogSegment segment;
  size_t bytes = 0;
  for (const v1::JournalRecord& record : records) {
    if (bytes > 0 && bytes + SizeOf(record) > kSegmentBytes) {
      ADDEND_RETURN_IF_ERROR(AddSegment(std::exchange(segment, {}), head, deadline));
      bytes = 0;
    }
    *segment.add_records() = record;
    bytes += SizeOf(record);
  }
  return bytes > 0 ? AddSegment(segment, head, deadline) : absl::OkStatus();
}

absl::Status KubernetesLog::Apply(std::span<const StoreWrite> writes, absl::Time deadline) {
  std::vector<v1::JournalRecord> records;
  uint64_t bytes = 0;
  for (const StoreWrite& write : writes) {
    for (const StoreWrite& part : parts_.Split(write)) {
      records.push_back(Record(part.key, part.value));
      bytes += SizeOf(records.back());
    }
  }
  if (records.empty()) return absl::OkStatus();
  if (state_bytes_ + bytes > kMaxBytes) {
    return MakeFailure(FailureKind::kResources,
                       absl::StrFormat("the scheduler's records would be longer than %d MiB, too "
                                       "long for Kubernetes' API: use --store=etcd:... or "
                                       "--store=sqlite:...",
                                       kMaxBytes >> 20));
  }
  v1::LogHead head = head_;
  uint64_t added = bytes;
  if (SizeOfTail(head) + bytes <= kTailBytes) {
    for (const v1::JournalRecord& record : records) *head.add_tail() = record;
  } else {
    std::vector<v1::JournalRecord> all(head.tail().begin(), head.tail().end());
    all.insert(all.end(), records.begin(), records.end());
    head.clear_tail();
    ADDEND_RETURN_IF_ERROR(AddSegments(all, &head, deadline));
  }
  ADDEND_RETURN_IF_ERROR(Commit(std::move(head), deadline));
  log_bytes_ += added;
  for (const v1::JournalRecord& record : records) Keep(record);
  return log_bytes_ > 2 * state_bytes_ + kShortLogBytes ? Compact(deadline) : absl::OkStatus();
}

absl::Status KubernetesLog::Compact(absl::Time deadline) {
  v1::LogHead head = head_;
  head.clear_segments();
  head.clear_tail();
  std::vector<v1::JournalRecord> records;
  for (const auto& [key, value] : state_) records.push_back(Record(key, value));
  ADDEND_RETURN_IF_ERROR(AddSegments(records, &head, deadline));
  ADDEND_RETURN_IF_ERROR(Commit(std::move(head), deadline));
  log_bytes_ = state_bytes_;
  DeleteUnnamed(deadline);
  return absl::OkStatus();
}

}  // namespace addend
