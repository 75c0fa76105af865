#include "tests/storage/storage_exercise.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/storage/journal_format.h"
#include "common/storage/manifest.h"
#include "common/storage/on_disk.h"
#include "common/storage/segment_format.h"

namespace layover::testing {
namespace {

constexpr size_t kBlock = limits::kBlockBytes;
constexpr size_t kDigestOffset = 16;  // in header and footer
constexpr size_t kEntryBytes = 72;

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void PutDigest(std::string* bytes, size_t at, const Digest& digest) {
  const DigestBytes out = DigestBytes::Of(digest);
  std::memcpy(bytes->data() + at, &out, sizeof(out));
}

void SealBlockAt(std::string* bytes, size_t at) {
  std::memset(bytes->data() + at + kDigestOffset, 0, sizeof(DigestBytes));
  PutDigest(bytes, at + kDigestOffset, DigestOf(bytes->data() + at, kBlock));
}

}  // namespace

std::string ResealSegment(std::string bytes) {
  if (bytes.size() < 2 * kBlock || bytes.size() % kBlock != 0) return bytes;
  const size_t footer = bytes.size() - kBlock;
  SealBlockAt(&bytes, 0);
  const auto index_offset = LoadBytes<uint64_t>(bytes, footer + 32);
  const auto index_count = LoadBytes<uint64_t>(bytes, footer + 40);
  if (index_offset >= kBlock && index_offset <= footer) {
    for (uint64_t i = 0; i < index_count && index_offset + (i + 1) * kEntryBytes <= footer; ++i) {
      const size_t entry = index_offset + i * kEntryBytes;
      const auto offset = LoadBytes<uint64_t>(bytes, entry + 24);
      const auto length = LoadBytes<uint64_t>(bytes, entry + 32);
      if (offset > bytes.size() || length > bytes.size() - offset) continue;
      PutDigest(&bytes, entry + 56, DigestOf(bytes.data() + offset, length));
    }
    const std::string_view text = bytes;
    PutDigest(&bytes, footer + 56,
              IndexDigest(text.substr(0, kBlock), text.substr(index_offset, footer - index_offset)));
  }
  SealBlockAt(&bytes, footer);
  return bytes;
}

std::string ResealManifest(std::string text) {
  constexpr size_t kDigits = 32;
  constexpr size_t kTail = 4;  // quote, newline, brace, newline
  if (text.size() < kDigits + kTail) return text;
  const size_t at = text.size() - kTail - kDigits;
  text.replace(at, kDigits, std::string(kDigits, '0'));
  return text.replace(at, kDigits, DigestOf(text).Hex());
}

bool ExerciseSegment(std::string_view bytes) {
  if (bytes.size() < 2 * kBlock) return false;
  const absl::StatusOr<SegmentHeader> header = DecodeHeader(Bytes(bytes.substr(0, kBlock)));
  const absl::StatusOr<Footer> footer = DecodeFooter(Bytes(bytes.substr(bytes.size() - kBlock)), bytes.size());
  if (!header.ok() || !footer.ok()) return false;
  LAYOVER_CHECK(EncodeHeader(*header) == bytes.substr(0, kBlock));
  LAYOVER_CHECK(EncodeFooter(*footer) == bytes.substr(bytes.size() - kBlock));
  const std::string_view index = bytes.substr(footer->index_offset, bytes.size() - kBlock - footer->index_offset);
  const absl::StatusOr<std::vector<IndexEntry>> entries = DecodeIndex(*header, *footer, Bytes(index));
  if (!entries.ok()) return false;
  LAYOVER_CHECK(EncodeIndex(*entries) == index);
  uint64_t end = kBlock;
  for (const IndexEntry& entry : *entries) {
    LAYOVER_CHECK(entry.offset >= end && entry.offset + entry.bytes <= footer->index_offset);
    LAYOVER_CHECK(CheckRecord(*header, entry.key, entry.bytes).ok());
    end = entry.offset + entry.bytes;
    if (entry.key.kind != RecordKind::kCheckpoint) continue;
    const std::string_view payload = bytes.substr(entry.offset, entry.bytes);
    const absl::StatusOr<Checkpoint> checkpoint = DecodeCheckpoint(Bytes(payload));
    LAYOVER_CHECK(!checkpoint.ok() || EncodeCheckpoint(*checkpoint) == payload);
  }
  return true;
}

bool ExerciseManifest(std::string_view text) {
  const absl::StatusOr<ParsedManifest> parsed = ParseManifest(text);
  if (!parsed.ok()) return false;
  const absl::StatusOr<SerializedManifest> again = SerializeManifest(parsed->manifest);
  LAYOVER_CHECK(again.ok() && again->text == text && again->digest == parsed->digest);
  return true;
}

bool ExerciseFrames(std::string_view bytes) {
  JournalState state;
  bool all_good = true;
  while (bytes.size() >= 3) {
    const auto kind = static_cast<FrameKind>(bytes[0] & 15);
    const size_t length = std::min<size_t>(LoadBytes<uint16_t>(bytes, 1), bytes.size() - 3);
    all_good &= ApplyFrame(kind, bytes.substr(3, length), &state).ok();
    bytes.remove_prefix(3 + length);
  }
  for (const JournalTurn& turn : state.turns) {
    LAYOVER_CHECK(turn.length() >= 0 && turn.length() <= limits::kMaxContextTokens);
    LAYOVER_CHECK(state.PathIds(turn.number).size() == static_cast<size_t>(turn.length()));
    LAYOVER_CHECK(state.HeldLength(turn.number) >= 0 && state.HeldLength(turn.number) <= turn.length());
  }
  LAYOVER_CHECK(state.TrunkIds().size() == static_cast<size_t>(state.trunk_length));
  return all_good;
}

std::string MutateBytes(const std::string& good, const std::function<uint64_t()>& next_random) {
  std::string bytes = good;
  const uint64_t damages = 1 + next_random() % 4;
  for (uint64_t i = 0; i < damages && !bytes.empty(); ++i) {
    const size_t at = next_random() % bytes.size();
    const uint64_t kInteresting[] = {0, 1, 63, 64, 65, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, UINT64_MAX, next_random()};
    switch (next_random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (next_random() % 8)));
        break;
      case 1: {  // a number at its natural place
        const size_t width = size_t{1} << (next_random() % 4);
        const uint64_t value = kInteresting[next_random() % std::size(kInteresting)];
        const size_t aligned = at / width * width;
        if (aligned + width <= bytes.size()) std::memcpy(bytes.data() + aligned, &value, width);
        break;
      }
      case 2:
        bytes.resize(at);
        break;
      case 3: {
        const size_t length = std::min<size_t>(next_random() % 5000, bytes.size() - at);
        bytes.insert(at, bytes.substr(at, length));
        break;
      }
      default:
        bytes[at] = static_cast<char>(next_random());
    }
  }
  return bytes;
}

}  // namespace layover::testing
