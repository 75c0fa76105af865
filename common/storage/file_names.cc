#include "common/storage/file_names.h"

#include <openssl/sha.h>

#include <charconv>

#include "common/limits.h"
#include "fmt/format.h"

namespace layover {
namespace {

// Decimal digits only; no sign, no overflow.
std::optional<int64_t> ParseDecimal(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

}  // namespace

FolderDigest ConversationDigest(std::string_view owner, std::string_view id) {
  std::string text(owner);
  text.push_back('\0');
  text += id;
  FolderDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

std::string ConversationFolder(std::string_view owner, std::string_view id) {
  return FolderName(ConversationDigest(owner, id));
}

std::string FolderName(const FolderDigest& digest) {
  std::string name;
  for (const uint8_t byte : digest) name += fmt::format("{:02x}", byte);
  return name;
}

std::optional<FolderDigest> ParseFolderName(std::string_view name) {
  FolderDigest digest;
  if (name.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const std::optional<uint8_t> high = HexDigit(name[2 * i]);
    const std::optional<uint8_t> low = HexDigit(name[2 * i + 1]);
    if (!high.has_value() || !low.has_value()) return std::nullopt;
    digest[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return digest;
}

std::string SegmentFileName(int stage, int64_t generation) {
  return fmt::format("s{:02}-g{:06}.seg", stage, generation);
}

std::optional<SegmentName> ParseSegmentFileName(std::string_view name) {
  constexpr std::string_view kEnding = ".seg";
  const size_t dash = name.find("-g");
  if (name.empty() || name[0] != 's' || dash == std::string_view::npos || !name.ends_with(kEnding)) return std::nullopt;
  if (dash + 2 > name.size() - kEnding.size()) return std::nullopt;
  const std::optional<int64_t> stage = ParseDecimal(name.substr(1, dash - 1));
  const std::optional<int64_t> generation =
      ParseDecimal(name.substr(dash + 2, name.size() - kEnding.size() - dash - 2));
  if (!stage.has_value() || *stage >= limits::kMaxStages || !generation.has_value() || *generation < 1 ||
      *generation > limits::kMaxGeneration) {
    return std::nullopt;
  }
  const SegmentName parsed{static_cast<int>(*stage), *generation};
  if (SegmentFileName(parsed.stage, parsed.generation) != name) return std::nullopt;
  return parsed;
}

std::string JoinPath(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (path.empty() || path.back() != '/') path += '/';
  path += name;
  return path;
}

std::string ConversationPath(std::string_view store, std::string_view folder) {
  return JoinPath(JoinPath(store, kConversationsName), folder);
}

std::string_view BaseName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string_view DirName(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? path.substr(0, 1) : path.substr(0, slash);
}

}  // namespace layover
