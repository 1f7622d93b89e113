// The default store: a SQLite database.
#include "services/scheduler/store/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include "absl/strings/str_format.h"
#include "lib/base/failure.h"
#include "lib/base/status_macros.h"

namespace addend {
namespace {

// Marks a file as ours ("ADND"), and counts changes of the table's form. The records have a version
// of their own (format.h).
constexpr int kApplicationId = 0x41444e44;
constexpr int kFormat = 1;

// First column of the first row of a pragma; an error of SQLite's as a negative number.
int ReadPragma(sqlite3* db, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int prepared = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
  if (prepared != SQLITE_OK) return -prepared;
  const int stepped = sqlite3_step(statement);
  const int value = stepped == SQLITE_ROW ? sqlite3_column_int(statement, 0) : -stepped;
  sqlite3_finalize(statement);
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  std::unique_ptr<SqliteStore> store(new SqliteStore(path));
  // It has the jobs' keys. SQLite opens a file that is there as it is; errors are its to tell.
  if (const int made = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600); made >= 0) {
    ::close(made);
  }
  const int opened =
      sqlite3_open_v2(path.c_str(), &store->db_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (opened != SQLITE_OK) return store->Error(opened);
  ADDEND_RETURN_IF_ERROR(store->Prepare());
  return store;
}

SqliteStore::~SqliteStore() {
  sqlite3_finalize(put_);
  sqlite3_finalize(erase_);
  sqlite3_close(db_);
}

absl::Status SqliteStore::Prepare() {
  ADDEND_RETURN_IF_ERROR(CheckFormat());
  // WAL with synchronous=FULL: every commit waits for the disk, so that a loss of power does not
  // undo a write of which members were told. This costs an fsync per event.
  ADDEND_RETURN_IF_ERROR(Exec("PRAGMA locking_mode=EXCLUSIVE"));
  ADDEND_RETURN_IF_ERROR(Exec("PRAGMA journal_mode=WAL"));
  ADDEND_RETURN_IF_ERROR(Exec("PRAGMA synchronous=FULL"));
  ADDEND_RETURN_IF_ERROR(Exec("BEGIN IMMEDIATE"));
  ADDEND_RETURN_IF_ERROR(
      Exec("CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB NOT NULL) "
           "WITHOUT ROWID"));
  ADDEND_RETURN_IF_ERROR(Exec(absl::StrFormat("PRAGMA application_id=%d", kApplicationId).c_str()));
  ADDEND_RETURN_IF_ERROR(Exec(absl::StrFormat("PRAGMA user_version=%d", kFormat).c_str()));
  ADDEND_RETURN_IF_ERROR(Exec("COMMIT"));
  int code =
      sqlite3_prepare_v2(db_, "INSERT OR REPLACE INTO records VALUES (?1, ?2)", -1, &put_, nullptr);
  if (code == SQLITE_OK) {
    code = sqlite3_prepare_v2(db_, "DELETE FROM records WHERE key = ?1", -1, &erase_, nullptr);
  }
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteStore::CheckFormat() {
  const int tables = ReadPragma(db_, "SELECT count(*) FROM sqlite_master");
  if (tables < 0) return Error(-tables);
  if (tables == 0) return absl::OkStatus();  // a new file
  const int id = ReadPragma(db_, "PRAGMA application_id");
  if (id < 0) return Error(-id);
  if (id != kApplicationId) return Error(SQLITE_NOTADB);
  const int format = ReadPragma(db_, "PRAGMA user_version");
  if (format == kFormat) return absl::OkStatus();
  return MakeFailure(
      FailureKind::kVersion,
      absl::StrFormat(
          "the store %s has format %d, but this scheduler writes format %d: start the release that "
          "wrote it, or name another file with --store=sqlite:PATH",
          path_, format, kFormat));
}

absl::StatusOr<std::vector<StoreEntry>> SqliteStore::Load() {
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(db_, "SELECT key, value FROM records ORDER BY key", -1, &statement,
                                nullptr);
  std::vector<StoreEntry> entries;
  while (code == SQLITE_OK || code == SQLITE_ROW) {
    code = sqlite3_step(statement);
    if (code != SQLITE_ROW) break;
    const auto text = [&](int column) {
      const char* data = static_cast<const char*>(sqlite3_column_blob(statement, column));
      return std::string(data == nullptr ? "" : data, sqlite3_column_bytes(statement, column));
    };
    entries.emplace_back(text(0), text(1));
  }
  sqlite3_finalize(statement);
  if (code != SQLITE_DONE) return Error(code);
  return entries;
}

absl::Status SqliteStore::Apply(std::span<const StoreWrite> writes) {
  ADDEND_RETURN_IF_ERROR(Exec("BEGIN"));
  absl::Status status;
  for (const StoreWrite& write : writes) {
    if (status.ok()) status = ApplyOne(write);
  }
  if (status.ok()) status = Exec("COMMIT");
  // The rollback's own result says nothing more: without a COMMIT nothing has been written.
  if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status SqliteStore::ApplyOne(const StoreWrite& write) {
  sqlite3_stmt* const statement = write.value ? put_ : erase_;
  sqlite3_bind_text(statement, 1, write.key.data(), static_cast<int>(write.key.size()),
                    SQLITE_STATIC);
  if (write.value) {
    sqlite3_bind_blob(statement, 2, write.value->data(), static_cast<int>(write.value->size()),
                      SQLITE_STATIC);
  }
  const int code = sqlite3_step(statement);
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
}

absl::Status SqliteStore::Exec(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteStore::Error(int code) const {
  const std::string what = db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_);
  switch (code & 0xff) {  // the primary code; the rest refines it
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return WithKind(absl::FailedPreconditionError(absl::StrFormat(
                          "the store %s is not an undamaged scheduler database (%s): move it "
                          "away, or name another file with --store=sqlite:PATH",
                          path_, sqlite3_errstr(code))),
                      FailureKind::kInvalid);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return WithKind(absl::FailedPreconditionError(absl::StrFormat(
                          "the store %s is in use by another process: one scheduler at a time "
                          "can have it; stop the other or name another file with "
                          "--store=sqlite:PATH",
                          path_)),
                      FailureKind::kInvalid);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return MakeFailure(
          FailureKind::kPermission,
          absl::StrFormat(
              "cannot write the store %s (%s): name a file in a folder that exists and is "
              "writable with --store=sqlite:PATH, or keep nothing with --store=memory",
              path_, what));
    case SQLITE_FULL:
      return MakeFailure(FailureKind::kShortage,
                         absl::StrFormat("the disk of the store %s is full: make room and "
                                         "start the scheduler again; jobs that "
                                         "run go on meanwhile, as they are",
                                         path_));
    default:
      return absl::InternalError(absl::StrFormat("the store %s failed: %s", path_, what));
  }
}

}  // namespace addend
