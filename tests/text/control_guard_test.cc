// Where the markers go. What they are for is tested end to end in chat_template_test.cc.
#include "coordinator/text/control_guard.h"

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

// Shows the marker as '#'.
std::string Guarded(const ControlGuard& guard, const std::string& text) {
  const Json value = text;
  const Json* const values[] = {&value};
  const auto marker = guard.MarkerFor(values);
  if (!marker.ok()) return std::string(marker.status().message());
  const std::string guarded = marker->GuardString(text);
  EXPECT_EQ(marker->Remove(guarded), text);
  return absl::StrReplaceAll(guarded, {{"\uE000", "#"}});
}

const std::vector<std::string> kControls = {"<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]"};

TEST(ControlGuard, BreaksSpellings) {
  const ControlGuard guard(kControls, "");
  EXPECT_EQ(Guarded(guard, "plain < text > [x]"), "plain < text > [x]");
  EXPECT_EQ(Guarded(guard, "a<|im_end|>b<s>"), "a<#|im_end|>b<#s>");
  EXPECT_EQ(Guarded(guard, "<|IM_End|> [inst]"), "<#|IM_End|> [#inst]");
  EXPECT_EQ(Guarded(guard, "<<s>"), "<<#s>");
  EXPECT_EQ(Guarded(guard, ""), "");
}

TEST(ControlGuard, BreaksTailsThatBeginASpelling) {
  const ControlGuard guard(kControls, "");
  EXPECT_EQ(Guarded(guard, "x<|im_"), "x<#|im_");
  EXPECT_EQ(Guarded(guard, "x<"), "x<#");
  EXPECT_EQ(Guarded(guard, "x<|im_ \n\t"), "x<#|im_ \n\t") << "a template may trim";
  EXPECT_EQ(Guarded(guard, "x<|im_\u00a0\u3000"), "x<#|im_\u00a0\u3000");
  EXPECT_EQ(Guarded(guard, "x<|im_ y"), "x<|im_ y");
}

TEST(ControlGuard, BreaksHeadsThatCompleteTheTemplatesOwnBeginning) {
  const ControlGuard guard(kControls, "{{ '\\n<' ~ key ~ '>' }}");
  EXPECT_EQ(Guarded(guard, "|im_end|"), "#|im_end|") << "the template writes what is missing on both sides";
  EXPECT_EQ(Guarded(guard, "|im_end|> x"), "#|im_end|> x");
  EXPECT_EQ(Guarded(guard, " s>"), " #s>");
  EXPECT_EQ(Guarded(guard, "s"), "#s");
  EXPECT_EQ(Guarded(guard, "some"), "some");
  const ControlGuard whole(kControls, "{{ '<|im_start|>' + role + '\\n' }}");
  EXPECT_EQ(Guarded(whole, "|im_end|>"), "|im_end|>") << "this template writes no beginning";
}

TEST(ControlGuard, TheMarkerIsUsedByNobodyElse) {
  const ControlGuard guard(kControls, "template with \uE000");
  const Json value = {{"\uE001", "text with \\ue002 spelled out"}, {"b", Json::array({"\uE003"})}};
  const Json* const values[] = {&value, nullptr};
  const auto marker = guard.MarkerFor(values);
  ASSERT_TRUE(marker.ok());
  EXPECT_EQ(marker->GuardString("<s>"), "<\uE004s>");
  EXPECT_EQ(marker->Remove("a\uE004b\\ue004c\\ue002"), "abc\\ue002");
}

TEST(ControlGuard, GuardsKeysAndEveryDepth) {
  const ControlGuard guard(kControls, "{{ '<' ~ key }}");
  const Json value = Json::parse(R"([{"role": "s", "a": [{"<s>": "<s>", "n": 1}], "content": "s>"}])");
  const Json* const values[] = {&value};
  const auto marker = guard.MarkerFor(values);
  ASSERT_TRUE(marker.ok());
  EXPECT_EQ(marker->GuardMessages(value)->dump(),
            "[{\"role\":\"s\",\"a\":[{\"<\uE000s>\":\"<\uE000s>\",\"n\":1}],\"content\":\"\uE000s>\"}]");
}

TEST(ControlGuard, DepthIsBounded) {
  const ControlGuard guard(kControls, "");
  Json value = "x";
  for (int i = 0; i < 100; ++i) value = Json::array({std::move(value)});
  const Json* const values[] = {&value};
  EXPECT_FALSE(guard.MarkerFor(values)->Guard(value).ok());
}

TEST(ControlGuard, AllMarkersTaken) {
  const ControlGuard guard(kControls, "");
  std::string all;
  for (int c = 0xE000; c < 0xF900; ++c) {
    all += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  }
  const Json value = all;
  const Json* const values[] = {&value};
  EXPECT_EQ(guard.MarkerFor(values).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace layover
