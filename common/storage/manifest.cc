#include "common/storage/manifest.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHexDigits = 32;
constexpr std::string_view kTailBegin = ",\n  \"digest\": \"";
constexpr std::string_view kTailEnd = "\"\n}\n";

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  StatusPart part;
  part.file = std::string(kManifestName);
  return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", kManifestName, ToStd(status.message())))),
                  part);
}

// ------------------------------------------------------------------------------------------------- what is allowed

absl::Status CheckSegment(const Manifest& manifest, const ManifestSegment& segment) {
  const std::optional<SegmentName> name = ParseSegmentFileName(segment.file);
  if (!name.has_value() || name->stage != segment.stage || name->generation != segment.generation) {
    return InvalidArgument("segments: '{}' is not the file of stage {} and generation {}", segment.file, segment.stage,
                           segment.generation);
  }
  if (!segment.folder.empty() && !ParseFolderName(segment.folder).has_value()) {
    return InvalidArgument("segments: '{}' is no folder", segment.folder);
  }
  if (segment.folder.empty() && segment.generation > manifest.generation) {
    return InvalidArgument("segments: {} is newer than generation {}", segment.file, manifest.generation);
  }
  if (segment.layer_begin < 0 || segment.layer_begin > segment.layer_end || segment.layer_end > limits::kMaxLayers) {
    return InvalidArgument("segments: {}: layers [{}, {})", segment.file, segment.layer_begin, segment.layer_end);
  }
  int32_t end = 0;
  for (const auto& [from, to] : segment.tokens) {
    if (from < end || to <= from || to > limits::kMaxContextTokens) {
      return InvalidArgument("segments: {}: tokens [{}, {})", segment.file, from, to);
    }
    end = to;
  }
  if (segment.bytes > limits::kMaxSegmentBytes || segment.live_bytes > segment.bytes) {
    return InvalidArgument("segments: {}: {} live bytes of {}", segment.file, segment.live_bytes, segment.bytes);
  }
  if (segment.host.size() > limits::kMaxStoredNameBytes)
    return InvalidArgument("segments: {}: host is too long", segment.file);
  return absl::OkStatus();
}

absl::Status CheckSegments(const Manifest& manifest) {
  if (manifest.segments.size() > limits::kMaxManifestSegments) {
    return InvalidArgument("segments: {} are too many", manifest.segments.size());
  }
  std::unordered_set<std::string> paths;
  for (const ManifestSegment& segment : manifest.segments) {
    RETURN_IF_ERROR(CheckSegment(manifest, segment));
    if (!paths.insert(segment.Path()).second) return InvalidArgument("segments: {} is named twice", segment.Path());
  }
  return absl::OkStatus();
}

// (folder, generation) of the segments that a manifest lists.
using ListedSegments = std::set<std::pair<std::string_view, int64_t>>;

// Links follow each other from 0 to the branch's length, and each names segments that the manifest lists.
absl::Status CheckChain(const ListedSegments& listed, const ManifestBranch& branch) {
  int32_t at = 0;
  for (const ChainLink& link : branch.chain) {
    if (link.begin != at || link.end <= link.begin || link.end > branch.n_tokens) {
      return InvalidArgument("branches: entry {}: chain at token {}", branch.branch, link.begin);
    }
    at = link.end;
    if (!listed.contains({link.folder, link.generation})) {
      return InvalidArgument("branches: entry {}: chain names generation {}, which no segment has", branch.branch,
                             link.generation);
    }
  }
  if (at != branch.n_tokens) return InvalidArgument("branches: entry {}: chain ends at token {}", branch.branch, at);
  return absl::OkStatus();
}

