// Every wrong field is a 400 that names it; every right form of it is taken.
#include "coordinator/http/request_fields.h"

#include <limits>
#include <ostream>

#include "common/status.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

constexpr FieldBounds kBounds{.n_vocab = 100, .sessions = 4};

struct Wrong {
  const char* param;
  const char* body;
};
void PrintTo(const Wrong& wrong, std::ostream* out) {
  *out << wrong.body;
}

class WrongTextField : public ::testing::TestWithParam<Wrong> {};
class WrongChatField : public ::testing::TestWithParam<Wrong> {};

absl::Status ReadAll(const std::string& text, CompletionKind kind) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json body, ParseBody(text));
  RETURN_IF_ERROR(ReadCompletionFields(body, kind, kBounds).status());
  return kind == CompletionKind::kChat ? ReadChatFields(body).status() : ReadTextPrompt(body, kBounds).status();
}

void ExpectNamed(const absl::Status& status, const char* param) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  ASSERT_TRUE(PartOf(status).has_value()) << status;
  EXPECT_EQ(PartOf(status)->param, param);
  EXPECT_NE(status.message().find(param), absl::string_view::npos) << status;
}

TEST_P(WrongTextField, IsNamed) {
  ExpectNamed(ReadAll(std::string(R"({"prompt":"a",)") + GetParam().body + "}", CompletionKind::kText),
              GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongTextField,
    ::testing::Values(
        Wrong{"temperature", R"("temperature":-0.1)"}, Wrong{"temperature", R"("temperature":"hot")"},
        Wrong{"temperature", R"("temperature":101)"}, Wrong{"temperature", R"("temperature":true)"},
        Wrong{"top_p", R"("top_p":1.01)"}, Wrong{"top_p", R"("top_p":-1)"}, Wrong{"min_p", R"("min_p":2)"},
        Wrong{"top_k", R"("top_k":-2)"}, Wrong{"top_k", R"("top_k":1.5)"}, Wrong{"top_k", R"("top_k":2147483648)"},
        Wrong{"seed", R"("seed":"x")"}, Wrong{"seed", R"("seed":1.5)"}, Wrong{"seed", R"("seed":18446744073709551616)"},
        Wrong{"presence_penalty", R"("presence_penalty":2.5)"}, Wrong{"frequency_penalty", R"("frequency_penalty":-3)"},
        Wrong{"repeat_penalty", R"("repeat_penalty":0)"}, Wrong{"repetition_penalty", R"("repetition_penalty":-1)"},
        Wrong{"max_tokens", R"("max_tokens":-2)"}, Wrong{"max_tokens", R"("max_tokens":1e300)"},
        Wrong{"max_tokens", R"("max_tokens":"5")"}, Wrong{"max_completion_tokens", R"("max_completion_tokens":0.5)"},
        Wrong{"stop", R"("stop":5)"}, Wrong{"stop", R"("stop":["a",5])"},
        Wrong{"stop", R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"},
        Wrong{"logprobs", R"("logprobs":21)"}, Wrong{"logprobs", R"("logprobs":-1)"},
        Wrong{"logprobs", R"("logprobs":"1")"}, Wrong{"top_logprobs", R"("top_logprobs":3)"},
        Wrong{"top_logprobs", R"("logprobs":true,"top_logprobs":21)"}, Wrong{"n", R"("n":2)"}, Wrong{"n", R"("n":0)"},
        Wrong{"best_of", R"("best_of":2)"}, Wrong{"echo", R"("echo":true)"}, Wrong{"suffix", R"("suffix":"end")"},
        Wrong{"stream", R"("stream":1)"}, Wrong{"stream_options", R"("stream_options":true)"},
        Wrong{"include_usage", R"("stream_options":{"include_usage":"yes"})"},
        Wrong{"sse_ping_interval", R"("sse_ping_interval":-2)"}, Wrong{"return_tokens", R"("return_tokens":"yes")"},
        Wrong{"return_row_digests", R"("return_row_digests":0)"}, Wrong{"ignore_eos", R"("ignore_eos":[])"},
        Wrong{"cache_prompt", R"("cache_prompt":"no")"}, Wrong{"id_slot", R"("id_slot":4)"},
        Wrong{"id_slot", R"("id_slot":-2)"}, Wrong{"id_slot", R"("id_slot":9223372036854775808)"},
        Wrong{"conversation_id", R"("conversation_id":"")"}, Wrong{"conversation_id", R"("conversation_id":5)"},
        Wrong{"conversation_id", R"("conversation_id":"a\nb")"}, Wrong{"conversation_id", R"("conversation_id":"é")"},
        Wrong{"response_format", R"("response_format":{"type":"json_object"})"},
        Wrong{"response_format", R"("response_format":"text")"}, Wrong{"response_format", R"("response_format":{})"},
        Wrong{"logit_bias", R"("logit_bias":5)"}, Wrong{"logit_bias", R"("logit_bias":{"x":1})"},
        Wrong{"logit_bias", R"("logit_bias":{"100":1})"}, Wrong{"logit_bias", R"("logit_bias":{"-1":1})"},
        Wrong{"logit_bias", R"("logit_bias":{"5":101})"}, Wrong{"logit_bias", R"("logit_bias":{"5":"1"})"},
        Wrong{"logit_bias", R"("logit_bias":{"5":true})"}, Wrong{"logit_bias", R"("logit_bias":[[5]])"},
        Wrong{"logit_bias", R"("logit_bias":[["a",1]])"}, Wrong{"parse_special", R"("parse_special":1)"},
        Wrong{"prompt", R"("prompt":5)"}, Wrong{"prompt", R"("prompt":[])"}, Wrong{"prompt", R"("prompt":["a","b"])"},
        Wrong{"prompt", R"("prompt":[1,100])"}, Wrong{"prompt", R"("prompt":[1,-1])"},
        Wrong{"prompt", R"("prompt":[1,"a"])"}, Wrong{"prompt", R"("prompt":[1,4294967297])"},
        Wrong{"prompt", R"("prompt":[[1],[2]])"}, Wrong{"prompt", R"("prompt":null)"}));

TEST_P(WrongChatField, IsNamed) {
  ExpectNamed(ReadAll(std::string(R"({"messages":[{"role":"user","content":"a"}],)") + GetParam().body + "}",
                      CompletionKind::kChat),
              GetParam().param);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongChatField,
    ::testing::Values(
        Wrong{"messages", R"("messages":[])"}, Wrong{"messages", R"("messages":"a")"},
        Wrong{"messages", R"("messages":null)"}, Wrong{"messages[0]", R"("messages":["a"])"},
        Wrong{"messages[0].role", R"("messages":[{"content":"a"}])"},
        Wrong{"messages[1].role", R"("messages":[{"role":"user"},{"role":5}])"},
        Wrong{"messages[0].content", R"("messages":[{"role":"user","content":5}])"},
        Wrong{"messages[0].content[0]", R"("messages":[{"role":"user","content":["a"]}])"},
        Wrong{
            "messages[0].content[1]",
            R"("messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]}])"},
        Wrong{"messages[0].content[0].text", R"("messages":[{"role":"user","content":[{"type":"text"}]}])"},
        Wrong{"tools", R"("tools":{})"}, Wrong{"tool_choice", R"("tool_choice":"required")"},
        Wrong{"tool_choice", R"("tool_choice":{"type":"function"})"}, Wrong{"functions", R"("functions":[])"},
        Wrong{"function_call", R"("function_call":"auto")"}, Wrong{"modalities", R"("modalities":["text","audio"])"},
        Wrong{"chat_template_kwargs", R"("chat_template_kwargs":[])"}, Wrong{"logprobs", R"("logprobs":"yes")"},
        Wrong{"n", R"("n":3)"}, Wrong{"response_format", R"("response_format":{"type":"json_schema"})"}));

