// From a chat request to token ids: prepares the messages for the model's template, renders, encodes.
//
// What must stay true: text from users never becomes a control token, although a template sees one string. Every string
// of the request is guarded (control_guard.h) before rendering; control tokens are only those that the template wrote.
#ifndef LAYOVER_COORDINATOR_TEXT_CHAT_TEMPLATE_H_
#define LAYOVER_COORDINATOR_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/text/template_engine.h"
#include "coordinator/text/tokenizer.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

struct ChatRequest {
  const nlohmann::ordered_json* messages = nullptr;  // array of OpenAI messages (from ParseRequestJson)
  const nlohmann::ordered_json* tools = nullptr;     // array of OpenAI tools; null or empty: none
  const nlohmann::ordered_json* kwargs = nullptr;    // object, `chat_template_kwargs`: further variables; null: none
  bool add_generation_prompt = true;
  int64_t now_unix_s = 0;  // for templates that write the date; 0: the clock
};

struct RenderedChat {
  std::vector<int32_t> ids;
  std::string text;  // what the ids say, control tokens spelled out
  // Length of the common prefix of the ids with and without the generation prompt: what a later turn of the same chat
  // begins with. ids.size() where no generation prompt was asked for.
  int64_t prefix_ids_without_generation_prompt_n = 0;
};

class ChatPrompt {
 public:
  // `engine` and `tokenizer` outlive it. An empty template is allowed; rendering then says that the model has none.
  ChatPrompt(TemplateEngine* engine, const Tokenizer* tokenizer, std::string template_source);
  ~ChatPrompt();

  // InvalidArgument: the model has no template, a message is not of OpenAI's form (says which), the template refuses
  // it. Unavailable: no template helper. Thread-safe.
  absl::StatusOr<RenderedChat> RenderChat(const ChatRequest& request);
  // Only the text, as /apply-template shows it.
  absl::StatusOr<std::string> RenderText(const ChatRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_CHAT_TEMPLATE_H_
