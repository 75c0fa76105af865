// Templates of published models against transformers (tests/golden/make_chat_goldens.py): tools, calls, results,
// reasoning and its switches, from requests as OpenAI's interface has them.
#include <map>

#include "common/status.h"
#include "coordinator/text/chat_template.h"
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