TEST(RequestBody, MustBeOneJsonObject) {
  for (const char* body : {"", "{", "[]", "5", "null", "{\"a\":1}x", "{\"a\":\"\xff\"}", "{\"a\":\"\\ud800\"}",
                           "{\"a\":1e999}", "{'a':1}", "{\"a\":01}", "{\"a\":NaN}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBody(body).status())) << body;
  }
}

TEST(RequestBody, ReasoningEffortIsAVariableOfTheTemplate) {
  const std::string messages = R"("messages":[{"role":"user","content":"a"}],"reasoning_effort":"low")";
  const std::pair<std::string, const char*> cases[] = {
      {"{" + messages + "}", "low"},
      {"{" + messages + R"(,"chat_template_kwargs":null})", "low"},
      {"{" + messages + R"(,"chat_template_kwargs":{"reasoning_effort":"high"}})", "high"}};
  for (const auto& [text, expected] : cases) {
    const auto body = ParseBody(text);
    ASSERT_TRUE(body.ok()) << body.status();
    const auto chat = ReadChatFields(*body);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ((*chat->kwargs)["reasoning_effort"], expected) << text;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBody(R"({"reasoning_effort":5})").status()));
  EXPECT_TRUE(ParseBody(R"({"reasoning_effort":null})").ok());
}

