// The bytes of a journal: docs/storage_format.md section 5 in code. Pure functions on memory; the file is journal.cc's.
#ifndef LAYOVER_COMMON_STORAGE_JOURNAL_FORMAT_H_
#define LAYOVER_COMMON_STORAGE_JOURNAL_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/storage/journal.h"
#include "common/storage/segment_format.h"

namespace layover {

enum class FrameKind : uint16_t {
  kOpen = 1,
  kPrompt = 2,
  kGenerated = 3,
  kTurnEnd = 4,
  kRewind = 5,
  kSaving = 6,
  kSaved = 7,
  kDeleted = 8,
};
std::string_view FrameKindName(FrameKind kind);  // "turn_end"
inline bool IsSyncedKind(FrameKind kind) {
  return kind != FrameKind::kGenerated;
}

inline constexpr char kFrameMagic[4] = {'L', 'Y', 'J', '1'};
inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr size_t kFrameTrailerBytes = 16;  // the payload's digest
inline constexpr size_t kTornBoundaryBytes = 512;

struct FrameHeader {
  FrameKind kind = FrameKind::kOpen;
  uint64_t sequence = 0;
  uint32_t payload_bytes = 0;
  Digest previous;  // chain digest of the frame before
  size_t FrameBytes() const { return kFrameHeaderBytes + payload_bytes + kFrameTrailerBytes; }
};

// A whole frame; `chain` becomes the frame's chain digest.
std::string EncodeFrame(const FrameHeader& header, uint64_t salt, std::string_view payload, Digest* chain);

// What a header alone can tell: magic, zeros, kind, length within the bound, checksum. nullopt if anything is wrong.
// `header` has kFrameHeaderBytes.
std::optional<FrameHeader> DecodeFrameHeader(std::string_view header, uint64_t salt);
// `frame` has FrameBytes(): whether the payload has its digest. `chain` becomes the frame's chain digest.
bool CheckFramePayload(std::string_view frame, Digest* chain);

// The `open` frame's payload as bytes tell it.
struct OpenFrame {
  uint64_t salt = 0;
  int64_t time_ms = 0;
  std::string owner;
  std::string id;
};

std::string EncodeOpen(const OpenFrame& open);
std::string EncodePrompt(const PromptFrame& prompt);
std::string EncodeGenerated(int64_t turn, std::span<const int32_t> ids);
std::string EncodeTurnEnd(const TurnEndFrame& end);
std::string EncodeRewind(int64_t turn, int32_t length);
std::string EncodeSave(int64_t generation, const Digest& manifest);  // `saving` and `saved`
std::optional<OpenFrame> DecodeOpen(std::string_view payload);

// Applies one frame to what the journal said before it; InvalidArgument if the payload breaks a rule of the format
// page, with `state` as it was. Used alike for replaying and for appending.
absl::Status ApplyFrame(FrameKind kind, std::string_view payload, JournalState* state);

std::span<const FieldSpec> FrameHeaderFields();
std::span<const FieldSpec> OpenFrameFields();
std::span<const FieldSpec> PromptFrameFields();
std::span<const FieldSpec> GeneratedFrameFields();
std::span<const FieldSpec> TurnEndFrameFields();
std::span<const FieldSpec> RewindFrameFields();
std::span<const FieldSpec> SaveFrameFields();

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_JOURNAL_FORMAT_H_
