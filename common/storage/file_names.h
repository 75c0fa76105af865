// The names in a store, and nothing but names: which folder a conversation has, what its files are called.
//
// A conversation's id and owner come from outside and may hold anything; only their SHA-256 names a folder, so no id
// can reach another folder. A name that is read back must be spelt exactly as it would be written.
#ifndef LAYOVER_COMMON_STORAGE_FILE_NAMES_H_
#define LAYOVER_COMMON_STORAGE_FILE_NAMES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace layover {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kJournalName = "journal";
inline constexpr std::string_view kLockName = "lock";
inline constexpr std::string_view kCatalogName = "catalog.db";
inline constexpr std::string_view kConversationsName = "c";
inline constexpr std::string_view kTemporarySuffix = ".tmp";

// SHA-256 of owner, a zero byte, id.
using FolderDigest = std::array<uint8_t, 32>;

FolderDigest ConversationDigest(std::string_view owner, std::string_view id);
// 64 lower-case hex digits.
std::string ConversationFolder(std::string_view owner, std::string_view id);
std::string FolderName(const FolderDigest& digest);
// nullopt unless `name` is exactly 64 lower-case hex digits.
std::optional<FolderDigest> ParseFolderName(std::string_view name);

struct SegmentName {
  int stage = 0;
  int64_t generation = 0;
};
// "s01-g000017.seg": at least two and six digits.
std::string SegmentFileName(int stage, int64_t generation);
// nullopt unless SegmentFileName of the result is `name` again.
std::optional<SegmentName> ParseSegmentFileName(std::string_view name);

std::string JoinPath(std::string_view folder, std::string_view name);
std::string ConversationPath(std::string_view store, std::string_view folder);  // STORE/c/FOLDER
std::string_view BaseName(std::string_view path);
std::string_view DirName(std::string_view path);  // "." for a bare name

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_FILE_NAMES_H_
