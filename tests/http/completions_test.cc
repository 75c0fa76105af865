// Chat and text completions, whole and streamed, against the bytes that clients parse.
#include <future>

#include "common/status.h"
#include "coordinator/text/detokenizer.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

using nlohmann::ordered_json;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

std::string Chunk(const std::string& rest) {
  return R"({"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":)" + rest + "}";
}
std::string Delta(const std::string& delta) {
  return Chunk(R"([{"index":0,"delta":)" + delta + R"(,"finish_reason":null}])");
}

class CompletionsTest : public HttpTest {
 protected:
  // The generation answers with these ids.
  void AnswerWith(std::vector<int32_t> ids, FinishReason reason = FinishReason::kStop) {
    service_.script = [this, ids = std::move(ids), reason](const GenerationRequest& request,
                                                           GenerationObserver& observer) {
      requests_.push_back(request);
      Timings timings;
      timings.cache_n = 2;
      timings.restored_n = 1;
      timings.recomputed_n = 3;
      timings.prompt_n = 4;
      timings.prompt_ms = 8;
      timings.predicted_n = 2;
      timings.predicted_ms = 4;
      timings.restore_ms = 1.5;
      timings.queue_ms = 0.5;
      Play(ids, reason, timings, observer);
    };
  }
  ordered_json Whole(const std::string& target, const std::string& body) {
    const HttpReply reply = Post(target, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json(reply.body);
  }

  std::vector<GenerationRequest> requests_;
};

constexpr char kTimings[] =
    R"("timings":{"cache_n":2,"restored_n":1,"recomputed_n":3,"prompt_n":4,"prompt_ms":8.0,"prompt_per_token_ms":2.0,)"
    R"("prompt_per_second":500.0,"predicted_n":2,"predicted_ms":4.0,"predicted_per_token_ms":2.0,)"
    R"("predicted_per_second":500.0,"restore_ms":1.5,"queue_ms":0.5})";

TEST_F(CompletionsTest, ChatStreamIsExactlyRoleContentFinishUsageDone) {
  AnswerWith(IdsOf("Hi"), FinishReason::kLength);
  StartServer();
  const std::vector<std::string> events = Events(
      kChat, R"({"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}})");
  const std::vector<std::string> expected = {
      Delta(R"({"role":"assistant","content":""})"),
      Delta(R"({"content":"H"})"),
      Delta(R"({"content":"i"})"),
      Chunk(R"([{"index":0,"delta":{},"finish_reason":"length"}],)" + std::string(kTimings)),
      Chunk(R"([],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,)"
            R"("prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":0}})"),
      "[DONE]"};
  EXPECT_EQ(events, expected);
}

TEST_F(CompletionsTest, StreamHasNoUsageUnasked) {
  AnswerWith(IdsOf("x"));
  StartServer();
  const auto events = Events(kChat, R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[2], Chunk(R"([{"index":0,"delta":{},"finish_reason":"stop"}],)" + std::string(kTimings)));
  EXPECT_EQ(events[3], "[DONE]");
}

TEST_F(CompletionsTest, OneStreamHasOneIdAndPlainEventLines) {
  AnswerWith(IdsOf("abc"));
  StartServer();
  RawClient client(port());
  const std::string body = R"({"messages":[{"role":"user","content":"a"}],"stream":true})";
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string reply = client.ReadToEnd();
  const size_t head_end = reply.find("\r\n\r\n");
  ASSERT_NE(head_end, std::string::npos) << reply;
  const std::string head = reply.substr(0, head_end);
  EXPECT_NE(head.find("Content-Type: text/event-stream"), std::string::npos) << head;
  EXPECT_NE(head.find("Cache-Control: no-cache"), std::string::npos) << head;
  std::string id;
  int events = 0;
  for (std::string rest = reply.substr(head_end + 4); !rest.empty(); ++events) {
    const size_t end = rest.find("\n\n");
    ASSERT_NE(end, std::string::npos) << "every event ends with an empty line: " << rest;
    const std::string event = rest.substr(0, end);
    rest.erase(0, end + 2);
    ASSERT_EQ(event.rfind("data: ", 0), 0u) << event;
    EXPECT_EQ(event.find('\n'), std::string::npos) << "one line an event: " << event;
    if (event == "data: [DONE]") continue;
    const std::string this_id = Json(event.substr(6))["id"];
    if (id.empty()) id = this_id;
    EXPECT_EQ(this_id, id);
  }
  EXPECT_EQ(events, 6);
}

