// The store for several schedulers: etcd.
#include "services/scheduler/store/etcd_store.h"

#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status_macros.h"
#include "lib/options/host_port.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/store/standby.h"

namespace addend {
namespace {

using etcdserverpb::RequestOp;

constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";
constexpr char kDefaultPrefix[] = "addend";
// Below etcd's defaults: 128 operations and 1.5 MiB in a request.
constexpr size_t kMaxOperations = 100;
constexpr size_t kMaxBytes = 1 << 20;
// The size of a part of a value. A page of parts stays below kMaxAnswerBytes (lib/rpc/server.h).
constexpr size_t kPartBytes = 256 << 10;
constexpr int kPage = 200;

RequestOp Put(const std::string& key, const std::string& value) {
  RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(value);
  return operation;
}

// The first key behind all that begin with `prefix`.
std::string EndOf(std::string prefix) {
  ++prefix.back();
  return prefix;
}

RequestOp Delete(const std::string& key) {
  RequestOp operation;
  operation.mutable_request_delete_range()->set_key(key);
  return operation;
}

RequestOp DeleteAll(const std::string& prefix) {
  RequestOp operation = Delete(prefix);
  operation.mutable_request_delete_range()->set_range_end(EndOf(prefix));
  return operation;
}

absl::Status Malformed(std::string_view where, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("--store=etcd:%s: %s; write etcd:HOST:PORT[,HOST:PORT...][/PREFIX]",
                      std::string(where), why));
}

// etcd refuses a key that is twice in a transaction: the last write wins.
std::vector<StoreWrite> Collapse(std::span<const StoreWrite> writes) {
  std::map<std::string, std::optional<std::string>> last;
  for (const StoreWrite& write : writes) last[write.key] = write.value;
  std::vector<StoreWrite> collapsed;
  for (auto& [key, value] : last) collapsed.push_back({key, std::move(value)});
  return collapsed;
}

size_t SizeOf(const RequestOp& operation) { return operation.ByteSizeLong(); }

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(std::string_view where,
                                                           EtcdAccess access) {
  std::string prefix = kDefaultPrefix;
  const std::vector<std::string> parts = absl::StrSplit(std::string(where), ',');
  for (std::string_view part : parts) {
    for (const bool tls : {false, true}) {
      const std::string_view scheme = tls ? kHttps : kHttp;
      if (!part.starts_with(scheme)) continue;
      if (tls != (access.identity != nullptr)) {
        return Malformed(where, tls ? "https:// needs --etcd-ca, --etcd-cert and --etcd-key"
                                    : "http:// and --etcd-ca exclude each other");
      }
      part.remove_prefix(scheme.size());
    }
    const size_t slash = part.find('/');
    if (slash != std::string_view::npos && slash + 1 < part.size()) prefix = part.substr(slash + 1);
    const auto endpoint = ParseHostPort(part.substr(0, slash));
    if (!endpoint.ok() || endpoint->host.empty() || endpoint->port == 0) {
      return Malformed(where, absl::StrFormat("'%s' is no HOST:PORT", std::string(part)));
    }
    access.endpoints.push_back(endpoint->ToString());
  }
  return std::unique_ptr<EtcdStore>(
      new EtcdStore(std::string(where), std::move(access), prefix + "/"));
}

EtcdStore::EtcdStore(std::string where, EtcdAccess access, std::string prefix)
    : where_(std::move(where)),
      prefix_(std::move(prefix)),
      client_(std::move(access)),
      parts_(kPartBytes) {}

EtcdStore::~EtcdStore() {
  client_.Stop();
  if (keeper_.joinable()) keeper_.join();
  // The next leader need not wait for its end.
  if (lease_ != 0) client_.RevokeLease(lease_, SteadyNow() + absl::Seconds(1));
}

absl::Status EtcdStore::Lead(const Leadership& leadership) {
  leadership_ = leadership;
  ADDEND_RETURN_IF_ERROR(StandBy(
      leadership,
      {.try_to_lead = [&](std::string* leader) { return TryToLead(leadership.name, leader); },
       .pause = [this](absl::Duration duration) { client_.Pause(duration); },
       .stop = [this] { client_.Stop(); }}));
  spdlog::info("this scheduler leads ({})", client_.name());
  keeper_ = std::thread([this] { KeepLeading(); });
  return FinishJournal();
}

absl::StatusOr<bool> EtcdStore::TryToLead(const std::string& name, std::string* leader) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(2);
  if (lease_ != 0 && !client_.KeepLease(lease_, deadline).ok()) lease_ = 0;
  const absl::Time asked = SteadyNow();
  if (lease_ == 0) {
    ADDEND_ASSIGN_OR_RETURN(const auto granted, client_.GrantLease(leadership_.ttl, deadline));
    lease_ = granted.id();
    ttl_ = absl::Seconds(granted.ttl());
  }
  const std::string key = prefix_ + "leader";
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* absent = request.add_compare();
  absent->set_target(etcdserverpb::Compare::CREATE);
  absent->set_key(key);
  absent->set_create_revision(0);
  *request.add_success() = Put(key, name);
  request.mutable_success(0)->mutable_request_put()->set_lease(lease_);
  // An attempt of ours may have succeeded without our hearing of it.
  request.add_failure()->mutable_request_range()->set_key(key);
  ADDEND_ASSIGN_OR_RETURN(const auto response, client_.Txn(request, deadline));
  if (response.succeeded()) {
    leader_revision_ = response.header().revision();
  } else if (response.responses_size() > 0 &&
             response.responses(0).response_range().kvs_size() > 0) {
    const etcdserverpb::KeyValue& held = response.responses(0).response_range().kvs(0);
    *leader = held.value();
    if (held.value() == name) leader_revision_ = held.create_revision();
  }
  MutexLock lock(&mu_);
  lease_end_ = asked + ttl_;
  return leader_revision_ != 0;
}

