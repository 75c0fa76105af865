// Chat requests to ids: the demo model's goldens, injections, and the forms that templates want their messages in.
#include "coordinator/text/chat_template.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/status.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/request_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json User(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

class ChatTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = StartEngine().release(); }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  // The text, or "error: ..." of a render with the demo tokenizer.
  static std::string Text(const std::string& source, const Json& messages, const Json* tools = nullptr,
                          const Json* kwargs = nullptr) {
    ChatPrompt prompt(engine_, &DemoTokenizer(), source);
    const auto text = prompt.RenderText({.messages = &messages, .tools = tools, .kwargs = kwargs});
    return text.ok() ? *text : "error: " + std::string(text.status().message());
  }

  static RenderedChat Render(const std::string& source, const Json& messages,
                             const Tokenizer& tokenizer = DemoTokenizer(), const Json* tools = nullptr) {
    ChatPrompt prompt(engine_, &tokenizer, source);
    const auto chat = prompt.RenderChat({.messages = &messages, .tools = tools});
    EXPECT_TRUE(chat.ok()) << chat.status();
    return chat.ok() ? *chat : RenderedChat();
  }

  static int ControlCount(const RenderedChat& chat, const Tokenizer& tokenizer = DemoTokenizer()) {
    int n = 0;
    for (const int32_t id : chat.ids) n += tokenizer.IsControl(id);
    return n;
  }

  static TemplateEngine* engine_;
};
TemplateEngine* ChatTest::engine_ = nullptr;

TEST_F(ChatTest, DemoModelEqualsGoldens) {
  ChatPrompt prompt(engine_, &DemoTokenizer(), DemoChatTemplate());
  std::vector<int32_t> without_prompt;
  for (const Json& row : ReadJsonLines("smollm2_chat.jsonl")) {
    const bool add_generation_prompt = row["add_generation_prompt"];
    const auto chat = prompt.RenderChat({.messages = &row["messages"], .add_generation_prompt = add_generation_prompt});
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->text, row["text"]);
    EXPECT_EQ(chat->ids, row["ids"].get<std::vector<int32_t>>());
    if (!add_generation_prompt) without_prompt = chat->ids;
    EXPECT_EQ(chat->prefix_ids_without_generation_prompt_n, static_cast<int64_t>(without_prompt.size()));
  }
}

TEST_F(ChatTest, NoTextOfAUserBecomesAControlToken) {
  const int own = ControlCount(Render(DemoChatTemplate(), User("hello")));
  EXPECT_EQ(own, 5);  // system turn, user turn, the assistant's opener
  for (const std::string& control : DemoTokenizer().ControlTexts()) {
    const RenderedChat chat = Render(DemoChatTemplate(), User("a " + control + " b" + control));
    EXPECT_EQ(ControlCount(chat), own) << control;
    EXPECT_THAT(chat.text, HasSubstr("a " + control + " b" + control));
    EXPECT_EQ(Detokenize(DemoTokenizer(), chat.ids, true), chat.text);
  }
}

// Prints everything a template could: parts one after the other, trimmed and in lower case, names, calls, tools.
constexpr char kEverything[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.content is string %}{{ m.content | trim | lower }}{% else "
    "%}"
    "{% for p in m.content %}{{ p.text | trim | lower }}{% endfor %}{% endif %}{{ m.name }}{{ m.tool_calls | tojson if "
    "m.tool_calls else '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% for k, v in c.function.arguments"
    ".items() %}{{ '\n<' ~ k ~ '>' ~ v }}{% endfor %}{% endfor %}<|im_end|>{% endfor %}{{ tools | tojson }}{{ tools }}"
    "{% for t in tools or [] %}{% for k, v in t.function.parameters.properties.items() %}{{ '<' ~ k ~ '>' }}{{ v }}"
    "{% endfor %}{% endfor %}{{ extra }}";

TEST_F(ChatTest, NoStringAnywhereInARequestBecomesAControlToken) {
  for (const std::string& control : DemoTokenizer().ControlTexts()) {
    const size_t half = control.size() / 2;
    const std::string upper = absl::AsciiStrToUpper(control);
    const std::string inner = control.substr(1, control.size() - 2);
    const auto part = [](const std::string& text) { return Json{{"type", "text"}, {"text", text}}; };
    const Json call = {{"id", control},
                       {"type", "function"},
                       {"function", {{"name", control}, {"arguments", Json{{control, control}, {inner, "x"}}.dump()}}}};
    const Json messages = Json::array(
        {{{"role", "user"},
          {"name", control},
          {"content", Json::array({part("a" + control.substr(0, half)), part(control.substr(half))})}},
         {{"role", "user"},
          {"content", Json::array({part(control.substr(0, half) + " \n"), part("\n " + control.substr(half))})}},
         {{"role", "user"}, {"content", upper + control}},
         {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}},
         {{"role", "tool"}, {"tool_call_id", control}, {"content", control}}});
    const Json properties = {{control, {{"description", control}}}, {inner, Json::object()}};
    const Json tools = Json::array(
        {{{"type", "function"},
          {"function", {{"name", control}, {"description", control}, {"parameters", {{"properties", properties}}}}}}});
    const Json kwargs = {{"extra", control}};
    ChatPrompt prompt(engine_, &DemoTokenizer(), kEverything);
    const auto chat = prompt.RenderChat({.messages = &messages, .tools = &tools, .kwargs = &kwargs});
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(ControlCount(*chat), 2 * static_cast<int>(messages.size())) << control << "\n" << chat->text;
    EXPECT_THAT(chat->text, HasSubstr("<" + inner + ">")) << "the markers are gone from the text";
    EXPECT_FALSE(absl::StrContains(chat->text, "\uE000"));
  }
}

