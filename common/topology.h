// The topology: what to run and on which stages. One YAML file becomes one validated struct; every default stands in
// this header and nowhere else. Errors read `FILE:LINE: what is wrong, what is allowed`; unknown and duplicate keys are
// errors.
//
// Paths: `model`, `keys_file`, `public_key_file` and `secret_key_file` are taken relative to the working directory if
// something is there, else relative to the topology file's folder. `store.dir` is relative to the working directory.
#ifndef LAYOVER_COMMON_TOPOLOGY_H_
#define LAYOVER_COMMON_TOPOLOGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/limits.h"

namespace layover {

// Layers [begin, end).
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

enum class LinkKind : uint8_t { kAuto, kZmq, kShm, kNccl };

// Each policy includes those before it.
enum class SavePolicy : uint8_t { kManual, kShutdown, kEvict, kTurn };

struct StageSettings {
  std::string device;                // "cpu", "cuda:N", "emu:N"
  int threads = 1;                   // of a CPU stage
  std::optional<LayerRange> layers;  // given on every stage or on none (then MakePlan chooses)
  LinkKind link = LinkKind::kAuto;   // of the hop from the stage before into this one
  std::string host;                  // "tcp://10.0.0.7:7001" of a remote stage, else empty
  std::string public_key_file;       // CURVE; both or none
  std::string secret_key_file;
  int line = 0;  // in the file, for messages
};

struct StoreSettings {
  std::string dir;
  uint64_t budget_bytes = 32 * limits::kGiB;
  int64_t ttl_seconds = 720 * 3600;
  uint64_t min_free_bytes = 4 * limits::kGiB;
  SavePolicy save = SavePolicy::kShutdown;
  std::vector<std::string> pin;  // conversation ids
  bool prove = false;
};

struct ParkSettings {
  uint64_t ram_budget_bytes = 8 * limits::kGiB;
};

struct ServerSettings {
  std::string listen = "127.0.0.1:8080";  // HOST:PORT, "[::1]:8080"; port 0: any free one
  std::string keys_file;                  // empty: no keys
  std::vector<std::string> allow_origins;
  std::vector<std::string> allow_hosts;
};

struct Topology {
  std::string file;                         // where it was read from, for messages
  std::string model;                        // path to open
  int context = 4096;                       // tokens per conversation
  std::string kv_type = "f16";              // f32 | f16 | q8_0 | q4_0
  int sessions = 8;                         // live at once
  int chunk = limits::kDefaultChunkTokens;  // most prompt tokens of one request in a step; a multiple of 64
  bool deterministic = true;  // default: true when all stages are CPUs (where it always holds), else false
  std::vector<StageSettings> stages;
  std::optional<StoreSettings> store;  // absent: nothing is saved and nothing journalled
  ParkSettings park;
  ServerSettings server;
};

absl::StatusOr<Topology> LoadTopology(const std::string& path);
// `file` stands in messages, and its folder is where paths are looked up second.
absl::StatusOr<Topology> ParseTopology(std::string_view text, const std::string& file);

std::string_view SavePolicyName(SavePolicy policy);  // "shutdown"
std::string_view LinkKindName(LinkKind kind);        // "zmq"

// "512", "4KiB" .. "16TiB" to bytes; "30s", "10m", "720h" to seconds. Nothing if it is neither or does not fit.
std::optional<uint64_t> ParseBytes(std::string_view text);
std::optional<int64_t> ParseSeconds(std::string_view text);

}  // namespace layover

#endif  // LAYOVER_COMMON_TOPOLOGY_H_