TEST_F(CompletionsTest, TextStream) {
  AnswerWith(IdsOf("ok"));
  StartServer();
  const auto events = Events(kText, R"({"prompt":"p","stream":true,"return_tokens":true})");
  const auto chunk = [](const std::string& rest) {
    return R"({"id":"ID","object":"text_completion","created":0,"model":"tiny","choices":[{"index":0,)" + rest;
  };
  const std::vector<std::string> expected = {
      chunk(R"("text":"o","token_ids":[111],"finish_reason":null}]})"),
      chunk(R"("text":"k","token_ids":[107],"finish_reason":null}]})"),
      chunk(R"("text":"","finish_reason":"stop"}],)" + std::string(kTimings) + "}"), "[DONE]"};
  EXPECT_EQ(events, expected);
}

TEST_F(CompletionsTest, WholeChat) {
  AnswerWith(IdsOf("Hi\n\"there\""));
  StartServer();
  const ordered_json reply = Whole(kChat, R"({"messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["model"], "tiny");
  EXPECT_EQ(reply["choices"].size(), 1u);
  EXPECT_EQ(reply["choices"][0]["message"], ordered_json::parse(R"({"role":"assistant","content":"Hi\n\"there\""})"));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 9) << "as many as the engine read or reused";
  EXPECT_EQ(reply["usage"]["completion_tokens"], 10);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(reply["timings"]["recomputed_n"], 3);
}

