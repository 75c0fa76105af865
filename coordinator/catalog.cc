#include "coordinator/catalog.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"

namespace layover {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS conversations (folder TEXT PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, "
    "generation INTEGER NOT NULL, n_tokens INTEGER NOT NULL, saved_n_tokens INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "created_at INTEGER NOT NULL, last_used_at INTEGER NOT NULL)";

// A prepared statement, finalised with the object.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  void Bind(int i, const std::string& text) { sqlite3_bind_text(statement_, i, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT); }
  void Bind(int i, int64_t value) { sqlite3_bind_int64(statement_, i, value); }
  bool Step() { return sqlite3_step(statement_) == SQLITE_ROW; }
  bool Finish() { return statement_ != nullptr && sqlite3_step(statement_) == SQLITE_DONE; }
  std::string Text(int i) const {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, i));
    return text == nullptr ? "" : std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement_, i)));
  }
  int64_t Int(int i) const { return sqlite3_column_int64(statement_, i); }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& store) {
  const std::string path = JoinPath(store, kCatalogName);
  for (int attempt = 0; attempt < 2; ++attempt) {
    // SQLite makes files by the umask; ours are 0600.
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return ErrnoStatus(errno, "open " + path);
    close(fd);
    sqlite3* db = nullptr;
    const bool opened = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK;
    std::unique_ptr<Catalog> catalog(new Catalog(db));
    // The truth is elsewhere: no need to wait for the disk.
    if (opened && catalog->Run("PRAGMA journal_mode=MEMORY").ok() && catalog->Run("PRAGMA synchronous=OFF").ok() &&
        catalog->Run(kSchema).ok() && catalog->All().ok()) {
      return catalog;
    }
    LogWarning("{} cannot be read and is made anew", path);
    catalog.reset();
    RETURN_IF_ERROR(RemoveFile(store, kCatalogName));
  }
  return Internal("{} cannot be made", path);
}

Catalog::~Catalog() { sqlite3_close(db_); }

absl::Status Catalog::Run(const char* sql) const {
  char* error = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &error) == SQLITE_OK) return absl::OkStatus();
  const std::string text = error == nullptr ? sqlite3_errmsg(db_) : error;
  sqlite3_free(error);
  return Internal("catalog.db: {}", text);
}

absl::Status Catalog::Put(const CatalogRow& row) {
  Statement statement(db_, "INSERT OR REPLACE INTO conversations VALUES (?,?,?,?,?,?,?,?,?)");
  statement.Bind(1, row.folder);
  statement.Bind(2, row.owner);
  statement.Bind(3, row.id);
  statement.Bind(4, row.generation);
  statement.Bind(5, row.n_tokens);
  statement.Bind(6, row.saved_n_tokens);
  statement.Bind(7, row.bytes);
  statement.Bind(8, row.created_at);
  statement.Bind(9, row.last_used_at);
  if (!statement.Finish()) return Internal("catalog.db: {}", sqlite3_errmsg(db_));
  return absl::OkStatus();
}

absl::Status Catalog::Remove(const std::string& folder) {
  Statement statement(db_, "DELETE FROM conversations WHERE folder = ?");
  statement.Bind(1, folder);
  if (!statement.Finish()) return Internal("catalog.db: {}", sqlite3_errmsg(db_));
  return absl::OkStatus();
}

absl::Status Catalog::Replace(const std::vector<CatalogRow>& rows) {
  RETURN_IF_ERROR(Run("BEGIN"));
  absl::Status status = Run("DELETE FROM conversations");
  for (const CatalogRow& row : rows) {
    if (status.ok()) status = Put(row);
  }
  if (!status.ok()) {
    (void)Run("ROLLBACK");
    return status;
  }
  return Run("COMMIT");
}

absl::StatusOr<std::vector<CatalogRow>> Catalog::All() const {
  std::vector<CatalogRow> rows;
  Statement statement(db_,
                      "SELECT folder, owner, id, generation, n_tokens, saved_n_tokens, bytes, created_at, last_used_at "
                      "FROM conversations ORDER BY folder");
  while (statement.Step()) {
    rows.push_back({statement.Text(0), statement.Text(1), statement.Text(2), statement.Int(3), statement.Int(4),
                    statement.Int(5), statement.Int(6), statement.Int(7), statement.Int(8)});
  }
  const int code = sqlite3_errcode(db_);
  if (code != SQLITE_OK && code != SQLITE_DONE) return Internal("catalog.db: {}", sqlite3_errmsg(db_));
  return rows;
}

}  // namespace layover
