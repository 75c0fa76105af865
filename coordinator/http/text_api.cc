// POST /tokenize, /detokenize, /apply-template: what the model's tokenizer and template make of a text.
#include <utility>

#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/http/routes.h"
#include "coordinator/text/detokenizer.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

// A piece that is no whole text is given as its bytes.
ordered_json PieceJson(std::string_view bytes) {
  if (ToValidUtf8(bytes) == bytes) return bytes;
  ordered_json out = ordered_json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

absl::StatusOr<ordered_json> TokenizeText(const HttpParts& parts, const HttpCall& call) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(call.request->body));
  std::string content;
  EncodeOptions options{.add_special = false, .parse_special = true};
  bool with_pieces = false;
  if (!body.contains("content")) return BadField("content", "is missing");
  RETURN_IF_ERROR(ReadString(body, "content", &content));
  RETURN_IF_ERROR(ReadBool(body, "add_special", &options.add_special));
  RETURN_IF_ERROR(ReadBool(body, "parse_special", &options.parse_special));
  RETURN_IF_ERROR(ReadBool(body, "with_pieces", &with_pieces));
  const std::vector<int32_t> ids = parts.tokenizer->Encode(content, options);
  if (!with_pieces) return ordered_json{{"tokens", ids}};
  ordered_json tokens = ordered_json::array();
  for (const int32_t id : ids) {
    tokens.push_back({{"id", id}, {"piece", PieceJson(parts.tokenizer->TokenBytes(id, /*show_special=*/true))}});
  }
  return ordered_json{{"tokens", std::move(tokens)}};
}

absl::StatusOr<ordered_json> DetokenizeIds(const HttpParts& parts, const HttpCall& call) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(call.request->body));
  if (!body.contains("tokens")) return BadField("tokens", "is missing");
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   ReadTokenIds(body.at("tokens"), "tokens", parts.service->model().n_vocab));
  return ordered_json{{"content", Detokenize(*parts.tokenizer, ids, /*show_special=*/true)}};
}

absl::StatusOr<ordered_json> ApplyTemplate(const HttpParts& parts, const HttpCall& call) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(call.request->body));
  ASSIGN_OR_RETURN(const ChatFields chat, ReadChatFields(body));
  ChatRequest request;
  request.messages = chat.messages;
  request.tools = chat.tools;
  request.kwargs = chat.kwargs;
  RETURN_IF_ERROR(ReadBool(body, "add_generation_prompt", &request.add_generation_prompt));
  ASSIGN_OR_RETURN(const std::string prompt, parts.render_text(request));
  return ordered_json{{"prompt", prompt}};
}

using JsonHandler = absl::StatusOr<ordered_json> (*)(const HttpParts&, const HttpCall&);

void AddPost(const char* pattern, JsonHandler handler, const HttpParts& parts, Router& router) {
  router.Add({"POST", pattern, Access::kKey, Urgency::kNormal, [&parts, handler](const HttpCall& call) {
                const absl::StatusOr<ordered_json> answer = handler(parts, call);
                call.reply->Respond(answer.ok()
                                        ? HttpReply{200, {{"Content-Type", "application/json"}}, ToText(*answer)}
                                        : ErrorReply(answer.status()));
              }});
}

}  // namespace

void AddTextRoutes(const HttpParts& parts, Router& router) {
  AddPost("/tokenize", TokenizeText, parts, router);
  AddPost("/detokenize", DetokenizeIds, parts, router);
  AddPost("/apply-template", ApplyTemplate, parts, router);
}

}  // namespace layover
