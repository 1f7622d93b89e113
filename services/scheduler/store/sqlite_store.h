// The default store: a SQLite database, held exclusively by a single scheduler. Apply() waits for
// the disk (synchronous=FULL), so a loss of power undoes no write for which it has returned OK.
#pragma once

#include <memory>
#include <string>

#include "services/scheduler/store/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace addend {

class SqliteStore : public Store {
 public:
  // Creates the file if it does not exist; its folder must. Errors as OpenStore.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path);
  ~SqliteStore() override;
  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;

  absl::StatusOr<std::vector<StoreEntry>> Load() override;
  absl::Status Apply(std::span<const StoreWrite> writes) override;
  std::string Describe() const override { return "sqlite:" + path_; }

 private:
  explicit SqliteStore(std::string path) : path_(std::move(path)) {}
  absl::Status Prepare();
  absl::Status CheckFormat();
  absl::Status ApplyOne(const StoreWrite& write);
  absl::Status Exec(const char* sql);
  // The database's last error, with the way out.
  absl::Status Error(int code) const;

  const std::string path_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* erase_ = nullptr;
};

}  // namespace addend
