// POST /v1/chat/completions and /v1/completions: everything that can be wrong with a request is found here, before the
// engine hears of it and before a byte of the reply is out.
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include "common/status.h"
#include "coordinator/http/completion_stream.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/http/routes.h"
#include "coordinator/text/request_json.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

struct Prepared {
  CompletionFields fields;
  GenerationRequest generation;
};

// Joins a client that may go away at any moment with a generation whose id is known only once it has begun.
class CancelTicket {
 public:
  explicit CancelTicket(Service* service) : service_(service) {}

  void Started(GenerationId id) {
    std::lock_guard lock(mutex_);
    id_ = id;
    if (gone_) service_->CancelGeneration(id);
  }
  void Gone() {
    std::lock_guard lock(mutex_);
    gone_ = true;
    if (id_.has_value()) service_->CancelGeneration(*id_);
  }

 private:
  Service* const service_;
  std::mutex mutex_;
  std::optional<GenerationId> id_;
  bool gone_ = false;
};

// The text of the last user message, for the journal.
std::string LastUserText(const ordered_json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (!message->contains("role") || message->at("role") != "user" || !message->contains("content")) continue;
    const ordered_json& content = message->at("content");
    if (content.is_string()) return content.get<std::string>();
    std::string joined;
    if (!content.is_array()) return joined;
    for (const ordered_json& part : content) {
      if (!joined.empty()) joined += '\n';
      joined += part.at("text").get<std::string>();
    }
    return joined;
  }
  return "";
}

absl::Status PrepareChat(const HttpParts& parts, const ordered_json& body, GenerationRequest& generation) {
  ASSIGN_OR_RETURN(const ChatFields chat, ReadChatFields(body));
  ChatRequest request;
  request.messages = chat.messages;
  request.tools = chat.tools;
  request.kwargs = chat.kwargs;
  // A date that the template writes stays that of the conversation's beginning.
  const std::string& id = generation.conversation_id;
  const int64_t began = id.empty() ? 0 : parts.service->BeganAt(generation.owner, id);
  request.now_unix_s = began != 0 ? began : std::time(nullptr);
  generation.now_unix_s = request.now_unix_s;
  absl::StatusOr<RenderedChat> rendered = parts.render_chat(request);
  if (!rendered.ok()) {
    if (!absl::IsInvalidArgument(rendered.status()) || PartOf(rendered.status()).has_value()) return rendered.status();
    return WithPart(rendered.status(), {.param = "messages"});
  }
  generation.prompt = std::move(rendered->ids);
  generation.is_rendered = true;
  generation.history_n = rendered->prefix_ids_without_generation_prompt_n;
  generation.raw_text = LastUserText(*chat.messages);
  generation.message_digest = DigestOf(DumpJson(*chat.messages));
  return absl::OkStatus();
}

absl::Status PrepareText(const HttpParts& parts, const ordered_json& body, const FieldBounds& bounds,
                         GenerationRequest& generation) {
  ASSIGN_OR_RETURN(TextPrompt text, ReadTextPrompt(body, bounds));
  if (auto* ids = std::get_if<std::vector<int32_t>>(&text.prompt)) {
    generation.prompt = std::move(*ids);
    generation.message_digest = DigestOfTokens(generation.prompt);
    return absl::OkStatus();
  }
  generation.raw_text = std::get<std::string>(std::move(text.prompt));
  generation.message_digest = DigestOf(generation.raw_text);
  generation.prompt =
      parts.tokenizer->Encode(generation.raw_text, {.add_special = true, .parse_special = text.parse_special});
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Prepare(const HttpParts& parts, CompletionKind kind, const HttpCall& call) {
  const ServedModel& model = parts.service->model();
  const FieldBounds bounds{model.n_vocab, model.sessions};
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(call.request->body));
  Prepared out;
  ASSIGN_OR_RETURN(out.fields, ReadCompletionFields(body, kind, bounds));
  GenerationRequest& generation = out.generation;
  generation.owner = call.owner;
  ASSIGN_OR_RETURN(generation.conversation_id, ConversationIdOf(*call.request, out.fields.conversation_id));
  RETURN_IF_ERROR(kind == CompletionKind::kChat ? PrepareChat(parts, body, generation)
                                                : PrepareText(parts, body, bounds, generation));
  const auto n_prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  if (n_prompt_tokens == 0) return BadField(kind == CompletionKind::kChat ? "messages" : "prompt", "no token in it");
  if (n_prompt_tokens >= model.context) return ContextOverflow(n_prompt_tokens, model.context);
  generation.sampler = out.fields.sampler;
  if (out.fields.ignore_eos) {
    const auto eog = parts.tokenizer->EogIds();
    generation.sampler.banned.insert(generation.sampler.banned.end(), eog.begin(), eog.end());
  }
  generation.max_tokens = out.fields.max_tokens;
  generation.ignore_eos = out.fields.ignore_eos;
  generation.cache_prompt = out.fields.cache_prompt;
  generation.top_logprobs = out.fields.top_logprobs;
  generation.row_digests = out.fields.return_row_digests;
  generation.id_slot = out.fields.id_slot;
  return out;
}

void Complete(const HttpParts& parts, CompletionKind kind, const HttpCall& call) {
  CompletionReplyOptions options;
  options.arrival = std::chrono::steady_clock::now();
  absl::StatusOr<Prepared> prepared = Prepare(parts, kind, call);
  if (!prepared.ok()) return call.reply->Respond(ErrorReply(prepared.status()));
  options.kind = kind;
  options.model = parts.service->model().id;
  options.fields = std::move(prepared->fields);
  options.tokenizer = parts.tokenizer;
  options.metrics = parts.metrics;
  const auto ticket = std::make_shared<CancelTicket>(parts.service);
  call.reply->OnGone([ticket] { ticket->Gone(); });
  ticket->Started(
      parts.service->Generate(std::move(prepared->generation), MakeCompletionReply(std::move(options), call.reply)));
}

}  // namespace

void AddCompletionRoutes(const HttpParts& parts, Router& router) {
  const auto add = [&](const char* pattern, CompletionKind kind) {
    router.Add({"POST", pattern, Access::kKey, Urgency::kNormal,
                [&parts, kind](const HttpCall& call) { Complete(parts, kind, call); }});
  };
  add("/v1/chat/completions", CompletionKind::kChat);
  add("/chat/completions", CompletionKind::kChat);
  add("/v1/completions", CompletionKind::kText);
  add("/completions", CompletionKind::kText);
}

}  // namespace layover
