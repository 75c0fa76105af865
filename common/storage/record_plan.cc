#include "common/storage/record_plan.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "common/status.h"

namespace layover {
namespace {

bool Serves(const IndexEntry& entry, const RecordsOf& what, const PrefixDigests& path) {
  return entry.key.kind == what.kind && entry.key.layer == what.layer && entry.key.token_end <= path.size() &&
         entry.key.prefix == path.At(entry.key.token_end);
}

// For every page of the path, the records that begin in it.
using Candidates = std::unordered_map<int32_t, std::vector<PlannedRecord>>;

Candidates CollectRows(std::span<const IndexView> segments, const RecordsOf& what, const PrefixDigests& path) {
  Candidates candidates;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (size_t e = 0; e < segments[s].size(); ++e) {
      const IndexEntry& entry = segments[s][e];
      if (!Serves(entry, what, path)) continue;
      candidates[entry.key.token_begin / limits::kPageTokens].push_back(
          {s, e, entry.key.token_begin, entry.key.token_end});
    }
  }
  return candidates;
}

absl::Status NotHeld(const RecordsOf& what, int32_t token) {
  return DataLoss("no segment holds the {} of layer {} at token {}", RecordKindName(what.kind), what.layer, token);
}

}  // namespace

PrefixDigests::PrefixDigests(std::span<const int32_t> ids) {
  digests_.reserve(ids.size() + 1);
  DigestStream stream;
  digests_.push_back(stream.Value());
  for (size_t i = 0; i < ids.size(); ++i) {
    stream.UpdateTokens(ids.subspan(i, 1));
    digests_.push_back(stream.Value());
  }
}

absl::StatusOr<std::vector<PlannedRecord>> PlanRows(std::span<const IndexView> segments, const RecordsOf& what,
                                                    const PrefixDigests& path, int32_t begin, int32_t end) {
  const Candidates candidates = CollectRows(segments, what, path);
  std::vector<PlannedRecord> plan;
  for (int32_t at = begin; at < end;) {
    const auto page = candidates.find(at / limits::kPageTokens);
    if (page == candidates.end()) return NotHeld(what, at);
    // Of the records that hold row `at`, the one that reaches furthest: fewest reads.
    const PlannedRecord* best = nullptr;
    for (const PlannedRecord& record : page->second) {
      if (record.use_begin <= at && record.use_end > at && (best == nullptr || record.use_end > best->use_end))
        best = &record;
    }
    if (best == nullptr) return NotHeld(what, at);
    plan.push_back(*best);
    plan.back().use_begin = at;
    plan.back().use_end = std::min(best->use_end, end);
    at = plan.back().use_end;
  }
  return plan;
}

absl::StatusOr<PlannedRecord> PlanState(std::span<const IndexView> segments, const RecordsOf& what,
                                        const PrefixDigests& path, int32_t position) {
  for (size_t s = 0; s < segments.size(); ++s) {
    for (size_t e = 0; e < segments[s].size(); ++e) {
      const IndexEntry& entry = segments[s][e];
      if (entry.key.token_end == position && Serves(entry, what, path)) return PlannedRecord{s, e, 0, position};
    }
  }
  return DataLoss("no segment holds the {} of layer {} after {} tokens", RecordKindName(what.kind), what.layer,
                  position);
}

std::vector<SegmentReads> GroupBySegment(std::span<const PlannedRecord> plan) {
  std::map<size_t, std::vector<size_t>> by_segment;
  for (const PlannedRecord& record : plan) by_segment[record.segment].push_back(record.entry);
  std::vector<SegmentReads> reads;
  for (auto& [segment, positions] : by_segment) {
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    reads.push_back({segment, std::move(positions)});
  }
  return reads;
}

}  // namespace layover