absl::Status CheckBranches(const Manifest& manifest) {
  if (manifest.branches.empty()) return InvalidArgument("branches: there is no trunk");
  ListedSegments listed;
  for (const ManifestSegment& segment : manifest.segments) listed.insert({segment.folder, segment.generation});
  for (size_t i = 0; i < manifest.branches.size(); ++i) {
    const ManifestBranch& branch = manifest.branches[i];
    const auto number = static_cast<int32_t>(i);
    const bool parent_fits = i == 0 ? branch.parent == -1 && branch.fork_position == 0
                                    : branch.parent >= 0 && branch.parent != number &&
                                          branch.parent < static_cast<int32_t>(manifest.branches.size());
    if (branch.branch != number || !parent_fits || branch.fork_position < 0 || branch.fork_position > branch.n_tokens ||
        branch.n_tokens > limits::kMaxContextTokens) {
      return InvalidArgument("branches: entry {} is not valid", i);
    }
    int32_t last = 0;
    for (const int32_t position : branch.checkpoints) {
      if (position <= last || position > branch.n_tokens) {
        return InvalidArgument("branches: entry {}: checkpoint at {}", i, position);
      }
      last = position;
    }
    RETURN_IF_ERROR(CheckChain(listed, branch));
  }
  const ManifestBranch& trunk = manifest.branches[0];
  if (trunk.n_tokens != manifest.n_tokens || trunk.prefix != manifest.prefix) {
    return InvalidArgument("branches: the trunk has {} tokens, n_tokens is {}, or their digests differ", trunk.n_tokens,
                           manifest.n_tokens);
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const Manifest& manifest) {
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7F; };
  if (manifest.id.empty() || manifest.id.size() > limits::kMaxConversationIdBytes ||
      !std::all_of(manifest.id.begin(), manifest.id.end(), printable)) {
    return InvalidArgument("id: not 1 to {} printable ASCII characters", limits::kMaxConversationIdBytes);
  }
  if (manifest.owner.size() > limits::kMaxStoredNameBytes)
    return InvalidArgument("owner: longer than {} bytes", limits::kMaxStoredNameBytes);
  if (manifest.generation < 1 || manifest.generation > limits::kMaxGeneration) {
    return InvalidArgument("generation: {}", manifest.generation);
  }
  if (manifest.n_tokens < 0 || manifest.n_tokens > limits::kMaxContextTokens) {
    return InvalidArgument("n_tokens: {}", manifest.n_tokens);
  }
  const StoredIdentity& identity = manifest.identity;
  if (identity.weights.size() < 2 || identity.weights.size() > limits::kMaxLayers + 2) {
    return InvalidArgument("identity: weights: {} digests", identity.weights.size());
  }
  if (identity.page_tokens != limits::kPageTokens)
    return InvalidArgument("identity: page_tokens: {}", identity.page_tokens);
  if (identity.architecture.size() > limits::kMaxStoredNameBytes ||
      identity.kv_type.size() > limits::kMaxStoredNameBytes) {
    return InvalidArgument("identity: a name is too long");
  }
  if (manifest.numerics.size() > limits::kMaxNumericsBytes) return InvalidArgument("numerics: too long");
  if (manifest.journal.bytes > limits::kMaxJournalBytes)
    return InvalidArgument("journal: {} bytes", manifest.journal.bytes);
  RETURN_IF_ERROR(CheckSegments(manifest));
  return CheckBranches(manifest);
}

// ------------------------------------------------------------------------------------------------------- to JSON

Json ToJson(const StoredIdentity& identity) {
  Json weights = Json::array();
  for (const Digest& digest : identity.weights) weights.push_back(digest.Hex());
  return {{"format", identity.format},
          {"page_tokens", identity.page_tokens},
          {"architecture", identity.architecture},
          {"kv_type", identity.kv_type},
          {"arch", identity.arch.Hex()},
          {"rope", identity.rope.Hex()},
          {"tokenizer", identity.tokenizer.Hex()},
          {"weights", weights},
          {"combined", identity.combined.Hex()}};
}

Json ToJson(const ManifestBranch& branch) {
  Json chain = Json::array();
  for (const ChainLink& link : branch.chain) {
    chain.push_back({{"folder", link.folder.empty() ? Json() : Json(link.folder)},
                     {"generation", link.generation},
                     {"tokens", Json::array({link.begin, link.end})}});
  }
  return {{"branch", branch.branch},
          {"parent", branch.parent < 0 ? Json() : Json(branch.parent)},
          {"fork_position", branch.fork_position},
          {"n_tokens", branch.n_tokens},
          {"prefix_digest", branch.prefix.Hex()},
          {"checkpoints", branch.checkpoints},
          {"chain", chain}};
}

Json ToJson(const ManifestSegment& segment) {
  Json tokens = Json::array();
  for (const auto& [begin, end] : segment.tokens) tokens.push_back(Json::array({begin, end}));
  return {{"file", segment.Path()},
          {"stage", segment.stage},
          {"generation", segment.generation},
          {"layers", Json::array({segment.layer_begin, segment.layer_end})},
          {"tokens", tokens},
          {"bytes", segment.bytes},
          {"live_bytes", segment.live_bytes},
          {"index_digest", segment.index_digest.Hex()},
          {"host", segment.host.empty() ? Json() : Json(segment.host)}};
}

