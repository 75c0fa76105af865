// OpenAI's messages and tools, checked and brought into the form that the model's template reads.
#ifndef LAYOVER_COORDINATOR_TEXT_CHAT_MESSAGES_H_
#define LAYOVER_COORDINATOR_TEXT_CHAT_MESSAGES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/text/template_engine.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// What a template can read, found out by rendering small conversations with it.
struct TemplateAbilities {
  bool takes_string_content = true;
  bool takes_content_parts = false;  // arrays of {type: text, text}
  bool takes_raw_arguments = false;  // tool call arguments as the JSON string that OpenAI's interface has
  bool knows_developer = false;      // the role; else it is called system
  std::string reasoning_key;         // under which it reads an earlier answer's reasoning; empty: it reads none
};

// Unavailable: no template helper. A template that fails in a probe just lacks that ability.
absl::StatusOr<TemplateAbilities> ProbeTemplate(TemplateEngine* engine, const std::string& template_source);

// A checked copy: content is a string or an array of text parts as the template wants it (null and absent are ""),
// roles are of the known ones, tool call arguments a string or the object parsed from it, keys in order. Reasoning sent
// as reasoning_content, reasoning or thinking stands under the key that the template reads as well.
// InvalidArgument names the message: "messages[2].content: ...".
absl::StatusOr<nlohmann::ordered_json> PrepareMessages(const nlohmann::ordered_json& messages,
                                                       const TemplateAbilities& abilities);

// InvalidArgument unless an array of {type: "function", function: {name}}.
absl::Status CheckTools(const nlohmann::ordered_json& tools);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_CHAT_MESSAGES_H_
