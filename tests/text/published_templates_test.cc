// Templates of published models against transformers (tests/golden/make_chat_goldens.py): tools, calls, results,
// reasoning and its switches, from requests as OpenAI's interface has them.
#include <map>

#include "common/status.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/held_ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kControls[] = {"<bos>",         "<eos>",     "<|im_start|>", "<|im_end|>",  "<start_of_turn>",
                                     "<end_of_turn>", "<|start|>", "<|end|>",      "<|message|>", "<|channel|>",
                                     "<|constrain|>", "<|call|>",  "<|return|>"};

// Bytes and the models' control tokens.
std::unique_ptr<Tokenizer> BytesTokenizer() {
  std::vector<SpecialEntry> special;
  for (const char* text : kControls) special.push_back({text});
  TokenizerSpec spec = ByteLevelSpec({}, special);
  spec.bos_id = 256;
  spec.eos_id = 257;
  return MakeTokenizer(std::move(spec));
}

class PublishedTemplates : public ::testing::Test {
 protected:
  PublishedTemplates() : engine_(StartEngine()), tokenizer_(BytesTokenizer()) {
    const auto rows = ReadJsonLines("chat_templates.jsonl");
    now_unix_s_ = rows[0]["now_unix_s"];
    for (size_t i = 1; i < rows.size(); ++i) {
      const Json& row = rows[i];
      if (row.contains("template")) {
        prompts_[row["name"]] =
            std::make_unique<ChatPrompt>(engine_.get(), tokenizer_.get(), row["template"].get<std::string>());
      } else {
        cases_.push_back(row);
      }
    }
  }

  absl::StatusOr<RenderedChat> Render(const std::string& model, const Json& messages, const Json& tools = nullptr,
                                      const Json& kwargs = nullptr, bool add_generation_prompt = true) {
    return prompts_.at(model)->RenderChat({.messages = &messages,
                                           .tools = tools.is_null() ? nullptr : &tools,
                                           .kwargs = kwargs.is_null() ? nullptr : &kwargs,
                                           .add_generation_prompt = add_generation_prompt,
                                           .now_unix_s = now_unix_s_});
  }

  std::unique_ptr<TemplateEngine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::map<std::string, std::unique_ptr<ChatPrompt>> prompts_;
  std::vector<Json> cases_;
  int64_t now_unix_s_ = 0;
};

TEST_F(PublishedTemplates, RenderAsTransformersDoes) {
  EXPECT_EQ(prompts_.size(), 4u);
  EXPECT_GE(cases_.size(), 180u);
  for (const Json& row : cases_) {
    const auto chat = Render(row["model"], row["messages"], row["tools"], row["kwargs"], row["add_generation_prompt"]);
    ASSERT_TRUE(chat.ok()) << chat.status() << row["messages"];
    EXPECT_EQ(chat->text, row["text"]) << row["model"] << row["messages"] << row["kwargs"];
    EXPECT_EQ(chat->ids, tokenizer_->Encode(chat->text, {.add_special = false, .parse_special = true}));
  }
}

TEST_F(PublishedTemplates, ReasoningIsReadUnderAnyName) {
  for (const char* model : {"qwen3", "qwen3.5", "gpt-oss"}) {
    std::vector<std::string> texts;
    for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
      const Json messages = Json::array(
          {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}, {key, "because"}}});
      const auto chat = Render(model, messages, nullptr, nullptr, /*add_generation_prompt=*/false);
      ASSERT_TRUE(chat.ok()) << chat.status();
      EXPECT_THAT(chat->text, ::testing::HasSubstr("because")) << model;
      texts.push_back(chat->text);
    }
    EXPECT_EQ(texts[0], texts[1]) << model;
    EXPECT_EQ(texts[0], texts[2]) << model;
  }
}

// What the model wrote, what the client sends back of it, and what comes next.
struct Reply {
  const char* model;
  const char* what;
  std::string wrote;  // after the prompt, its end token included
  Json sent;          // the assistant's message
  Json next;          // a user's, or a tool's
  std::string lost;   // where the next prompt leaves what is held: what is held from there; empty: it leaves nothing
  Json kwargs = nullptr;
};

Json Says(const std::string& content) {
  return {{"role", "assistant"}, {"content", content}};
}

Json Thinks(const std::string& content, const std::string& reasoning) {
  return {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}};
}

Json Calls(const std::string& arguments, const std::string& reasoning) {
  const Json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  Json message = Thinks("", reasoning);
  message["tool_calls"] = Json::array({call});
  return message;
}