Json ToJson(const Manifest& manifest) {
  Json branches = Json::array();
  for (const ManifestBranch& branch : manifest.branches) branches.push_back(ToJson(branch));
  Json segments = Json::array();
  for (const ManifestSegment& segment : manifest.segments) segments.push_back(ToJson(segment));
  return {{"layover_manifest", kManifestVersion},
          {"id", manifest.id},
          {"owner", manifest.owner},
          {"generation", manifest.generation},
          {"n_tokens", manifest.n_tokens},
          {"prefix_digest", manifest.prefix.Hex()},
          {"created_at", manifest.created_at},
          {"saved_at", manifest.saved_at},
          {"identity", ToJson(manifest.identity)},
          {"template_digest", manifest.template_digest.Hex()},
          {"numerics", manifest.numerics},
          {"proof", manifest.proof.has_value() ? Json(manifest.proof->Hex()) : Json()},
          {"journal", {{"bytes", manifest.journal.bytes}, {"chain", manifest.journal.chain.Hex()}}},
          {"branches", branches},
          {"segments", segments},
          {"digest", std::string(kHexDigits, '0')}};
}

// ----------------------------------------------------------------------------------------------------- from JSON

// Reads the fields of one object; remembers the first that is missing or of another type.
class Fields {
 public:
  Fields(const Json& object, std::string where, absl::Status* error)
      : object_(object), where_(std::move(where)), error_(error) {
    if (!object_.is_object()) Fail("", "not an object");
  }

  template <typename Int>
  void Read(std::string_view name, Int* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    const bool fits = value->is_number_unsigned()
                          ? std::in_range<Int>(value->get<uint64_t>())
                          : value->is_number_integer() && std::in_range<Int>(value->get<int64_t>());
    if (!fits) return Fail(name, "not a number in range");
    *out = value->is_number_unsigned() ? static_cast<Int>(value->get<uint64_t>())
                                       : static_cast<Int>(value->get<int64_t>());
  }

  void Read(std::string_view name, std::string* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(name, "not a string");
    *out = value->get<std::string>();
  }

  void Read(std::string_view name, Digest* out) {
    if (const Json* value = Find(name)) ReadDigest(name, *value, out);
  }

  bool IsNull(std::string_view name) {
    const Json* value = Find(name);
    return value != nullptr && value->is_null();
  }

  const Json& Array(std::string_view name) {
    static const Json kEmpty = Json::array();
    const Json* value = Find(name);
    if (value == nullptr) return kEmpty;
    if (!value->is_array()) Fail(name, "not an array");
    return value->is_array() ? *value : kEmpty;
  }

  const Json& Object(std::string_view name) {
    static const Json kEmpty = Json::object();
    const Json* value = Find(name);
    return value == nullptr ? kEmpty : *value;
  }

  void ReadDigest(std::string_view name, const Json& value, Digest* out) {
    const std::optional<Digest> digest =
        value.is_string() ? Digest::FromHex(value.get_ref<const std::string&>()) : std::nullopt;
    if (!digest.has_value()) return Fail(name, "not 32 hex digits");
    *out = *digest;
  }

  void ReadPair(std::string_view name, const Json& value, int32_t* first, int32_t* second) {
    const auto in_range = [](const Json& number) {
      return number.is_number_unsigned() && number.get<uint64_t>() <= static_cast<uint64_t>(limits::kMaxContextTokens);
    };
    if (!value.is_array() || value.size() != 2 || !in_range(value[0]) || !in_range(value[1]))
      return Fail(name, "not a range");
    *first = value[0].get<int32_t>();
    *second = value[1].get<int32_t>();
  }

  void Fail(std::string_view name, std::string_view what) {
    if (error_->ok()) *error_ = DataLoss("{}{}: {}", where_, name, what);
  }

 private:
  const Json* Find(std::string_view name) {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(std::string(name));
    if (found == object_.end()) {
      Fail(name, "missing");
      return nullptr;
    }
    return &*found;
  }

  const Json& object_;
  const std::string where_;
  absl::Status* error_;
};

StoredIdentity IdentityFrom(const Json& json, absl::Status* error) {
  StoredIdentity identity;
  Fields fields(json, "identity: ", error);
  fields.Read("format", &identity.format);
  fields.Read("page_tokens", &identity.page_tokens);
  fields.Read("architecture", &identity.architecture);
  fields.Read("kv_type", &identity.kv_type);
  fields.Read("arch", &identity.arch);
  fields.Read("rope", &identity.rope);
  fields.Read("tokenizer", &identity.tokenizer);
  for (const Json& value : fields.Array("weights"))
    fields.ReadDigest("weights", value, &identity.weights.emplace_back());
  fields.Read("combined", &identity.combined);
  return identity;
}

