#include "common/topology.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "common/limits.h"
#include "common/link_choice.h"
#include "common/status.h"
#include "common/yaml_map.h"

namespace layover {
namespace {

constexpr std::array<std::string_view, 4> kKvTypes = {"f32", "f16", "q8_0", "q4_0"};

// Plain decimal, no sign, no leading zero. Nothing if it is not that or does not fit.
std::optional<uint64_t> ParseDecimal(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(value, uint64_t{10}, &value)) return std::nullopt;
    if (__builtin_add_overflow(value, static_cast<uint64_t>(c - '0'), &value)) return std::nullopt;
  }
  return value;
}

bool IsPort(std::string_view text) {
  const std::optional<uint64_t> port = ParseDecimal(text);
  return port.has_value() && *port <= 65535;
}

// "HOST:PORT", an IPv6 address in brackets.
bool IsAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || !IsPort(text.substr(colon + 1))) return false;
  const std::string_view host = text.substr(0, colon);
  if (host.front() == '[') return host.size() > 2 && host.back() == ']';
  return host.find_first_of(":/ []") == std::string_view::npos;
}

bool IsDevice(std::string_view text) {
  if (text == "cpu") return true;
  for (const std::string_view kind : {"cuda:", "emu:"}) {
    if (!text.starts_with(kind)) continue;
    const std::optional<uint64_t> number = ParseDecimal(text.substr(kind.size()));
    return number.has_value() && *number <= limits::kMaxDeviceNumber;
  }
  return false;
}