void EtcdStore::KeepLeading() {
  while (client_.Pause(ttl_ / 4)) {
    const absl::Time asked = SteadyNow();
    const absl::Status kept = client_.KeepLease(lease_, Deadline());
    if (absl::IsCancelled(kept)) return;
    if (!kept.ok()) return leadership_.on_lost(LeadsNoMore(kept));
    MutexLock lock(&mu_);
    lease_end_ = asked + ttl_;
  }
}

// Nothing is tried for longer than the lease is certain to last.
absl::Time EtcdStore::Deadline() const {
  MutexLock lock(&mu_);
  return lease_end_;
}

absl::Status EtcdStore::Commit(std::vector<RequestOp> operations) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* leads = request.add_compare();
  leads->set_target(etcdserverpb::Compare::CREATE);
  leads->set_key(prefix_ + "leader");
  leads->set_create_revision(leader_revision_);
  for (RequestOp& operation : operations) *request.add_success() = std::move(operation);
  ADDEND_ASSIGN_OR_RETURN(const auto response, client_.Txn(request, Deadline()));
  return response.succeeded() ? absl::OkStatus() : AnotherLeads();
}

// Writes that are too many for a transaction go into several.
absl::Status EtcdStore::CommitAll(std::vector<RequestOp> operations) {
  std::vector<RequestOp> some;
  size_t bytes = 0;
  for (RequestOp& operation : operations) {
    const size_t size = SizeOf(operation);
    if (!some.empty() && (some.size() == kMaxOperations || bytes + size > kMaxBytes)) {
      ADDEND_RETURN_IF_ERROR(Commit(std::exchange(some, {})));
      bytes = 0;
    }
    bytes += size;
    some.push_back(std::move(operation));
  }
  return some.empty() ? absl::OkStatus() : Commit(std::move(some));
}

absl::Status EtcdStore::Apply(std::span<const StoreWrite> writes) {
  const std::vector<StoreWrite> collapsed = InParts(Collapse(writes));
  std::vector<RequestOp> operations;
  size_t bytes = 0;
  for (const StoreWrite& write : collapsed) {
    operations.push_back(write.value ? Put(RecordKey(write.key), *write.value)
                                     : Delete(RecordKey(write.key)));
    bytes += SizeOf(operations.back());
  }
  if (operations.empty()) return absl::OkStatus();
  const bool fits =
      operations.size() == 1 || (operations.size() <= kMaxOperations && bytes <= kMaxBytes);
  return fits ? Commit(std::move(operations)) : WriteByJournal(collapsed);
}

std::vector<StoreWrite> EtcdStore::InParts(const std::vector<StoreWrite>& writes) {
  std::vector<StoreWrite> parts;
  for (const StoreWrite& write : writes) {
    std::vector<StoreWrite> split = parts_.Split(write);
    std::move(split.begin(), split.end(), std::back_inserter(parts));
  }
  return parts;
}

absl::Status EtcdStore::WriteByJournal(const std::vector<StoreWrite>& writes) {
  std::vector<RequestOp> entries;
  for (size_t i = 0; i < writes.size(); ++i) {
    v1::JournalRecord entry;
    entry.set_key(writes[i].key);
    entry.set_deleted(!writes[i].value.has_value());
    entry.set_value(writes[i].value.value_or(""));
    entries.push_back(
        Put(absl::StrFormat("%sjournal/%010d", prefix_, i), entry.SerializeAsString()));
  }
  ADDEND_RETURN_IF_ERROR(CommitAll(std::move(entries)));
  ADDEND_RETURN_IF_ERROR(Commit({Put(prefix_ + "journal.complete", "")}));
  return FinishJournal();
}

absl::Status EtcdStore::FinishJournal() {
  ADDEND_ASSIGN_OR_RETURN(const auto complete, Read(prefix_ + "journal.complete"));
  if (!complete.empty()) {
    ADDEND_ASSIGN_OR_RETURN(const auto entries, Read(prefix_ + "journal/"));
    std::vector<RequestOp> operations;
    for (const auto& [key, value] : entries) {
      v1::JournalRecord entry;
      if (!entry.ParseFromString(value)) {
        return absl::DataLossError(
            absl::StrFormat("%s: the key '%s' cannot be read", client_.name(), key));
      }
      operations.push_back(entry.deleted() ? Delete(RecordKey(entry.key()))
                                           : Put(RecordKey(entry.key()), entry.value()));
    }
    ADDEND_RETURN_IF_ERROR(CommitAll(std::move(operations)));
  }
  return Commit({Delete(prefix_ + "journal.complete"), DeleteAll(prefix_ + "journal/")});
}

absl::StatusOr<std::vector<StoreEntry>> EtcdStore::Load() {
  ADDEND_ASSIGN_OR_RETURN(std::vector<StoreEntry> entries, Read(RecordKey("")));
  for (auto& [key, value] : entries) key.erase(0, RecordKey("").size());
  return parts_.Join(Describe(), std::move(entries));
}

// All keys that begin with `prefix`, as of the same moment.
absl::StatusOr<std::vector<StoreEntry>> EtcdStore::Read(const std::string& prefix) {
  std::vector<StoreEntry> entries;
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(EndOf(prefix));
  request.set_limit(kPage);
  while (true) {
    ADDEND_ASSIGN_OR_RETURN(const auto response, client_.Range(request, Deadline()));
    for (const auto& entry : response.kvs()) entries.emplace_back(entry.key(), entry.value());
    if (!response.more() || response.kvs().empty()) return entries;
    request.set_revision(response.header().revision());
    request.set_key(entries.back().first + '\0');
  }
}

}  // namespace addend