ManifestBranch BranchFrom(const Json& json, absl::Status* error) {
  ManifestBranch branch;
  Fields fields(json, "branches: ", error);
  fields.Read("branch", &branch.branch);
  if (!fields.IsNull("parent")) fields.Read("parent", &branch.parent);
  fields.Read("fork_position", &branch.fork_position);
  fields.Read("n_tokens", &branch.n_tokens);
  fields.Read("prefix_digest", &branch.prefix);
  for (const Json& value : fields.Array("checkpoints")) {
    const bool fits =
        value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(limits::kMaxContextTokens);
    if (!fits) fields.Fail("checkpoints", "not a position");
    branch.checkpoints.push_back(fits ? value.get<int32_t>() : 0);
  }
  for (const Json& value : fields.Array("chain")) {
    ChainLink& link = branch.chain.emplace_back();
    Fields link_fields(value, "branches: chain: ", error);
    if (!link_fields.IsNull("folder")) link_fields.Read("folder", &link.folder);
    link_fields.Read("generation", &link.generation);
    link_fields.ReadPair("tokens", link_fields.Object("tokens"), &link.begin, &link.end);
  }
  return branch;
}

ManifestSegment SegmentFrom(const Json& json, absl::Status* error) {
  ManifestSegment segment;
  Fields fields(json, "segments: ", error);
  std::string path;
  fields.Read("file", &path);
  segment.file = BaseName(path);
  if (path.find('/') != std::string::npos) segment.folder = DirName(path);
  fields.Read("stage", &segment.stage);
  fields.Read("generation", &segment.generation);
  fields.ReadPair("layers", fields.Object("layers"), &segment.layer_begin, &segment.layer_end);
  for (const Json& value : fields.Array("tokens")) {
    auto& [begin, end] = segment.tokens.emplace_back();
    fields.ReadPair("tokens", value, &begin, &end);
  }
  fields.Read("bytes", &segment.bytes);
  fields.Read("live_bytes", &segment.live_bytes);
  fields.Read("index_digest", &segment.index_digest);
  if (!fields.IsNull("host")) fields.Read("host", &segment.host);
  return segment;
}

absl::StatusOr<Manifest> FromJson(const Json& json) {
  absl::Status error;
  Manifest manifest;
  Fields fields(json, "", &error);
  int version = 0;
  fields.Read("layover_manifest", &version);
  if (error.ok() && version != kManifestVersion) return DataLoss("layover_manifest: version {} is not known", version);
  fields.Read("id", &manifest.id);
  fields.Read("owner", &manifest.owner);
  fields.Read("generation", &manifest.generation);
  fields.Read("n_tokens", &manifest.n_tokens);
  fields.Read("prefix_digest", &manifest.prefix);
  fields.Read("created_at", &manifest.created_at);
  fields.Read("saved_at", &manifest.saved_at);
  manifest.identity = IdentityFrom(fields.Object("identity"), &error);
  fields.Read("template_digest", &manifest.template_digest);
  fields.Read("numerics", &manifest.numerics);
  if (!fields.IsNull("proof")) fields.Read("proof", &manifest.proof.emplace());
  Fields journal(fields.Object("journal"), "journal: ", &error);
  journal.Read("bytes", &manifest.journal.bytes);
  journal.Read("chain", &manifest.journal.chain);
  for (const Json& value : fields.Array("branches")) manifest.branches.push_back(BranchFrom(value, &error));
  for (const Json& value : fields.Array("segments")) manifest.segments.push_back(SegmentFrom(value, &error));
  RETURN_IF_ERROR(error);
  return manifest;
}

// Depth and duplicate keys are refused while parsing: the library would take both.
absl::StatusOr<Json> ParseStrictly(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > limits::kMaxManifestDepth) problem = "nested too deeply";
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      problem = fmt::format("{}: given twice", parsed.get<std::string>());
    }
    return problem.empty();
  };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (!problem.empty()) return DataLoss("{}", problem);
  if (json.is_discarded()) return DataLoss("not JSON");
  return json;
}

// Where the digits of the self-digest stand, or npos.
size_t DigestPosition(std::string_view text) {
  const size_t tail = kTailBegin.size() + kHexDigits + kTailEnd.size();
  if (text.size() < tail || !text.ends_with(kTailEnd)) return std::string_view::npos;
  const size_t position = text.size() - kTailEnd.size() - kHexDigits;
  const std::string_view before = text.substr(0, position);
  return before.ends_with(kTailBegin) ? position : std::string_view::npos;
}