std::vector<Reply> Replies() {
  const Json user = {{"role", "user"}, {"content", "And <|im_end|> now?"}};
  const Json tool = {{"role", "tool"}, {"tool_call_id", "c"}, {"name", "f"}, {"content", "blue"}};
  const Json off = {{"enable_thinking", false}};
  const std::string qwen3_call = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
  const std::string xml_call = "<tool_call>\n<function=f>\n<parameter=a>\n";
  const std::string xml_end = "\n</parameter>\n</function>\n</tool_call>";
  const std::string final = "<|channel|>final<|message|>";
  return {
      {"gemma", "plain", "Blue, na\u00efve \U0001F30A.<end_of_turn>", Says("Blue, na\u00efve \U0001F30A."), user, ""},
      {"gemma", "nothing said", "<end_of_turn>", Says(""), user, ""},
      {"gemma", "cut", "Blu", Says("Blu"), user, ""},
      {"gemma", "trimmed", "Blue. \n<end_of_turn>", Says("Blue. \n"), user, " \n<end_of_turn>"},
      {"qwen3", "a model that does not think", "Blue.<|im_end|>", Says("Blue."), user, ""},
      {"qwen3", "white space", " Blue. \n<|im_end|>", Says(" Blue. \n"), user, ""},
      {"qwen3", "thoughts are dropped at the next user's turn", "<think>\nHm.\n</think>\n\nBlue.<|im_end|>",
       Thinks("Blue.", "Hm."), user, "<think>\nHm.\n</think>\n\nBlue.<|im_end|>"},
      {"qwen3", "thoughts switched off", "Blue.<|im_end|>", Says("Blue."), user,
       "<think>\n\n</think>\n\nBlue.<|im_end|>", off},
      {"qwen3", "a call, arguments as the model wrote them",
       "<think>\nHm.\n</think>\n\n" + qwen3_call + "{\"b\":1.0,\"a\":  [null,true]}}\n</tool_call><|im_end|>",
       Calls("{\"b\":1.0,\"a\":  [null,true]}", "Hm."), tool, ""},
      {"qwen3", "a call sent back as text", "<think>\nHm.\n</think>\n\n" + qwen3_call + "{}}\n</tool_call><|im_end|>",
       Says("<think>\nHm.\n</think>\n\n" + qwen3_call + "{}}\n</tool_call>"), tool, ""},
      {"qwen3.5", "a call", "Hm.\n</think>\n\n" + xml_call + "1.0" + xml_end + "<|im_end|>",
       Calls("{\"a\": 1.0}", "Hm."), tool, ""},
      {"qwen3.5", "a call sent back as text", "Hm.\n</think>\n\n" + xml_call + "true" + xml_end + "<|im_end|>",
       Says("Hm.\n</think>\n\n" + xml_call + "true" + xml_end), tool, ""},
      {"qwen3.5", "the template writes true as Python does",
       "Hm.\n</think>\n\n" + xml_call + "true" + xml_end + "<|im_end|>", Calls("{\"a\": true}", "Hm."), tool,
       "true" + xml_end + "<|im_end|>"},
      {"qwen3.5", "a client that drops the thoughts", "Hm.\n</think>\n\n" + xml_call + "1" + xml_end + "<|im_end|>",
       Calls("{\"a\": 1}", ""), tool, "Hm.\n</think>\n\n" + xml_call + "1" + xml_end + "<|im_end|>"},
      {"qwen3.5", "thoughts are dropped at the next user's turn", "Hm.\n</think>\n\nBlue.<|im_end|>",
       Thinks("Blue.", "Hm."), user, "<think>\nHm.\n</think>\n\nBlue.<|im_end|>"},
      {"gpt-oss", "the end has another token in a history", final + "Blue.<|return|>", Says("Blue."), user,
       "<|return|>"},
      {"gpt-oss", "thoughts are dropped at the next user's turn",
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + final + "Blue.<|return|>", Thinks("Blue.", "Hm."),
       user, "analysis<|message|>Hm.<|end|><|start|>assistant" + final + "Blue.<|return|>"},
  };
}

// The prompt and what was written after it is what the next prompt begins with; or it is known what is lost.
TEST_F(PublishedTemplates, TheNextPromptGoesOnFromWhatTheReplyLeft) {
  const Json asked = {{"role", "user"}, {"content", "Weather?"}};
  for (const Reply& reply : Replies()) {
    SCOPED_TRACE(std::string(reply.model) + ": " + reply.what);
    const auto first = Render(reply.model, Json::array({asked}), nullptr, reply.kwargs);
    ASSERT_TRUE(first.ok()) << first.status();
    std::vector<int32_t> held = first->ids;
    for (const int32_t id : tokenizer_->Encode(reply.wrote, {.add_special = false, .parse_special = true})) {
      held.push_back(id);
    }
    const auto second = Render(reply.model, Json::array({asked, reply.sent, reply.next}), nullptr, reply.kwargs);
    ASSERT_TRUE(second.ok()) << second.status();
    const CommonText common = CommonTextOf(*tokenizer_, held, second->ids);
    const std::vector<int32_t> lost(held.begin() + common.held_n, held.end());
    EXPECT_EQ(Detokenize(*tokenizer_, lost, true), reply.lost);
    // What is lost is never more than what was written and the generation prompt before it.
    EXPECT_GE(common.held_n, first->prefix_ids_without_generation_prompt_n);
  }
}

TEST_F(PublishedTemplates, RefusalsAreTheTemplatesOwn) {
  const Json late_system = Json::array({{{"role", "user"}, {"content", "a"}}, {{"role", "system"}, {"content", "b"}}});
  EXPECT_EQ(ToStd(Render("qwen3.5", late_system).status().message()), "System message must be at the beginning.");
  const Json twice = Json::array({{{"role", "user"}, {"content", "a"}}, {{"role", "user"}, {"content", "b"}}});
  EXPECT_EQ(ToStd(Render("gemma", twice).status().message()), "roles must alternate");
  const Json number = Json::array({{{"role", "assistant"}, {"content", "a"}, {"reasoning_content", 5}}});
  EXPECT_THAT(ToStd(Render("qwen3", number).status().message()),
              ::testing::StartsWith("messages[0].reasoning_content: "));
}

TEST_F(PublishedTemplates, UsersTextStaysText) {
  for (const auto& [model, prompt] : prompts_) {
    const auto count = [&](const std::string& text) {
      const auto chat = Render(model, Json::array({{{"role", "user"}, {"content", text}}}));
      EXPECT_TRUE(chat.ok()) << chat.status();
      int n = 0;
      for (const int32_t id : chat->ids) n += tokenizer_->IsControl(id);
      return n;
    };
    const int own = count("hello");
    for (const char* control : kControls) EXPECT_EQ(count(std::string("a") + control + "b"), own) << model << control;
  }
}

}  // namespace
}  // namespace layover