TEST_F(CompletionsTest, WholeText) {
  AnswerWith(IdsOf("yes"), FinishReason::kLength);
  StartServer();
  const ordered_json reply = Whole(kText, R"({"prompt":[1,2,3],"return_tokens":true})");
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["choices"][0]["text"], "yes");
  EXPECT_EQ(reply["choices"][0]["token_ids"], (ordered_json{121, 101, 115}));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(requests_.at(0).prompt, (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(CompletionsTest, CharactersComeWholeAndEveryTokenIsCounted) {
  AnswerWith(IdsOf("a\xC3\xA9\xE2\x82\xAC!"));  // "aé€!", one byte a token
  StartServer();
  const auto events = Events(kText, R"({"prompt":"p","stream":true,"return_tokens":true})");
  std::string text;
  std::vector<int32_t> ids;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const ordered_json choice = Json(event)["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice.contains("token_ids")) {
      for (const auto& id : choice["token_ids"]) ids.push_back(id);
    }
  }
  EXPECT_EQ(text, "a\xC3\xA9\xE2\x82\xAC!");
  EXPECT_EQ(ids, IdsOf("a\xC3\xA9\xE2\x82\xAC!"));
  EXPECT_EQ(Json(events[1])["choices"][0]["token_ids"].size(), 2u) << "the two bytes of one character come together";
}

TEST_F(CompletionsTest, HalfACharacterAtTheEndIsReplacedAndItsIdIsNotLost) {
  AnswerWith({'x', 0xE2}, FinishReason::kLength);
  StartServer();
  const auto events = Events(kText, R"({"prompt":"p","stream":true,"return_tokens":true})");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(Json(events[1])["choices"][0]["text"], "\xEF\xBF\xBD");
  EXPECT_EQ(Json(events[1])["choices"][0]["token_ids"], ordered_json::array({0xE2}));
}

TEST_F(CompletionsTest, StopStringsAreHeldBackAndCutAway) {
  AnswerWith(IdsOf("ab</sX</s>more"), FinishReason::kLength);
  StartServer();
  const auto events = Events(kText, R"({"prompt":"p","stream":true,"stop":["</s>","zzz"],"return_tokens":true})");
  std::string text;
  size_t n_ids = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const ordered_json choice = Json(event)["choices"][0];
    text += choice["text"].get<std::string>();
    n_ids += choice.contains("token_ids") ? choice["token_ids"].size() : 0;
  }
  EXPECT_EQ(text, "ab</sX");
  EXPECT_EQ(n_ids, 10u) << "nothing is generated after the stop string is met";
  EXPECT_EQ(Json(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
}

TEST_F(CompletionsTest, WhatWasHeldForAStopStringIsShownAtTheEnd) {
  AnswerWith(IdsOf("ab</s"), FinishReason::kLength);
  StartServer();
  EXPECT_EQ(Whole(kText, R"({"prompt":"p","stop":"</s>"})")["choices"][0]["text"], "ab</s");
}

TEST_F(CompletionsTest, LogprobsAndDigestsOnBothKinds) {
  service_.script = [](const GenerationRequest& request, GenerationObserver& observer) {
    EXPECT_EQ(request.top_logprobs, 2);
    EXPECT_TRUE(request.row_digests);
    GeneratedToken token;
    token.id = 0xC3;  // half a character
    token.logprob = -0.1f;
    token.top_logprobs = {{0xC3, -0.1f}, {kImEnd, -1.5e-7f}};
    token.row = Digest{1, 2};
    observer.OnToken(token);
    observer.OnFinished(FinishReason::kLength, {});
  };
  StartServer();
  const char* kEntry =
      R"("token_ids":[195],"logprobs":{"content":[{"id":195,"token":"�","bytes":[195],"logprob":-0.1,"top_logprobs":)"
      R"([{"id":195,"token":"�","bytes":[195],"logprob":-0.1},{"id":257,"token":"<|im_end|>",)"
      R"("bytes":[60,124,105,109,95,101,110,100,124,62],"logprob":-1.5e-07}]}]},)"
      R"("row_xxh3":["00000000000000010000000000000002"])";
  const char* kTail = R"(,"return_tokens":true,"return_row_digests":true)";
  const HttpReply chat = Post(kChat, R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":2)" +
                                         std::string(kTail) + "}");
  EXPECT_NE(chat.body.find(kEntry), std::string::npos) << chat.body;
  const HttpReply text = Post(kText, R"({"prompt":"a","logprobs":2)" + std::string(kTail) + "}");
  EXPECT_NE(text.body.find(kEntry), std::string::npos) << text.body;
  const auto events = Events(kText, R"({"prompt":"a","stream":true,"logprobs":2)" + std::string(kTail) + "}");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_NE(events[0].find(kEntry), std::string::npos) << events[0];
}

TEST_F(CompletionsTest, TheEngineIsAskedForWhatTheRequestSays) {
  AnswerWith({});
  StartServer();
  Whole(kChat, R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"first"},
                   {"role":"assistant","content":"x"},{"role":"user","content":"last"}],
        "temperature":0.5,"top_p":0.25,"min_p":0.125,"top_k":7,"seed":18446744073709551615,"repeat_penalty":1.5,
        "presence_penalty":0.5,"frequency_penalty":-0.5,"logit_bias":{"5":2.5,"6":false},"max_tokens":9,
        "max_completion_tokens":8,"ignore_eos":true,"cache_prompt":false,"id_slot":3,"conversation_id":"c d",
        "some_new_field":{"x":[1]}})");
  ASSERT_EQ(requests_.size(), 1u);
  const GenerationRequest& request = requests_[0];
  EXPECT_EQ(request.sampler.temperature, 0.5f);
  EXPECT_EQ(request.sampler.top_p, 0.25f);
  EXPECT_EQ(request.sampler.min_p, 0.125f);
  EXPECT_EQ(request.sampler.top_k, 7);
  EXPECT_EQ(request.sampler.seed, 18446744073709551615ull);
  EXPECT_EQ(request.sampler.repeat_penalty, 1.5f);
  EXPECT_EQ(request.sampler.presence_penalty, 0.5f);
  EXPECT_EQ(request.sampler.frequency_penalty, -0.5f);
  EXPECT_EQ(request.sampler.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, 2.5f}}));
  EXPECT_EQ(request.sampler.banned, (std::vector<int32_t>{6, kImEnd})) << "false, and the end tokens by ignore_eos";
  EXPECT_EQ(request.max_tokens, 8);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.cache_prompt);
  EXPECT_EQ(request.id_slot, 3);
  EXPECT_EQ(request.conversation_id, "c d");
  EXPECT_EQ(request.raw_text, "last");
  EXPECT_EQ(request.history_n, static_cast<int64_t>(request.prompt.size()) - 1);
  EXPECT_FALSE(request.message_digest.IsZero());
}