bool IsConversationId(std::string_view id) {
  return !id.empty() && id.size() <= static_cast<size_t>(limits::kMaxConversationIdBytes) &&
         std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

class TopologyReader {
 public:
  explicit TopologyReader(const std::string& file) : file_(file) { topology_.file = file; }

  absl::StatusOr<Topology> Read(std::string_view text) {
    ASSIGN_OR_RETURN(const YamlMap root, YamlMap::Parse(text, file_, "the topology",
                                                        {"model", "context", "kv_type", "sessions", "chunk",
                                                         "deterministic", "stages", "store", "park", "server"}));
    RETURN_IF_ERROR(ReadModel(root));
    if (!root.Has("stages")) return InvalidArgument("{}:1: 'stages' is missing: a list of one or more stages", file_);
    RETURN_IF_ERROR(ReadStages(root));
    if (root.Has("store")) RETURN_IF_ERROR(ReadStore(root.Get("store")));
    if (root.Has("park")) RETURN_IF_ERROR(ReadPark(root.Get("park")));
    if (root.Has("server")) RETURN_IF_ERROR(ReadServer(root.Get("server")));
    const bool all_cpu = std::all_of(topology_.stages.begin(), topology_.stages.end(),
                                     [](const StageSettings& stage) { return stage.device == "cpu"; });
    topology_.deterministic = false;
    RETURN_IF_ERROR(root.Bool("deterministic", &topology_.deterministic));
    topology_.deterministic |= all_cpu;
    return std::move(topology_);
  }

 private:
  // As given if something is there, else beside the topology file if something is there, else as given.
  std::string FindPath(const std::string& path) const {
    std::error_code ignored;
    if (path.empty() || std::filesystem::exists(path, ignored)) return path;
    const std::filesystem::path beside = std::filesystem::path(file_).parent_path() / path;
    return std::filesystem::exists(beside, ignored) ? beside.string() : path;
  }

  absl::Status ReadModel(const YamlMap& root) {
    if (!root.Has("model")) return InvalidArgument("{}:1: 'model' is missing: the path of a GGUF file", file_);
    RETURN_IF_ERROR(root.String("model", &topology_.model));
    topology_.model = FindPath(topology_.model);
    RETURN_IF_ERROR(root.Int("context", 1, limits::kMaxContextTokens, &topology_.context));
    RETURN_IF_ERROR(root.Int("sessions", 1, limits::kMaxSessions, &topology_.sessions));
    RETURN_IF_ERROR(root.Int("chunk", limits::kPageTokens, limits::kMaxChunkTokens, &topology_.chunk));
    if (topology_.chunk % limits::kPageTokens != 0) {
      return root.Error("chunk", "{} is no multiple of {}", topology_.chunk, limits::kPageTokens);
    }
    RETURN_IF_ERROR(root.String("kv_type", &topology_.kv_type));
    if (std::find(kKvTypes.begin(), kKvTypes.end(), topology_.kv_type) == kKvTypes.end()) {
      return root.Error("kv_type", "'{}' is not one of f32, f16, q8_0, q4_0", topology_.kv_type.substr(0, 40));
    }
    return absl::OkStatus();
  }

  absl::Status ReadStages(const YamlMap& root) {
    const YAML::Node list = root.Get("stages");
    if (!list.IsSequence() || list.size() == 0 || list.size() > static_cast<size_t>(limits::kMaxStages)) {
      return root.Error("stages", "must be a list of 1 to {} stages", limits::kMaxStages);
    }
    for (const YAML::Node& node : list) RETURN_IF_ERROR(ReadStage(node));
    RETURN_IF_ERROR(CheckLayers());
    RETURN_IF_ERROR(CheckHosts());
    return CheckLinks();
  }

  absl::Status ReadStage(const YAML::Node& node) {
    const std::string what = fmt::format("stage {}", topology_.stages.size());
    ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Make(node, file_, what,
                                                      {"device", "threads", "layers", "link", "host", "public_key_file",
                                                       "secret_key_file"}));
    StageSettings stage;
    stage.line = map.line();
    if (!map.Has("device")) return InvalidArgument("{}:{}: {} has no 'device'", file_, stage.line, what);
    RETURN_IF_ERROR(map.String("device", &stage.device));
    if (!IsDevice(stage.device)) {
      return map.Error("device", "'{}' is not cpu, cuda:N or emu:N (N from 0 to {})", stage.device.substr(0, 40),
                       limits::kMaxDeviceNumber);
    }
    RETURN_IF_ERROR(map.Int("threads", 1, limits::kMaxThreadsPerStage, &stage.threads));
    RETURN_IF_ERROR(ReadLayers(map, &stage));
    RETURN_IF_ERROR(ReadLink(map, &stage));
    RETURN_IF_ERROR(ReadHost(map, &stage));
    topology_.stages.push_back(std::move(stage));
    return absl::OkStatus();
  }

  static absl::Status ReadLayers(const YamlMap& map, StageSettings* stage) {
    if (!map.Has("layers")) return absl::OkStatus();
    std::string text;
    RETURN_IF_ERROR(map.String("layers", &text));
    const size_t dash = text.find('-');
    const std::optional<uint64_t> first = ParseDecimal(std::string_view(text).substr(0, dash));
    const std::optional<uint64_t> last =
        dash == std::string::npos ? std::nullopt : ParseDecimal(std::string_view(text).substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *first > *last ||
        *last >= static_cast<uint64_t>(limits::kMaxLayers)) {
      return map.Error("layers", "'{}' is not FIRST-LAST, both inclusive, up to {}", text.substr(0, 40),
                       limits::kMaxLayers - 1);
    }
    stage->layers = LayerRange{static_cast<int>(*first), static_cast<int>(*last) + 1};
    return absl::OkStatus();
  }

  static absl::Status ReadLink(const YamlMap& map, StageSettings* stage) {
    if (!map.Has("link")) return absl::OkStatus();
    std::string text;
    RETURN_IF_ERROR(map.String("link", &text));
    for (const LinkKind kind : {LinkKind::kZmq, LinkKind::kShm, LinkKind::kNccl}) {
      if (text == LinkKindName(kind)) stage->link = kind;
    }
    if (stage->link != LinkKind::kAuto) return absl::OkStatus();
    return map.Error("link", "'{}' is not one of zmq, shm, nccl", text.substr(0, 40));
  }

  absl::Status ReadHost(const YamlMap& map, StageSettings* stage) const {
    RETURN_IF_ERROR(map.String("host", &stage->host));
    RETURN_IF_ERROR(map.String("public_key_file", &stage->public_key_file));
    RETURN_IF_ERROR(map.String("secret_key_file", &stage->secret_key_file));
    constexpr std::string_view kScheme = "tcp://";
    if (map.Has("host") &&
        (!stage->host.starts_with(kScheme) || !IsAddress(std::string_view(stage->host).substr(kScheme.size())))) {
      return map.Error("host", "'{}' is not tcp://HOST:PORT", stage->host.substr(0, 80));
    }
    constexpr uint64_t kMostPort = 65'535 - (limits::kRemotePorts - 1);
    if (map.Has("host") && ParseDecimal(std::string_view(stage->host).substr(stage->host.rfind(':') + 1)).value_or(0) - 1 >= kMostPort) {
      return map.Error("host", "the port of '{}' must be 1 to {}: the four after it are used too", stage->host.substr(0, 80), kMostPort);
    }
    if (map.Has("public_key_file") != map.Has("secret_key_file")) {
      return map.Error(map.Has("public_key_file") ? "public_key_file" : "secret_key_file",
                       "public_key_file and secret_key_file stand together or not at all");
    }
    if (map.Has("public_key_file") && !map.Has("host")) {
      return map.Error("public_key_file", "keys are for a stage with a host");
    }
    stage->public_key_file = FindPath(stage->public_key_file);
    stage->secret_key_file = FindPath(stage->secret_key_file);
    return absl::OkStatus();
  }

  absl::Status CheckLayers() const {
    int expected = 0;
    for (size_t i = 0; i < topology_.stages.size(); ++i) {
      const StageSettings& stage = topology_.stages[i];
      if (stage.layers.has_value() != topology_.stages[0].layers.has_value()) {
        return InvalidArgument("{}:{}: stage {}: 'layers' stands on every stage or on none", file_, stage.line, i);
      }
      if (!stage.layers.has_value()) continue;
      if (stage.layers->begin != expected) {
        return InvalidArgument("{}:{}: stage {}: layers begin at {}, they must go on at {}", file_, stage.line, i,
                               stage.layers->begin, expected);
      }
      expected = stage.layers->end;
    }
    return absl::OkStatus();
  }

  absl::Status CheckHosts() const {
    for (size_t i = 0; i < topology_.stages.size(); ++i) {
      for (size_t j = 0; j < i && !topology_.stages[i].host.empty(); ++j) {
        if (topology_.stages[i].host != topology_.stages[j].host) continue;
        return InvalidArgument("{}:{}: stage {}: {} is stage {} already; each needs a worker of its own", file_,
                               topology_.stages[i].line, i, topology_.stages[i].host, j);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLinks() const {
    for (size_t i = 1; i < topology_.stages.size(); ++i) RETURN_IF_ERROR(ChooseLink(topology_, i).status());
    return absl::OkStatus();
  }

  static absl::Status ReadBytes(const YamlMap& map, std::string_view key, uint64_t* value) {
    if (!map.Has(key)) return absl::OkStatus();
    std::string text;
    RETURN_IF_ERROR(map.String(key, &text));
    const std::optional<uint64_t> bytes = ParseBytes(text);
    if (!bytes.has_value()) {
      return map.Error(key, "'{}' is not a size: a whole number, alone or with KiB, MiB, GiB or TiB",
                       text.substr(0, 40));
    }
    *value = *bytes;
    return absl::OkStatus();
  }

  absl::Status ReadStore(const YAML::Node& node) {
    ASSIGN_OR_RETURN(const YamlMap map,
                     YamlMap::Make(node, file_, "store", {"dir", "budget", "ttl", "min_free", "save", "pin", "prove"}));
    StoreSettings store;
    if (!map.Has("dir")) return InvalidArgument("{}:{}: store has no 'dir'", file_, map.line());
    RETURN_IF_ERROR(map.String("dir", &store.dir));
    RETURN_IF_ERROR(ReadBytes(map, "budget", &store.budget_bytes));
    RETURN_IF_ERROR(ReadBytes(map, "min_free", &store.min_free_bytes));
    if (map.Has("ttl")) {
      std::string text;
      RETURN_IF_ERROR(map.String("ttl", &text));
      const std::optional<int64_t> seconds = ParseSeconds(text);
      if (!seconds.has_value()) return map.Error("ttl", "'{}' is not a time like 30s, 10m or 720h", text.substr(0, 40));
      store.ttl_seconds = *seconds;
    }
    RETURN_IF_ERROR(ReadSavePolicy(map, &store.save));
    RETURN_IF_ERROR(map.Strings("pin", &store.pin));
    for (const std::string& id : store.pin) {
      if (!IsConversationId(id)) {
        return map.Error("pin", "an id has 1 to {} printable ASCII characters", limits::kMaxConversationIdBytes);
      }
    }
    RETURN_IF_ERROR(map.Bool("prove", &store.prove));
    topology_.store = std::move(store);
    return absl::OkStatus();
  }

  static absl::Status ReadSavePolicy(const YamlMap& map, SavePolicy* policy) {
    if (!map.Has("save")) return absl::OkStatus();
    std::string text;
    RETURN_IF_ERROR(map.String("save", &text));
    for (const SavePolicy candidate :
         {SavePolicy::kManual, SavePolicy::kShutdown, SavePolicy::kEvict, SavePolicy::kTurn}) {
      if (text != SavePolicyName(candidate)) continue;
      *policy = candidate;
      return absl::OkStatus();
    }
    return map.Error("save", "'{}' is not one of turn, evict, shutdown, manual", text.substr(0, 40));
  }

  absl::Status ReadPark(const YAML::Node& node) {
    ASSIGN_OR_RETURN(const YamlMap map, YamlMap::Make(node, file_, "park", {"ram_budget"}));
    return ReadBytes(map, "ram_budget", &topology_.park.ram_budget_bytes);
  }

  absl::Status ReadServer(const YAML::Node& node) {
    ASSIGN_OR_RETURN(const YamlMap map,
                     YamlMap::Make(node, file_, "server", {"listen", "keys_file", "allow_origins", "allow_hosts"}));
    ServerSettings& server = topology_.server;
    RETURN_IF_ERROR(map.String("listen", &server.listen));
    if (!IsAddress(server.listen)) {
      return map.Error("listen", "'{}' is not HOST:PORT (an IPv6 address in brackets)", server.listen.substr(0, 80));
    }
    RETURN_IF_ERROR(map.String("keys_file", &server.keys_file));
    server.keys_file = FindPath(server.keys_file);
    RETURN_IF_ERROR(map.Strings("allow_origins", &server.allow_origins));
    return map.Strings("allow_hosts", &server.allow_hosts);
  }

  const std::string& file_;
  Topology topology_;
};

}  // namespace

absl::StatusOr<Topology> LoadTopology(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("open {}", path));
  if (!regular) return InvalidArgument("{}:1: not a regular file", path);
  std::ifstream stream(path, std::ios::binary);
  std::string text(limits::kMaxTopologyBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream && !stream.eof()) return ErrnoStatus(EACCES, fmt::format("read {}", path));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > limits::kMaxTopologyBytes) {
    return InvalidArgument("{}:1: larger than {} bytes", path, limits::kMaxTopologyBytes);
  }
  return ParseTopology(text, path);
}