TEST_F(ChatTest, PlainTextIsEncodedAsOneString) {
  // "un" + "believ" + "able" from three hands: the ids are those of the whole word.
  const RenderedChat chat = Render("<|im_start|>un{{ messages[0].content }}able<|im_end|>", User("believ"));
  std::vector<int32_t> expected = DemoTokenizer().Encode("unbelievable", {.add_special = false});
  expected.insert(expected.begin(), 1);
  expected.push_back(2);
  EXPECT_EQ(chat.ids, expected);
}

TEST_F(ChatTest, UserDefinedTokensStayWhatTheyAre) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"<c>"}, {"</think>", TokenType::kUserDefined}}));
  const RenderedChat chat = Render("<c>{{ messages[0].content }}<c>", User("a</think><c>"), *tokenizer);
  EXPECT_EQ(Spell(*tokenizer, chat.ids), "<c>|a|</think>|<|c|>|<c>");
}

TEST_F(ChatTest, AControlTokenOfOneCharacterIsText) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"\u2603"}, {"<c>"}}));
  const RenderedChat chat = Render("<c>{{ messages[0].content }}", User("\u2603"), *tokenizer);
  EXPECT_EQ(ControlCount(chat, *tokenizer), 1);
}

TEST_F(ChatTest, BosIsThereOnce) {
  TokenizerSpec spec = ByteLevelSpec({}, {{"<b>"}, {"<e>"}});
  spec.bos_id = 256;
  spec.eos_id = 257;
  spec.add_bos = true;
  const auto adds = MakeTokenizer(spec);
  EXPECT_EQ(Spell(*adds, Render("{{ bos_token }}x", User(""), *adds).ids), "<b>|x");
  EXPECT_EQ(Spell(*adds, Render("x{{ eos_token }}", User(""), *adds).ids), "<b>|x|<e>");
  spec.add_bos = false;
  const auto does_not = MakeTokenizer(spec);
  EXPECT_EQ(Spell(*does_not, Render("x", User(""), *does_not).ids), "x");
  EXPECT_EQ(Spell(*does_not, Render("{{ bos_token }}x", User(""), *does_not).ids), "<b>|x");
}

TEST_F(ChatTest, PrefixEndsWhereTheGenerationPromptBegins) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({"a b"}));
  // With the prompt the last letter joins the next: the common prefix is shorter than the text without it.
  const RenderedChat chat = Render("xa{% if add_generation_prompt %}bc{% endif %}", User(""), *tokenizer);
  EXPECT_EQ(Spell(*tokenizer, chat.ids), "x|ab|c");
  EXPECT_EQ(chat.prefix_ids_without_generation_prompt_n, 1);
}

TEST_F(ChatTest, ContentParts) {
  const Json part1 = {{"type", "text"}, {"text", "one"}};
  const Json part2 = {{"type", "text"}, {"text", "two"}};
  const Json messages = Json::array({{{"role", "user"}, {"content", Json::array({part1, part2})}}});
  EXPECT_EQ(Text("{{ messages[0].content }}", messages), "one\ntwo");
  EXPECT_EQ(Text("{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}", messages), "[one][two]");
  EXPECT_EQ(Text("{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}", User("s")), "[s]");
  EXPECT_EQ(Text("{% if messages[0].content is string %}{{ messages[0].content }}{% else %}{% for p in "
                 "messages[0].content %}[{{ p.text }}]{% endfor %}{% endif %}",
                 messages),
            "[one][two]");
}

TEST_F(ChatTest, NullAndMissingContentAreEmpty) {
  const Json messages = Json::array({{{"role", "user"}, {"content", nullptr}}, {{"role", "assistant"}}});
  EXPECT_EQ(Text("{% for m in messages %}[{{ m.content }}]{% endfor %}", messages), "[][]");
}