absl::StatusOr<SerializedManifest> Serialize(const Manifest& manifest) {
  RETURN_IF_ERROR(CheckManifest(manifest));
  SerializedManifest out;
  try {
    out.text = ToJson(manifest).dump(2) + "\n";
  } catch (const Json::exception& error) {
    return InvalidArgument("a text is not UTF-8 ({})", error.what());
  }
  if (out.text.size() > limits::kMaxManifestBytes) return InvalidArgument("{} bytes are too many", out.text.size());
  out.digest = DigestOf(out.text);
  out.text.replace(DigestPosition(out.text), kHexDigits, out.digest.Hex());
  return out;
}

absl::StatusOr<ParsedManifest> Parse(std::string_view text) {
  if (text.size() > limits::kMaxManifestBytes) return DataLoss("{} bytes are too many", text.size());
  const size_t position = DigestPosition(text);
  if (position == std::string_view::npos)
    return DataLoss("digest: it does not end with its digest, so it is cut or changed");
  const std::optional<Digest> stated = Digest::FromHex(text.substr(position, kHexDigits));
  std::string zeroed(text);
  zeroed.replace(position, kHexDigits, std::string(kHexDigits, '0'));
  if (!stated.has_value() || DigestOf(zeroed) != *stated) return DataLoss("digest: damaged, the self-digest differs");
  ASSIGN_OR_RETURN(const Json json, ParseStrictly(text));
  ASSIGN_OR_RETURN(Manifest manifest, FromJson(json));
  const absl::StatusOr<SerializedManifest> again = Serialize(manifest);
  if (!again.ok()) return DataLoss("{}", ToStd(again.status().message()));
  if (again->text != text) return DataLoss("it has fields or an order that are not the format's");
  return ParsedManifest{std::move(manifest), *stated};
}

}  // namespace

std::string ManifestSegment::Path() const {
  return folder.empty() ? file : JoinPath(folder, file);
}

uint64_t Manifest::TotalBytes() const {
  uint64_t bytes = 0;
  for (const ManifestSegment& segment : segments) bytes += segment.bytes;
  return bytes;
}

uint64_t Manifest::OwnBytes() const {
  uint64_t bytes = 0;
  for (const ManifestSegment& segment : segments) bytes += segment.folder.empty() ? segment.bytes : 0;
  return bytes;
}

absl::StatusOr<SerializedManifest> SerializeManifest(const Manifest& manifest) {
  absl::StatusOr<SerializedManifest> out = Serialize(manifest);
  if (!out.ok()) return Named(out.status());
  return out;
}

absl::StatusOr<ParsedManifest> ParseManifest(std::string_view text) {
  absl::StatusOr<ParsedManifest> out = Parse(text);
  if (!out.ok()) return Named(out.status());
  return out;
}

absl::StatusOr<ParsedManifest> ReadManifest(const std::string& folder) {
  absl::StatusOr<std::string> text = ReadWholeFile(JoinPath(folder, kManifestName), limits::kMaxManifestBytes);
  if (!text.ok()) {
    // Too long is damage, not a lack of space.
    if (absl::IsResourceExhausted(text.status())) return Named(DataLoss("{}", ToStd(text.status().message())));
    return Named(text.status());
  }
  return ParseManifest(*text);
}

absl::Status PublishManifest(const std::string& folder, const SerializedManifest& manifest, bool* visible) {
  const absl::Status status = WriteFileDurably(folder, kManifestName, manifest.text);
  *visible = status.ok();
  if (!status.ok()) {
    // The rename may have happened and only the folder's sync failed: ask the file itself.
    const absl::StatusOr<ParsedManifest> now = ReadManifest(folder);
    *visible = now.ok() && now->digest == manifest.digest;
  }
  return Named(status);
}

std::vector<std::string> StoredIdentityDifferences(const StoredIdentity& a, const StoredIdentity& b) {
  std::vector<std::string> differences;
  if (a.weights != b.weights) differences.emplace_back("weights");
  if (a.rope != b.rope) differences.emplace_back("rope");
  if (a.tokenizer != b.tokenizer) differences.emplace_back("tokenizer");
  if (a.kv_type != b.kv_type) differences.emplace_back("kv_type");
  if (a.arch != b.arch || a.architecture != b.architecture) differences.emplace_back("arch");
  if (a.format != b.format || a.page_tokens != b.page_tokens) differences.emplace_back("format");
  return differences;
}

}  // namespace layover
