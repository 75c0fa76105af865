// Reads a journal file from the start and decides what is good, what is a torn tail, and what is damage: the rules of
// docs/storage_format.md sections 5.3. Changes nothing.
#ifndef LAYOVER_COMMON_STORAGE_JOURNAL_SCAN_H_
#define LAYOVER_COMMON_STORAGE_JOURNAL_SCAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/journal.h"

namespace layover {

struct JournalScan {
  JournalState state;
  uint64_t salt = 0;
  uint64_t next_sequence = 0;
  JournalBound end;         // of the last good frame
  uint64_t torn_bytes = 0;  // behind it
};

// `folder`: STORE/c/FOLDER. Errors name the journal.
absl::StatusOr<JournalScan> ScanJournal(const std::string& folder, const std::optional<JournalBound>& bound);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_JOURNAL_SCAN_H_
