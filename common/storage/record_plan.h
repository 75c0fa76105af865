// Which records of which segments make up a state: shared by restore (a stage, for its own layers), by delta saves
// (what is held already) and by verify.
//
// Digests find: a record serves a path if the digest of the path's ids [0, token_end) is the record's.
#ifndef LAYOVER_COMMON_STORAGE_RECORD_PLAN_H_
#define LAYOVER_COMMON_STORAGE_RECORD_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/storage/segment_format.h"

namespace layover {

// Digests of the ids [0, i) of one path, for any i in [0, size].
class PrefixDigests {
 public:
  explicit PrefixDigests(std::span<const int32_t> ids);
  const Digest& At(int32_t length) const { return digests_[length]; }
  int32_t size() const { return static_cast<int32_t>(digests_.size()) - 1; }

 private:
  std::vector<Digest> digests_;  // [size + 1]
};

// One record to read, and which of its rows to use: [use_begin, use_end) within its token range.
struct PlannedRecord {
  size_t segment = 0;  // position in the list given
  size_t entry = 0;    // position in that segment's index
  int32_t use_begin = 0;
  int32_t use_end = 0;
};

struct RecordsOf {
  int32_t layer = 0;
  RecordKind kind = RecordKind::kKRows;
};

using IndexView = std::span<const IndexEntry>;

// Rows [begin, end) of one layer and kind (K or V) along the path, in ascending order, each row once.
// DataLoss naming layer, kind and the first token that no record holds.
absl::StatusOr<std::vector<PlannedRecord>> PlanRows(std::span<const IndexView> segments, const RecordsOf& what,
                                                    const PrefixDigests& path, int32_t begin, int32_t end);

// The one record of a recurrent or convolution state after the path's tokens [0, position); DataLoss if there is none.
absl::StatusOr<PlannedRecord> PlanState(std::span<const IndexView> segments, const RecordsOf& what,
                                        const PrefixDigests& path, int32_t position);

// A plan's records grouped by segment, each segment's ascending by position and without repeats, as ReadRecords wants.
struct SegmentReads {
  size_t segment = 0;
  std::vector<size_t> positions;
};
std::vector<SegmentReads> GroupBySegment(std::span<const PlannedRecord> plan);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_RECORD_PLAN_H_
