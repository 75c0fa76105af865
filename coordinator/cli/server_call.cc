#include "coordinator/cli/server_call.h"

#include <ctime>

#include "coordinator/cli/exit_code.h"
#include "coordinator/http/conversation_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

std::string TimeText(int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  return {text, strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local)};
}

// A member of whatever kind, as text; "-" where there is none.
std::string Member(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "-";
  return found->is_string() ? found->get<std::string>() : ToText(*found);
}

int64_t Number(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<int64_t>() : 0;
}

// What only `show` has; null where it is missing or null.
const ordered_json* Detail(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// "[1 2 3]"
std::string Numbers(const ordered_json& object, const char* key) {
  std::string out;
  if (const ordered_json* list = Detail(object, key); list != nullptr) {
    for (const ordered_json& number : *list) out += (out.empty() ? "" : " ") + ToText(number);
  }
  return "[" + out + "]";
}

void ShowLine(std::string_view key, std::string_view value) {
  fmt::print("{:<15} {}\n", key, value);
}

std::string BranchText(const ordered_json& branch) {
  const int64_t fork = Number(branch, "fork_position");
  return fmt::format("{} tokens{}, {} saved, {}, checkpoints {}", Number(branch, "n_tokens"),
                     fork > 0 ? fmt::format(" ({} shared)", fork) : "", Number(branch, "saved_n_tokens"),
                     Member(branch, "state"), Numbers(branch, "checkpoints"));
}

}  // namespace

absl::StatusOr<HttpClient> ClientOf(const ClientOptions& options) {
  return HttpClient::Create({.url = options.server, .api_key = options.api_key});
}

std::string ConversationTarget(const std::string& id, std::string_view verb) {
  return fmt::format("/v1/kv/conversations/{}{}{}", PercentEncode(id), verb.empty() ? "" : "/", verb);
}

int CallServer(const ClientOptions& options, const HttpClient::Request& request, ShowJson show) {
  const absl::StatusOr<HttpClient> client = ClientOf(options);
  if (!client.ok()) return ReportError(client.status(), options.json);
  const absl::StatusOr<HttpReply> reply = client->Send(request);
  if (!reply.ok()) return ReportError(reply.status(), options.json);
  if (ExitCodeOf(*reply) != kDone) return ReportError(*reply, options.json);
  if (options.json) {
    fmt::print("{}\n", reply->body);
    return kDone;
  }
  const ordered_json body = ordered_json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return ReportError(absl::InternalError("the server's reply is not JSON"), options.json);
  show(body);
  return kDone;
}

std::string BytesText(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void ShowConversationList(const ordered_json& list) {
  fmt::print("{:<32} {:<9} {:>8} {:>8} {:>4} {:>10}  {}\n", "ID", "STATE", "TOKENS", "SAVED", "GEN", "DISK",
             "LAST USED");
  for (const ordered_json& one : list.at("data")) {
    fmt::print("{:<32} {:<9} {:>8} {:>8} {:>4} {:>10}  {}\n", Member(one, "id"), Member(one, "state"),
               Member(one, "n_tokens"), Member(one, "saved_n_tokens"), Member(one, "generation"),
               BytesText(Number(one, "bytes_disk")), TimeText(Number(one, "last_used_at")));
  }
}

void ShowConversation(const ordered_json& one) {
  for (const char* key :
       {"id", "state", "n_tokens", "saved_n_tokens", "generation", "branches", "pinned", "identity", "last_error"}) {
    ShowLine(key, Member(one, key));
  }
  for (const char* key : {"bytes_device", "bytes_host", "bytes_disk"}) ShowLine(key, BytesText(Number(one, key)));
  for (const char* key : {"created_at", "last_used_at"}) ShowLine(key, TimeText(Number(one, key)));
  if (const ordered_json* save = Detail(one, "last_save"); save != nullptr) {
    ShowLine("last_save", fmt::format("{} written, {} kept", BytesText(Number(*save, "bytes_written")),
                                      BytesText(Number(*save, "bytes_kept"))));
  }
  if (const ordered_json* divergence = Detail(one, "divergence"); divergence != nullptr) {
    ShowLine("divergence", fmt::format("diverges at {}: had {}, got {}", Number(*divergence, "position"),
                                       Numbers(*divergence, "had"), Numbers(*divergence, "got")));
  }
  if (const ordered_json* branches = Detail(one, "branch_list"); branches != nullptr) {
    for (const ordered_json& branch : *branches) ShowLine("branch", BranchText(branch));
  }
  if (const ordered_json* segments = Detail(one, "segments"); segments != nullptr) {
    for (const ordered_json& segment : *segments) {
      ShowLine("segment", fmt::format("{}  stage {}  layers {}  {}, {} in use", Member(segment, "file"),
                                      Member(segment, "stage"), Member(segment, "layers"),
                                      BytesText(Number(segment, "bytes")), BytesText(Number(segment, "live_bytes"))));
    }
  }
}

void ShowVerification(const ordered_json& verification) {
  for (const ordered_json& one : verification.at("conversations")) {
    fmt::print("{}: {} (generation {}, {} records, {})\n", Member(one, "id"), one.at("ok") == true ? "ok" : "DAMAGED",
               Member(one, "generation"), Member(one, "n_records"), BytesText(Number(one, "bytes")));
    for (const ordered_json& problem : one.at("problems")) {
      fmt::print("  {} (stage {}, layer {}): {}\n", Member(problem, "file"), Member(problem, "stage"),
                 Member(problem, "layer"), Member(problem, "what"));
    }
  }
}

void ShowParked(const ordered_json& result) {
  fmt::print("parked {}: {} in host memory\n", Member(result, "id"), BytesText(Number(result, "bytes_host")));
}

void ShowRewound(const ordered_json& result) {
  fmt::print("rewound {}: {} tokens\n", Member(result, "id"), Member(result, "n_tokens"));
}

void ShowSaved(const ordered_json& result) {
  fmt::print("saved {}: generation {}, {} tokens, {} written, {} kept, {} ms\n", Member(result, "id"),
             Member(result, "generation"), Member(result, "n_tokens"), BytesText(Number(result, "bytes_written")),
             BytesText(Number(result, "bytes_kept")), Member(result, "ms"));
}

void ShowRestored(const ordered_json& result) {
  fmt::print("restored {}: generation {}, {} tokens, {} read, {} ms\n", Member(result, "id"),
             Member(result, "generation"), Member(result, "n_tokens"), BytesText(Number(result, "bytes_read")),
             Member(result, "ms"));
  if (Member(result, "proof") != "-") fmt::print("proof: {}\n", Member(result, "proof"));
  const auto warnings = result.find("warnings");
  if (warnings == result.end()) return;
  for (const ordered_json& warning : *warnings)
    fmt::print(stderr, "layover: warning: {}\n", warning.get<std::string>());
}

}  // namespace layover