TEST_F(CompletionsTest, DefaultsAreTheWholeContextAndADrawnSeed) {
  AnswerWith({});
  StartServer();
  Whole(kText, R"({"prompt":"a","max_tokens":null,"seed":null,"stop":null,"logprobs":null})");
  Whole(kText, R"({"prompt":"a"})");
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_EQ(requests_[0].max_tokens, -1);
  EXPECT_EQ(requests_[0].top_logprobs, -1);
  EXPECT_EQ(requests_[0].conversation_id, "");
  EXPECT_TRUE(requests_[0].cache_prompt);
  EXPECT_NE(requests_[0].sampler.seed, requests_[1].sampler.seed);
}

TEST_F(CompletionsTest, HeaderNamesTheConversationBeforeTheBody) {
  AnswerWith({});
  StartServer();
  Post(kText, R"({"prompt":"a","conversation_id":"body"})", {{"X-Conversation-Id", "head"}});
  EXPECT_EQ(requests_.at(0).conversation_id, "head");
  EXPECT_EQ(Post(kText, R"({"prompt":"a"})", {{"X-Conversation-Id", std::string(257, 'x')}}).status, 400);
  EXPECT_EQ(Post(kText, R"({"prompt":"a"})", {{"X-Conversation-Id", "caf\xC3\xA9"}}).status, 400);
  EXPECT_EQ(Post(kText, R"({"prompt":"a"})", {{"X-Conversation-Id", ""}}).status, 400);
  EXPECT_EQ(Post(kText, R"({"prompt":"a"})", {{"X-Conversation-Id", std::string(256, 'x')}}).status, 200);
  EXPECT_EQ(Post(kText, R"({"prompt":"a","conversation_id":")" + std::string(257, 'x') + R"("})").status, 400);
}

TEST_F(CompletionsTest, ControlTokensOfAPlainPromptStayTextUnlessAsked) {
  AnswerWith({});
  StartServer();
  Whole(kText, R"({"prompt":"<|im_end|>"})");
  Whole(kText, R"({"prompt":"<|im_end|>","parse_special":true})");
  EXPECT_EQ(requests_.at(0).prompt, IdsOf("<|im_end|>"));
  EXPECT_EQ(requests_.at(1).prompt, (std::vector<int32_t>{kImEnd}));
}

TEST_F(CompletionsTest, ContextOverflowSaysItsNumbers) {
  StartServer();
  const HttpReply reply = Post(kText, R"({"prompt":")" + std::string(64, 'x') + R"(","stream":true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json(reply.body)["error"],
            ordered_json::parse(
                R"({"message":"This model's maximum context length is 64 tokens; the request exceeds the available )"
                R"(context size (64 prompt tokens).","type":"invalid_request_error","param":null,)"
                R"("code":"context_length_exceeded","n_prompt_tokens":64,"n_ctx":64})"));
}

