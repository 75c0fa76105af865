#include "coordinator/text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include "common/status.h"
#include "coordinator/text/chat_messages.h"
#include "coordinator/text/control_guard.h"
#include "coordinator/text/request_json.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOwnVariables[] = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"};

bool IsNone(const Json* value) {
  return value == nullptr || value->is_null() || value->empty();
}

absl::Status CheckKwargs(const Json& kwargs) {
  if (!kwargs.is_object()) {
    return WithPart(InvalidArgument("chat_template_kwargs: not an object"), {.param = "chat_template_kwargs"});
  }
  for (const char* name : kOwnVariables) {
    if (kwargs.contains(name)) {
      return WithPart(InvalidArgument("chat_template_kwargs: may not set '{}'", name),
                      {.param = "chat_template_kwargs"});
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct ChatPrompt::Impl {
  Impl(TemplateEngine* engine_in, const Tokenizer* tokenizer_in, std::string source_in)
      : engine(engine_in),
        tokenizer(tokenizer_in),
        source(std::move(source_in)),
        guard(tokenizer_in->ControlTexts(), source) {}

  // A guarded request: everything that a render needs.
  struct Guarded {
    ControlGuard::Marker marker;
    Json variables;
    int64_t now_unix_s;  // one moment for all renders of a request
  };

  absl::StatusOr<TemplateAbilities> Abilities();
  absl::StatusOr<Guarded> GuardRequest(const ChatRequest& request);
  absl::StatusOr<std::string> Render(Guarded* guarded, bool add_generation_prompt);
  std::vector<int32_t> Encode(std::string_view rendered, const ControlGuard::Marker& marker) const;

  TemplateEngine* engine;
  const Tokenizer* tokenizer;
  std::string source;
  ControlGuard guard;
  std::mutex mutex;
  std::optional<TemplateAbilities> abilities;  // guarded by mutex; found out at the first request
};

absl::StatusOr<TemplateAbilities> ChatPrompt::Impl::Abilities() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!abilities.has_value()) {
    ASSIGN_OR_RETURN(abilities, ProbeTemplate(engine, source));
  }
  return *abilities;
}

absl::StatusOr<ChatPrompt::Impl::Guarded> ChatPrompt::Impl::GuardRequest(const ChatRequest& request) {
  if (source.empty()) {
    return InvalidArgument("this model has no chat template (tokenizer.chat_template); use /v1/completions");
  }
  if (request.messages == nullptr) {
    return WithPart(InvalidArgument("messages: missing"), {.param = "messages"});
  }
  ASSIGN_OR_RETURN(const TemplateAbilities found, Abilities());
  ASSIGN_OR_RETURN(const Json messages, PrepareMessages(*request.messages, found));
  if (!IsNone(request.tools)) RETURN_IF_ERROR(CheckTools(*request.tools));
  if (!IsNone(request.kwargs)) RETURN_IF_ERROR(CheckKwargs(*request.kwargs));

  const Json* const strings_of[] = {&messages, request.tools, request.kwargs};
  ASSIGN_OR_RETURN(const ControlGuard::Marker marker, guard.MarkerFor(strings_of));
  Guarded guarded{marker, Json::object(), request.now_unix_s != 0 ? request.now_unix_s : std::time(nullptr)};
  if (!IsNone(request.kwargs)) {
    ASSIGN_OR_RETURN(guarded.variables, marker.Guard(*request.kwargs));
  }
  ASSIGN_OR_RETURN(guarded.variables["messages"], marker.GuardMessages(messages));
  guarded.variables["tools"] = nullptr;
  if (!IsNone(request.tools)) {
    ASSIGN_OR_RETURN(guarded.variables["tools"], marker.Guard(*request.tools));
  }
  guarded.variables["bos_token"] = std::string(tokenizer->TokenText(tokenizer->bos_id()));
  guarded.variables["eos_token"] = std::string(tokenizer->TokenText(tokenizer->eos_id()));
  return guarded;
}

absl::StatusOr<std::string> ChatPrompt::Impl::Render(Guarded* guarded, bool add_generation_prompt) {
  guarded->variables["add_generation_prompt"] = add_generation_prompt;
  return engine->Render(source, DumpJson(guarded->variables), guarded->now_unix_s);
}

std::vector<int32_t> ChatPrompt::Impl::Encode(std::string_view rendered, const ControlGuard::Marker& marker) const {
  std::vector<int32_t> ids;
  std::string plain;
  // BPE sees the whole text between two control tokens as one, whoever wrote its parts.
  const auto encode_plain = [&] {
    const std::vector<int32_t> some =
        tokenizer->Encode(marker.Remove(plain), {.add_special = false, .parse_special = false});
    ids.insert(ids.end(), some.begin(), some.end());
    plain.clear();
  };
  for (const ControlSplit& part : tokenizer->SplitAtControlTokens(rendered)) {
    if (part.id < 0 || !ControlGuard::CanGuard(part.text)) {
      plain += part.text;
      continue;
    }
    encode_plain();
    ids.push_back(part.id);
  }
  encode_plain();
  const int32_t bos_id = tokenizer->bos_id();
  const bool has_bos = !ids.empty() && ids[0] == bos_id;
  if (tokenizer->add_bos() && bos_id >= 0 && !has_bos) ids.insert(ids.begin(), bos_id);
  return ids;
}

ChatPrompt::ChatPrompt(TemplateEngine* engine, const Tokenizer* tokenizer, std::string template_source)
    : impl_(std::make_unique<Impl>(engine, tokenizer, std::move(template_source))) {}
ChatPrompt::~ChatPrompt() = default;

absl::StatusOr<RenderedChat> ChatPrompt::RenderChat(const ChatRequest& request) {
  ASSIGN_OR_RETURN(Impl::Guarded guarded, impl_->GuardRequest(request));
  ASSIGN_OR_RETURN(const std::string rendered, impl_->Render(&guarded, request.add_generation_prompt));
  RenderedChat chat;
  chat.ids = impl_->Encode(rendered, guarded.marker);
  chat.text = guarded.marker.Remove(rendered);
  chat.prefix_ids_without_generation_prompt_n = static_cast<int64_t>(chat.ids.size());
  if (!request.add_generation_prompt) return chat;
  // A template that refuses to render without the generation prompt has no earlier point to come back to.
  const absl::StatusOr<std::string> without = impl_->Render(&guarded, false);
  if (absl::IsUnavailable(without.status())) return without.status();
  if (without.ok()) {
    const std::vector<int32_t> shorter = impl_->Encode(*without, guarded.marker);
    const auto end = std::mismatch(chat.ids.begin(), chat.ids.end(), shorter.begin(), shorter.end()).first;
    chat.prefix_ids_without_generation_prompt_n = end - chat.ids.begin();
  }
  return chat;
}

absl::StatusOr<std::string> ChatPrompt::RenderText(const ChatRequest& request) {
  ASSIGN_OR_RETURN(Impl::Guarded guarded, impl_->GuardRequest(request));
  ASSIGN_OR_RETURN(const std::string rendered, impl_->Render(&guarded, request.add_generation_prompt));
  return guarded.marker.Remove(rendered);
}

}  // namespace layover