absl::StatusOr<Topology> ParseTopology(std::string_view text, const std::string& file) {
  return TopologyReader(file).Read(text);
}

std::string_view SavePolicyName(SavePolicy policy) {
  switch (policy) {
    case SavePolicy::kManual:
      return "manual";
    case SavePolicy::kShutdown:
      return "shutdown";
    case SavePolicy::kEvict:
      return "evict";
    case SavePolicy::kTurn:
      return "turn";
  }
  return "";
}

std::string_view LinkKindName(LinkKind kind) {
  switch (kind) {
    case LinkKind::kAuto:
      return "auto";
    case LinkKind::kZmq:
      return "zmq";
    case LinkKind::kShm:
      return "shm";
    case LinkKind::kNccl:
      return "nccl";
  }
  return "";
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  uint64_t unit = 1;
  for (const auto& [suffix, bytes] : {std::pair<std::string_view, uint64_t>{"KiB", limits::kKiB},
                                      {"MiB", limits::kMiB},
                                      {"GiB", limits::kGiB},
                                      {"TiB", 1024 * limits::kGiB}}) {
    if (!text.ends_with(suffix)) continue;
    unit = bytes;
    text.remove_suffix(suffix.size());
    break;
  }
  const std::optional<uint64_t> count = ParseDecimal(text);
  uint64_t bytes = 0;
  if (!count.has_value() || __builtin_mul_overflow(*count, unit, &bytes)) return std::nullopt;
  return bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? std::optional(bytes) : std::nullopt;
}

std::optional<int64_t> ParseSeconds(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const char unit = text.back();
  const int64_t seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  const std::optional<uint64_t> count = ParseDecimal(text.substr(0, text.size() - 1));
  constexpr uint64_t kLargestCount = 1'000'000'000;  // far beyond any use, and no product overflows
  if (seconds == 0 || !count.has_value() || *count > kLargestCount) return std::nullopt;
  return static_cast<int64_t>(*count) * seconds;
}

}  // namespace layover
