// The store's index, STORE/catalog.db (SQLite): one row a conversation, so that other programs can list a store quickly.
// It decides nothing: manifests and journals are the truth, and a catalog that is missing, old or damaged is made anew
// from them at the start.
#ifndef LAYOVER_COORDINATOR_CATALOG_H_
#define LAYOVER_COORDINATOR_CATALOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;

namespace layover {

struct CatalogRow {
  std::string folder;          // key
  std::string owner;
  std::string id;
  int64_t generation = 0;
  int64_t n_tokens = 0;        // journalled
  int64_t saved_n_tokens = 0;
  int64_t bytes = 0;
  int64_t created_at = 0;      // Unix seconds
  int64_t last_used_at = 0;
  bool operator==(const CatalogRow&) const = default;
};

class Catalog {
 public:
  // Opens or makes it; one that SQLite cannot read is replaced. Mode 0600.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& store);
  ~Catalog();

  absl::Status Replace(const std::vector<CatalogRow>& rows);  // all of them, in one transaction
  absl::Status Put(const CatalogRow& row);
  absl::Status Remove(const std::string& folder);
  absl::StatusOr<std::vector<CatalogRow>> All() const;        // by folder

 private:
  explicit Catalog(sqlite3* db) : db_(db) {}
  absl::Status Run(const char* sql) const;
  sqlite3* db_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CATALOG_H_