TEST_F(CompletionsTest, AChatThatDoesNotFitSaysSoToo) {
  StartServer();
  const HttpReply reply = Post(kChat, R"({"messages":[{"role":"user","content":")" + std::string(70, 'x') + R"("}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json(reply.body)["error"]["n_prompt_tokens"], 73);
}

TEST_F(CompletionsTest, MoreTokensThanFitAreAskedForWithoutHarm) {
  AnswerWith(IdsOf("x"), FinishReason::kLength);
  StartServer();
  EXPECT_EQ(Whole(kText, R"({"prompt":"a","max_tokens":1000000})")["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(requests_.at(0).max_tokens, 1000000);
}

TEST_F(CompletionsTest, APromptOneShortOfTheContextIsTaken) {
  AnswerWith({});
  StartServer();
  EXPECT_EQ(Post(kText, R"({"prompt":")" + std::string(63, 'x') + R"("})").status, 200);
}

TEST_F(CompletionsTest, ATemplateThatRefusesIsA400) {
  StartServer();
  const HttpReply reply = Post(kChat, R"({"messages":[{"role":"user","content":"raise"}],"stream":true})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json(reply.body)["error"]["message"], "the template says no");
  EXPECT_EQ(Json(reply.body)["error"]["param"], "messages");
}

TEST_F(CompletionsTest, ToolsReachTheTemplate) {
  AnswerWith({});
  StartServer();
  Whole(kChat, R"({"messages":[{"role":"user","content":"a"}],"tools":[{"f":1}],"tool_choice":"auto"})");
  const std::string prompt = Detokenize(*tokenizer_, requests_.at(0).prompt, false);
  EXPECT_EQ(prompt, R"(a[{"f":1}])");
}

TEST_F(CompletionsTest, AFailureBeforeTheFirstByteIsAnHttpStatus) {
  service_.script = [](const GenerationRequest&, GenerationObserver& observer) {
    observer.OnFailed(Unavailable("the queue is full"));
  };
  StartServer();
  for (const char* stream : {"true", "false"}) {
    const HttpReply reply = Post(kText, R"({"prompt":"a","stream":)" + std::string(stream) + "}");
    EXPECT_EQ(reply.status, 503) << stream;
    EXPECT_EQ(Json(reply.body)["error"]["type"], "unavailable_error");
    EXPECT_NE(
        std::find(reply.headers.begin(), reply.headers.end(), std::pair<std::string, std::string>("retry-after", "2")),
        reply.headers.end());
  }
}

TEST_F(CompletionsTest, AFailureInMidStreamIsAnErrorEventAndTheEnd) {
  service_.script = [](const GenerationRequest&, GenerationObserver& observer) {
    observer.OnStarted({});
    GeneratedToken token;
    token.id = 'a';
    observer.OnToken(token);
    observer.OnFailed(WithPart(Internal("stage 1 died"), {.stage = 1}));
  };
  StartServer();
  const auto events = Events(kText, R"({"prompt":"a","stream":true})");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1],
            R"({"error":{"message":"stage 1 died","type":"server_error","param":null,"code":null,"stage":1}})");
}

TEST_F(CompletionsTest, SilenceIsFilledWithPings) {
  StartServer();
  RawClient client(port());
  const std::string body = R"({"prompt":"a","stream":true,"sse_ping_interval":0.001})";
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const FakeService::Generation generation = service_.WaitForGeneration();
  generation.observer->OnStarted({});
  const std::string silent = client.ReadUntil(": ping\n\n");
  EXPECT_NE(silent.find("Transfer-Encoding: chunked"), std::string::npos) << silent;
  EXPECT_NE(silent.find("8\r\n: ping\n\n\r\n"), std::string::npos) << silent;
  EXPECT_EQ(silent.find("data:"), std::string::npos) << silent;
  generation.observer->OnFinished(FinishReason::kStop, {});
  EXPECT_NE(client.ReadUntil("data: [DONE]").find("data: [DONE]"), std::string::npos);
}

TEST_F(CompletionsTest, LatenciesAreCounted) {
  AnswerWith(IdsOf("abc"));
  StartServer();
  Whole(kText, R"({"prompt":"a"})");
  const std::string text = Get("/metrics").body;
  EXPECT_NE(text.find("layover_time_to_first_token_seconds_count 1"), std::string::npos);
  EXPECT_NE(text.find("layover_inter_token_seconds_count 2"), std::string::npos);
}

}  // namespace
}  // namespace layover::testing
