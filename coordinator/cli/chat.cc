// chat: a conversation in the terminal. The server keeps the conversation's state under its id; the messages themselves
// are the client's to send again, so they are kept here and, with --history, in a file.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/server_call.h"
#include "coordinator/http/conversation_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> LoadHistory(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ordered_json::array();
  std::stringstream text;
  text << file.rdbuf();
  ordered_json messages = ordered_json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!messages.is_array()) return InvalidArgument("{}: expected a JSON array of messages", path);
  return messages;
}

absl::Status StoreHistory(const std::string& path, const ordered_json& messages) {
  return WriteFileDurably(std::string(DirName(path)), BaseName(path), ToText(messages) + "\n");
}

std::string NewConversationId() {
  std::random_device source;
  return fmt::format("chat-{:08x}", source());
}

struct Turn {
  std::string text;
  std::string error;  // an error event in mid-stream
  ordered_json timings;
};

// One event of the stream: prints the text it brings.
void TakeEvent(std::string_view data, Turn& turn) {
  const ordered_json event = ordered_json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return;  // [DONE]
  if (event.contains("error")) turn.error = event.at("error").value("message", "the server failed");
  if (event.contains("timings")) turn.timings = event.at("timings");
  if (!event.contains("choices") || event.at("choices").empty()) return;
  const ordered_json delta = event.at("choices").at(0).value("delta", ordered_json::object());
  if (!delta.contains("content") || !delta.at("content").is_string()) return;
  const auto piece = delta.at("content").get<std::string>();
  turn.text += piece;
  fmt::print("{}", piece);
  std::fflush(stdout);
}

class Chat {
 public:
  Chat(const ChatOptions& options, HttpClient client, ordered_json messages)
      : options_(options),
        client_(std::move(client)),
        messages_(std::move(messages)),
        id_(options.conversation.empty() ? NewConversationId() : options.conversation) {
    if (messages_.empty() && !options.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options.system}});
    }
  }

  // Lines from stdin, each a turn, up to /quit or the end.
  int Run() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal) fmt::print(stderr, "conversation {}; /quit or Ctrl-D ends\n", id_);
    std::string line;
    while (true) {
      if (terminal) fmt::print(stderr, "> ");
      if (!std::getline(std::cin, line) || line == "/quit") return kDone;
      if (line.empty()) continue;
      if (const int code = OneTurn(line); code != kDone && !terminal) return code;
    }
  }

 private:
  int OneTurn(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    ordered_json body = {{"messages", messages_}, {"stream", true}, {"conversation_id", id_}};
    if (options_.temperature >= 0) body["temperature"] = options_.temperature;
    if (options_.max_tokens >= 0) body["max_tokens"] = options_.max_tokens;
    Turn turn;
    const absl::StatusOr<HttpReply> reply =
        client_.Stream({"POST", "/v1/chat/completions", {}, ToText(body)}, [&turn](std::string_view data) {
          TakeEvent(data, turn);
          return true;
        });
    if (!turn.text.empty()) fmt::print("\n");
    if (!reply.ok() || ExitCodeOf(*reply) != kDone || !turn.error.empty()) {
      messages_.erase(messages_.size() - 1);  // the turn did not happen; it may be asked again
      if (!reply.ok()) return ReportError(reply.status(), false);
      return turn.error.empty() ? ReportError(*reply, false) : ReportError(Internal("{}", turn.error), false);
    }
    messages_.push_back({{"role", "assistant"}, {"content", turn.text}});
    if (isatty(STDERR_FILENO) != 0) ShowTimings(turn.timings);
    if (options_.history.empty()) return kDone;
    const absl::Status stored = StoreHistory(options_.history, messages_);
    return stored.ok() ? kDone : ReportError(stored, false);
  }

  static void ShowTimings(const ordered_json& timings) {
    if (!timings.is_object()) return;
    fmt::print(stderr, "[{} tokens, {:.1f}/s; of the prompt {} kept, {} read from disk, {} new]\n",
               timings.value("predicted_n", int64_t{0}), timings.value("predicted_per_second", 0.0),
               timings.value("cache_n", int64_t{0}), timings.value("restored_n", int64_t{0}),
               timings.value("recomputed_n", int64_t{0}) + timings.value("prompt_n", int64_t{0}));
  }

  const ChatOptions& options_;
  const HttpClient client_;
  ordered_json messages_;
  const std::string id_;
};

}  // namespace

int RunChat(const ChatOptions& options) {
  absl::StatusOr<HttpClient> client = ClientOf(options.client);
  if (!client.ok()) return ReportError(client.status(), false);
  absl::StatusOr<ordered_json> messages = ordered_json::array();
  if (!options.history.empty()) messages = LoadHistory(options.history);
  if (!messages.ok()) return ReportError(messages.status(), false);
  return Chat(options, *std::move(client), *std::move(messages)).Run();
}

}  // namespace layover