TEST(RequestBody, NestsNoDeeperThanTheLimit) {
  const auto nested = [](int depth) {
    return R"({"x":)" + std::string(static_cast<size_t>(depth) - 1, '[') +
           std::string(static_cast<size_t>(depth) - 1, ']') + "}";
  };
  EXPECT_TRUE(ParseBody(nested(limits::kMaxJsonDepth)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBody(nested(limits::kMaxJsonDepth + 1)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBody(nested(1'000'000)).status()));
}

TEST(RequestBody, OfDuplicateFieldsTheLastCountsAndUnknownOnesDoNot) {
  const auto body = ParseBody(R"({"max_tokens":5,"brand_new":{"deep":[1,2]},"max_tokens":7,"n":null})");
  ASSERT_TRUE(body.ok());
  const auto fields = ReadCompletionFields(*body, CompletionKind::kText, kBounds);
  ASSERT_TRUE(fields.ok()) << fields.status();
  EXPECT_EQ(fields->max_tokens, 7);
}

CompletionFields Fields(const std::string& text) {
  const auto body = ParseBody(text);
  EXPECT_TRUE(body.ok()) << body.status();
  const auto fields = ReadCompletionFields(*body, CompletionKind::kText, kBounds);
  EXPECT_TRUE(fields.ok()) << fields.status();
  return fields.ok() ? *fields : CompletionFields{};
}

TEST(CompletionFields, MaxTokensIsTheSmallerOfItsTwoNames) {
  EXPECT_EQ(Fields("{}").max_tokens, -1);
  EXPECT_EQ(Fields(R"({"max_tokens":-1})").max_tokens, -1);
  EXPECT_EQ(Fields(R"({"max_tokens":0})").max_tokens, 0);
  EXPECT_EQ(Fields(R"({"max_tokens":16.0})").max_tokens, 16);
  EXPECT_EQ(Fields(R"({"max_tokens":5,"max_completion_tokens":6})").max_tokens, 5);
  EXPECT_EQ(Fields(R"({"max_tokens":6,"max_completion_tokens":5})").max_tokens, 5);
  EXPECT_EQ(Fields(R"({"max_tokens":-1,"max_completion_tokens":5})").max_tokens, 5);
  EXPECT_EQ(Fields(R"({"max_tokens":5,"max_completion_tokens":-1})").max_tokens, 5);
  EXPECT_EQ(Fields(R"({"max_tokens":9000000000000000000})").max_tokens, std::numeric_limits<int32_t>::max());
}

TEST(CompletionFields, SeedTakesEverySixtyFourBitForm) {
  EXPECT_EQ(Fields(R"({"seed":0})").sampler.seed, 0u);
  EXPECT_EQ(Fields(R"({"seed":42})").sampler.seed, 42u);
  EXPECT_EQ(Fields(R"({"seed":-2})").sampler.seed, static_cast<uint64_t>(-2));
  EXPECT_EQ(Fields(R"({"seed":18446744073709551615})").sampler.seed, 18446744073709551615ull);
  EXPECT_NE(Fields(R"({"seed":-1})").sampler.seed, Fields(R"({"seed":-1})").sampler.seed) << "-1: drawn";
}

TEST(CompletionFields, LogprobsInBothForms) {
  EXPECT_EQ(Fields(R"({"logprobs":0})").top_logprobs, 0);
  EXPECT_EQ(Fields(R"({"logprobs":20})").top_logprobs, 20);
  EXPECT_EQ(Fields(R"({"logprobs":true})").top_logprobs, 0);
  EXPECT_EQ(Fields(R"({"logprobs":true,"top_logprobs":3})").top_logprobs, 3);
  EXPECT_EQ(Fields(R"({"logprobs":false})").top_logprobs, -1);
  EXPECT_EQ(Fields(R"({"logprobs":false,"top_logprobs":0})").top_logprobs, -1);
}

TEST(CompletionFields, LogitBiasInBothForms) {
  const SamplerSpec object = Fields(R"({"logit_bias":{"1":-100,"2":1.5,"3":false}})").sampler;
  const SamplerSpec array = Fields(R"({"logit_bias":[[1,-100],[2,1.5],[3,false]]})").sampler;
  EXPECT_EQ(object.logit_bias, (std::vector<std::pair<int32_t, float>>{{1, -100.0f}, {2, 1.5f}}));
  EXPECT_EQ(object.banned, std::vector<int32_t>{3});
  EXPECT_EQ(array.logit_bias, object.logit_bias);
  EXPECT_EQ(array.banned, object.banned);
  EXPECT_TRUE(Fields(R"({"logit_bias":false})").sampler.logit_bias.empty());
}

TEST(CompletionFields, OffSwitchesAreNoErrors) {
  const CompletionFields fields = Fields(
      R"({"stop":["","x"],"top_k":-1,"top_p":0,"n":1,"best_of":1,"echo":false,"suffix":"","response_format":{"type":"text"},
          "stream_options":null,"sse_ping_interval":-1})");
  EXPECT_EQ(fields.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(fields.sampler.top_k, 0);
  EXPECT_GT(fields.sampler.top_p, 0);
  EXPECT_EQ(fields.ping_interval, std::chrono::milliseconds(0));
}

TEST(TextPrompts, OnePromptInAnyWrapping) {
  const auto read = [](const char* text) { return *ReadTextPrompt(*ParseBody(text), kBounds); };
  EXPECT_EQ(std::get<std::string>(read(R"({"prompt":"a"})").prompt), "a");
  EXPECT_EQ(std::get<std::string>(read(R"({"prompt":["a"]})").prompt), "a");
  EXPECT_EQ(std::get<std::vector<int32_t>>(read(R"({"prompt":[5]})").prompt), std::vector<int32_t>{5});
  EXPECT_EQ(std::get<std::vector<int32_t>>(read(R"({"prompt":[[5,6]]})").prompt), (std::vector<int32_t>{5, 6}));
}

}  // namespace
}  // namespace layover::testing
