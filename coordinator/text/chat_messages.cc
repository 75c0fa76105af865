#include "coordinator/text/chat_messages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/status.h"
#include "coordinator/text/request_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

// What clients and templates call it.
constexpr const char* kReasoningKeys[] = {"reasoning_content", "reasoning", "thinking"};
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

absl::Status BadMessage(const std::string& where, std::string_view what) {
  return WithPart(InvalidArgument("{}: {}", where, what), {.param = where});
}

// The rendered text, or nothing if the template fails on it.
absl::StatusOr<std::string> Probe(TemplateEngine* engine, const std::string& source, const Json& messages,
                                  const Json& tools) {
  const Json context = {
      {"messages", messages}, {"tools", tools}, {"add_generation_prompt", false}, {"bos_token", ""}, {"eos_token", ""}};
  absl::StatusOr<std::string> text = engine->Render(source, DumpJson(context));
  if (absl::IsUnavailable(text.status())) return text.status();
  return text.ok() ? *std::move(text) : std::string();
}

Json CallConversation(Json arguments) {
  const Json call = {{"id", "call00001"},
                     {"type", "function"},
                     {"function", {{"name", "qqname"}, {"arguments", std::move(arguments)}}}};
  return Json::array({{{"role", "user"}, {"content", "qquser"}},
                      {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                      {{"role", "tool"}, {"tool_call_id", "call00001"}, {"name", "qqname"}, {"content", "qqresult"}}});
}

absl::StatusOr<bool> ProbeRawArguments(TemplateEngine* engine, const std::string& source) {
  const Json parameters = {{"type", "object"}, {"properties", {{"qq", {{"type", "string"}, {"description", "q"}}}}}};
  const Json tools = Json::array(
      {{{"type", "function"}, {"function", {{"name", "qqname"}, {"description", "q"}, {"parameters", parameters}}}}});
  ASSIGN_OR_RETURN(const std::string as_object, Probe(engine, source, CallConversation({{"qq", "xx"}}), tools));
  ASSIGN_OR_RETURN(const std::string as_string, Probe(engine, source, CallConversation(R"({"qq":"xx"})"), tools));
  if (as_string.empty()) return false;
  // The JSON filter writes a space after the colon; a template that takes the string leaves it as it was.
  return absl::StrReplaceAll(as_object, {{R"({"qq": "xx"})", R"({"qq":"xx"})"}}) == as_string;
}

absl::StatusOr<std::string> ProbeReasoningKey(TemplateEngine* engine, const std::string& source) {
  for (const char* key : kReasoningKeys) {
    const Json messages = Json::array({{{"role", "user"}, {"content", "qquser"}},
                                       {{"role", "assistant"}, {"content", "qqanswer"}, {key, "qqreasoning"}}});
    ASSIGN_OR_RETURN(const std::string text, Probe(engine, source, messages, nullptr));
    if (absl::StrContains(text, "qqreasoning")) return std::string(key);
  }
  return std::string();
}

absl::StatusOr<std::string> JoinedParts(const Json& parts, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    if (!part.is_object()) return BadMessage(here, "a content part is an object with type and text");
    const auto type = part.find("type");
    if (type == part.end() || *type != "text") return BadMessage(here, "only parts of type text are supported");
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) return BadMessage(here, "text is missing or not a string");
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

absl::StatusOr<Json> PrepareContent(const Json& message, const TemplateAbilities& abilities, const std::string& where) {
  const auto content = message.find("content");
  std::string text;
  if (content != message.end() && content->is_array()) {
    ASSIGN_OR_RETURN(text, JoinedParts(*content, where));
    if (abilities.takes_content_parts) return *content;
  } else if (content != message.end() && content->is_string()) {
    text = content->get<std::string>();
  } else if (content != message.end() && !content->is_null()) {
    return BadMessage(where, "neither a string nor an array of parts");
  }
  if (abilities.takes_string_content || !abilities.takes_content_parts) return Json(std::move(text));
  return Json::array({{{"type", "text"}, {"text", std::move(text)}}});
}

absl::Status PrepareCall(Json* call, const TemplateAbilities& abilities, const std::string& where) {
  const auto function = call->is_object() ? call->find("function") : call->end();
  if (function == call->end() || !function->is_object()) return BadMessage(where, "function is missing");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return BadMessage(where, "function.name is missing");
  if (!function->contains("arguments")) (*function)["arguments"] = "";
  Json& arguments = (*function)["arguments"];
  if (!arguments.is_string()) {
    return arguments.is_object() ? absl::OkStatus() : BadMessage(where, "function.arguments is not a JSON string");
  }
  if (abilities.takes_raw_arguments) return absl::OkStatus();
  const std::string text = arguments.get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    arguments = Json::object();
    return absl::OkStatus();
  }
  absl::StatusOr<Json> parsed = ParseRequestJson(text);
  if (!parsed.ok()) return BadMessage(where, fmt::format("function.arguments: {}", ToStd(parsed.status().message())));
  arguments = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status PrepareReasoning(Json* message, const TemplateAbilities& abilities, const std::string& where) {
  for (const char* key : kReasoningKeys) {
    const auto reasoning = message->find(key);
    if (reasoning == message->end() || reasoning->is_null()) continue;
    if (!reasoning->is_string()) return BadMessage(fmt::format("{}.{}", where, key), "not a string");
    if (abilities.reasoning_key.empty() || message->contains(abilities.reasoning_key)) continue;
    const Json text = *reasoning;
    (*message)[abilities.reasoning_key] = text;
  }
  return absl::OkStatus();
}

absl::Status PrepareMessage(Json* message, const TemplateAbilities& abilities, const std::string& where) {
  if (!message->is_object()) return BadMessage(where, "a message is an object with role and content");
  const auto role = message->find("role");
  const bool has_role = role != message->end() && role->is_string();
  if (!has_role || std::find(std::begin(kRoles), std::end(kRoles), role->get<std::string>()) == std::end(kRoles)) {
    return BadMessage(where + ".role", "must be one of system, developer, user, assistant, tool");
  }
  if (*role == "developer" && !abilities.knows_developer) *role = "system";
  if (const auto name = message->find("name"); name != message->end() && !name->is_string() && !name->is_null()) {
    return BadMessage(where + ".name", "not a string");
  }
  ASSIGN_OR_RETURN(Json content, PrepareContent(*message, abilities, where + ".content"));
  (*message)["content"] = std::move(content);
  RETURN_IF_ERROR(PrepareReasoning(message, abilities, where));
  const auto calls = message->find("tool_calls");
  if (calls == message->end()) return absl::OkStatus();
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message->erase("tool_calls");  // templates ask whether it is there
    return absl::OkStatus();
  }
  if (!calls->is_array()) return BadMessage(where + ".tool_calls", "not an array");
  for (size_t i = 0; i < calls->size(); ++i) {
    RETURN_IF_ERROR(PrepareCall(&(*calls)[i], abilities, fmt::format("{}.tool_calls[{}]", where, i)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TemplateAbilities> ProbeTemplate(TemplateEngine* engine, const std::string& source) {
  TemplateAbilities abilities;
  abilities.knows_developer = absl::StrContains(source, "developer");
  const Json string_content = Json::array({{{"role", "user"}, {"content", "qqstring"}}});
  ASSIGN_OR_RETURN(const std::string with_string, Probe(engine, source, string_content, nullptr));
  const Json part = {{"type", "text"}, {"text", "qqpart"}};
  const Json parts_content = Json::array({{{"role", "user"}, {"content", Json::array({part})}}});
  ASSIGN_OR_RETURN(const std::string with_parts, Probe(engine, source, parts_content, nullptr));
  abilities.takes_string_content = absl::StrContains(with_string, "qqstring");
  // A template that does not know parts may print the array itself, as Python or as JSON.
  abilities.takes_content_parts = absl::StrContains(with_parts, "qqpart") && !absl::StrContains(with_parts, "'type'") &&
                                  !absl::StrContains(with_parts, "\"type\"");
  ASSIGN_OR_RETURN(abilities.takes_raw_arguments, ProbeRawArguments(engine, source));
  ASSIGN_OR_RETURN(abilities.reasoning_key, ProbeReasoningKey(engine, source));
  return abilities;
}

absl::StatusOr<Json> PrepareMessages(const Json& messages, const TemplateAbilities& abilities) {
  if (!messages.is_array() || messages.empty()) return BadMessage("messages", "not an array with at least one message");
  Json prepared = messages;
  for (size_t i = 0; i < prepared.size(); ++i) {
    RETURN_IF_ERROR(PrepareMessage(&prepared[i], abilities, fmt::format("messages[{}]", i)));
  }
  return prepared;
}

absl::Status CheckTools(const Json& tools) {
  if (!tools.is_array()) return BadMessage("tools", "not an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Json& tool = tools[i];
    if (!tool.is_object() || tool.value("type", Json()) != "function") {
      return BadMessage(where, "only tools of type function are supported");
    }
    const auto function = tool.find("function");
    const bool has_name =
        function != tool.end() && function->is_object() && function->value("name", Json()).is_string();
    if (!has_name) return BadMessage(where, "function.name is missing");
  }
  return absl::OkStatus();
}

}  // namespace layover