Json Called(const std::string& arguments) {
  const Json call = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  return Json::array({{{"role", "user"}, {"content", "x"}},
                      {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}}});
}

TEST_F(ChatTest, ArgumentsAreTextOrAnObjectAsTheTemplateWants) {
  const std::string calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}";
  const std::string end = "{% endfor %}{% endfor %}";
  const std::string json_always = calls + "{{ c.function.arguments | tojson }}" + end;
  const std::string verbatim = calls +
                               "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
                               "{{ c.function.arguments | tojson }}{% endif %}" +
                               end;
  const std::string items = calls + "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}" + end;
  const std::string arguments = R"({"b":1.0, "a":  [123456789012345678901234567890, "\u00e9"]})";
  EXPECT_EQ(Text(json_always, Called(arguments)), R"({"b": 1.0, "a": [123456789012345678901234567890, "é"]})");
  EXPECT_EQ(Text(verbatim, Called(arguments)), arguments);
  EXPECT_EQ(Text(items, Called(arguments)), "b=1.0;a=[123456789012345678901234567890, 'é'];");
  EXPECT_EQ(Text(items, Called("")), "");
  EXPECT_THAT(Text(items, Called("{no")), StartsWith("error: messages[1].tool_calls[0]: function.arguments: JSON"));
  EXPECT_EQ(Text(verbatim, Called("{no")), "{no");
}

TEST_F(ChatTest, DeveloperIsSystemUnlessTheTemplateKnowsIt) {
  const Json messages = Json::array({{{"role", "developer"}, {"content", "x"}}});
  EXPECT_EQ(Text("{{ messages[0].role }}", messages), "system");
  EXPECT_EQ(Text("{{ messages[0].role }}{# developer #}", messages), "developer");
}

TEST_F(ChatTest, ToolsAndVariables) {
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}])");
  EXPECT_EQ(Text("{{ tools | tojson }}", User("x"), &tools),
            R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}])");
  EXPECT_EQ(Text("{{ tools is none }}", User("x")), "True");
  const Json none = Json::array();
  EXPECT_EQ(Text("{{ tools is none }}", User("x"), &none), "True");
  const Json kwargs = {{"enable_thinking", false}};
  EXPECT_EQ(Text("{{ enable_thinking }}", User("x"), nullptr, &kwargs), "False");
}

TEST_F(ChatTest, RefusalsNameTheField) {
  const std::string plain = "{{ messages[0].content }}";
  const std::pair<Json, const char*> cases[] = {
      {Json::array(), "error: messages: "},
      {Json::object(), "error: messages: "},
      {Json::array({"text"}), "error: messages[0]: "},
      {Json::array({{{"content", "x"}}}), "error: messages[0].role: "},
      {Json::array({{{"role", "|im_end|"}, {"content", "x"}}}), "error: messages[0].role: "},
      {Json::array({{{"role", "user"}, {"content", 5}}}), "error: messages[0].content: "},
      {Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "image_url"}}})}}}),
       "error: messages[0].content[0]: "},
      {Json::array({{{"role", "user"}, {"content", "x"}, {"name", 5}}}), "error: messages[0].name: "},
      {Json::array({{{"role", "assistant"}, {"content", "x"}, {"tool_calls", 5}}}), "error: messages[0].tool_calls: "},
      {Json::array({{{"role", "assistant"}, {"tool_calls", Json::array({5})}}}), "error: messages[0].tool_calls[0]: "},
  };
  for (const auto& [messages, what] : cases) EXPECT_THAT(Text(plain, messages), StartsWith(what));
  const Json bad_tools = Json::array({{{"type", "function"}}});
  EXPECT_THAT(Text(plain, User("x"), &bad_tools), StartsWith("error: tools[0]: "));
  const Json bad_kwargs = {{"messages", 1}};
  EXPECT_THAT(Text(plain, User("x"), nullptr, &bad_kwargs), StartsWith("error: chat_template_kwargs: "));
  EXPECT_THAT(Text("", User("x")), HasSubstr("no chat template"));
}

TEST_F(ChatTest, TemplatesOwnRefusalIsABadRequest) {
  const Json messages = User("x");
  ChatPrompt prompt(engine_, &DemoTokenizer(), "{{ raise_exception('roles must alternate') }}");
  const auto chat = prompt.RenderChat({.messages = &messages});
  EXPECT_EQ(chat.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ToStd(chat.status().message()), "roles must alternate");
}

TEST_F(ChatTest, StatusCarriesTheParameter) {
  const Json messages = Json::array({{{"role", "user"}, {"content", 5}}});
  ChatPrompt prompt(engine_, &DemoTokenizer(), "x");
  const auto part = PartOf(prompt.RenderChat({.messages = &messages}).status());
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->param, "messages[0].content");
}

}  // namespace
}  // namespace layover
