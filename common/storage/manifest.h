// The manifest: the small file whose rename makes a save real. It binds all stages' segments under one conversation.
//
// Its text is checked before it is parsed: the digest in its last line covers every other byte. Errors name
// manifest.json and the field.
#ifndef LAYOVER_COMMON_STORAGE_MANIFEST_H_
#define LAYOVER_COMMON_STORAGE_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"

namespace layover {

inline constexpr int kManifestVersion = 1;

// The model's identity as it is kept: ModelIdentity's fields (common/gguf/model_identity.h) without its methods.
struct StoredIdentity {
  int32_t format = 0;
  int32_t page_tokens = 0;
  std::string architecture;
  std::string kv_type;
  Digest arch;
  Digest rope;
  Digest tokenizer;
  std::vector<Digest> weights;  // [n_layers + 2]: layers in order, embedding, head
  Digest combined;              // what segment headers carry
  bool operator==(const StoredIdentity&) const = default;
};

struct ManifestSegment {
  std::string folder;  // empty: the manifest's own; else another conversation's (64 hex digits)
  std::string file;    // "s01-g000017.seg"
  int32_t stage = 0;
  int64_t generation = 0;
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  std::vector<std::pair<int32_t, int32_t>> tokens;  // half-open ranges of the rows that it serves, ascending
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;  // of its payloads, those that this manifest needs
  Digest index_digest;
  std::string host;  // empty: in this store; else the remote stage that keeps it
  bool operator==(const ManifestSegment&) const = default;
  std::string Path() const;  // FILE or FOLDER/FILE, as the manifest spells it
};

// Whose rows [begin, end) of a branch are: those of one generation's segments, in this folder or in another one.
struct ChainLink {
  std::string folder;  // empty: the manifest's own
  int64_t generation = 0;
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const ChainLink&) const = default;
};
// Branch 0 is the trunk. A branch shares tokens [0, fork_position) with its parent.
struct ManifestBranch {
  int32_t branch = 0;
  int32_t parent = -1;  // -1: none
  int32_t fork_position = 0;
  int32_t n_tokens = 0;              // whose state is held
  Digest prefix;                     // of the token ids [0, n_tokens)
  std::vector<int32_t> checkpoints;  // positions, ascending
  std::vector<ChainLink> chain;      // its rows [0, n_tokens), without gaps or overlaps
  bool operator==(const ManifestBranch&) const = default;
};

// A place in a journal: everything up to `bytes` is part of the save.
struct JournalBound {
  uint64_t bytes = 0;
  Digest chain;
  bool operator==(const JournalBound&) const = default;
};

struct Manifest {
  std::string id;
  std::string owner;
  int64_t generation = 0;
  int32_t n_tokens = 0;    // the trunk's
  Digest prefix;           // of the trunk's token ids [0, n_tokens)
  int64_t created_at = 0;  // Unix seconds: the conversation's first turn
  int64_t saved_at = 0;
  StoredIdentity identity;
  Digest template_digest;
  std::string numerics;  // fingerprint of the arithmetic
  std::optional<Digest> proof;
  JournalBound journal;
  std::vector<ManifestBranch> branches;
  std::vector<ManifestSegment> segments;
  bool operator==(const Manifest&) const = default;

  uint64_t TotalBytes() const;  // of the segments
  uint64_t OwnBytes() const;    // of those in its own folder
};

struct SerializedManifest {
  std::string text;  // what manifest.json holds
  Digest digest;     // its self-digest, which the journal's `saving` frame names
};
// InvalidArgument if a field is not UTF-8 or breaks a rule of the format page.
absl::StatusOr<SerializedManifest> SerializeManifest(const Manifest& manifest);

struct ParsedManifest {
  Manifest manifest;
  Digest digest;
};
absl::StatusOr<ParsedManifest> ParseManifest(std::string_view text);

// Reads folder/manifest.json; NotFound if there is none.
absl::StatusOr<ParsedManifest> ReadManifest(const std::string& folder);

// The commit: write, sync, rename, sync of the folder. `visible`: whether a reader finds the new manifest now. An error
// with *visible (the last sync failed) is a save in doubt: a power cut may bring the old one back, so the segments of
// both must stay.
absl::Status PublishManifest(const std::string& folder, const SerializedManifest& manifest, bool* visible);

// Which of "weights", "rope", "tokenizer", "kv_type", "arch", "format" differ, in that order.
std::vector<std::string> StoredIdentityDifferences(const StoredIdentity& a, const StoredIdentity& b);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_MANIFEST_H_
