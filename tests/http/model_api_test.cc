// Models, props, slots, tokenizer endpoints, health, metrics, and what is not there.
#include "common/status.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

using nlohmann::ordered_json;

class ModelApiTest : public HttpTest {};

TEST_F(ModelApiTest, ModelsSayTheContextOfAConversation) {
  StartServer();
  const ordered_json list = Json(Get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["created"], 1700000000);
  EXPECT_EQ(list["data"][0]["context_length"], 64);
  EXPECT_EQ(list["data"][0]["meta"]["n_ctx_train"], 2048);
  EXPECT_EQ(Json(Get("/v1/models/tiny").body), list["data"][0]);
  EXPECT_EQ(Json(Get("/v1/models/gpt%2F4").body)["error"]["code"], "model_not_found");
}

TEST_F(ModelApiTest, PropsShowTheTemplateButNoPath) {
  StartServer();
  const ordered_json props = Json(Get("/props").body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 64);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_path"], "tiny.gguf");
  EXPECT_EQ(props["chat_template"], "the template");
}

TEST_F(ModelApiTest, Slots) {
  service_.slots = {{0, true, 12}, {1, false, 0}};
  StartServer();
  const ordered_json slots = Json(Get("/slots").body);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0]["is_processing"], true);
  EXPECT_EQ(slots[0]["n_tokens"], 12);
  EXPECT_EQ(Get("/slots?fail_on_no_slot=1").status, 200);
  service_.slots[1].is_processing = true;
  EXPECT_EQ(Get("/slots?fail_on_no_slot=1").status, 503);
  EXPECT_EQ(Get("/slots").status, 200);
  EXPECT_EQ(Post("/slots/0?action=save", "{}").status, 501);
}

TEST_F(ModelApiTest, TokenizeAndBack) {
  StartServer();
  EXPECT_EQ(Post("/tokenize", R"({"content":"a<|im_end|>"})").body, R"({"tokens":[97,257]})");
  EXPECT_EQ(Json(Post("/tokenize", R"({"content":"<|im_end|>","parse_special":false})").body)["tokens"].size(), 10u);
  EXPECT_EQ(Post("/tokenize", R"({"content":"aé","with_pieces":true})").body,
            R"({"tokens":[{"id":97,"piece":"a"},{"id":195,"piece":[195]},{"id":169,"piece":[169]}]})");
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[97,257,195,169]})").body, R"({"content":"a<|im_end|>é"})");
  EXPECT_EQ(Json(Post("/detokenize", R"({"tokens":[97,258]})").body)["error"]["param"], "tokens");
  EXPECT_EQ(Json(Post("/detokenize", R"({})").body)["error"]["param"], "tokens");
  EXPECT_EQ(Json(Post("/tokenize", R"({"content":5})").body)["error"]["param"], "content");
  EXPECT_EQ(Json(Post("/tokenize", R"({})").body)["error"]["param"], "content");
}

TEST_F(ModelApiTest, ApplyTemplate) {
  StartServer();
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(Json(Post("/apply-template", "{" + messages + "}").body)["prompt"], "<|im_start|>hi<|im_end|><|im_start|>");
  EXPECT_EQ(Json(Post("/apply-template", "{" + messages + R"(,"add_generation_prompt":false})").body)["prompt"],
            "<|im_start|>hi<|im_end|>");
  EXPECT_EQ(Post("/apply-template", R"({"messages":[{"role":"user","content":"raise"}]})").status, 400);
}

TEST_F(ModelApiTest, HealthIs503UnlessAllIsWell) {
  service_.health = {"ok", {{0, 41, "cpu", 0, 15, "up", 7}}};
  StartServer();
  HttpReply reply = Get("/health");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(
      reply.body,
      R"({"status":"ok","stages":[{"stage":0,"pid":41,"device":"cpu","layers":[0,15],"state":"up","last_step":7}]})");
  for (const char* status : {"loading", "degraded", "draining"}) {
    service_.health.status = status;
    reply = Get("/v1/health");
    EXPECT_EQ(reply.status, 503) << status;
    EXPECT_EQ(Json(reply.body)["status"], status);
  }
}

TEST_F(ModelApiTest, MetricsHaveEverySeriesOfTheInterface) {
  metrics_.SetRequestsRunning(2);
  metrics_.RequestCancelled(RequestPhase::kPrefill);
  metrics_.AddStageReadBytes(1, 4096);
  metrics_.SaveDone(TransferResult::kOk, 0.5);
  metrics_.SetConversations(ConversationState::kSaved, 3);
  StartServer();
  Get("/v1/models");
  Get("/v1/kv/conversations/some-id");
  const HttpReply reply = Get("/metrics");
  EXPECT_NE(std::find(reply.headers.begin(), reply.headers.end(),
                      std::pair<std::string, std::string>("content-type", "text/plain; version=0.0.4")),
            reply.headers.end());
  for (const char* line :
       {"layover_requests_running 2\n", "layover_requests_queued 0\n",
        "layover_requests_cancelled_total{phase=\"queued\"} 0\n",
        "layover_requests_cancelled_total{phase=\"prefill\"} 1\n",
        "layover_stage_store_read_bytes_total{stage=\"0\"} 0\n",
        "layover_stage_store_read_bytes_total{stage=\"1\"} 4096\n",
        "layover_stage_store_written_bytes_total{stage=\"1\"} 0\n", "layover_saves_total{result=\"ok\"} 1\n",
        "layover_restores_total{result=\"refused\"} 0\n", "layover_evictions_total{tier=\"host\"} 0\n",
        "layover_conversations{state=\"saved\"} 3\n", "layover_conversation_bytes{tier=\"disk\"} 0\n",
        "layover_store_bytes 0\n", "layover_journal_errors_total 0\n", "layover_stage_restarts_total{stage=\"0\"} 0\n",
        "layover_save_seconds_count 1\n", "layover_http_requests_total{code=\"200\",route=\"/v1/models\"} 1\n",
        "layover_http_requests_total{code=\"200\",route=\"/v1/kv/conversations/{id}\"} 1\n"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << reply.body;
  }
  EXPECT_EQ(reply.body.find("some-id"), std::string::npos) << "no id is ever a label";
}

TEST_F(ModelApiTest, WhatIsNotThereSaysSoInJson) {
  StartServer();
  for (const char* target : {"/v1/embeddings", "/v1/rerank", "/infill"}) {
    EXPECT_EQ(Json(Post(target, "{}").body)["error"]["type"], "not_supported_error") << target;
  }
  for (const char* target : {"/nothing", "/api/tags", "/v1", "/v1//models", "/v1/models/", "/V1/models", "//"}) {
    const HttpReply reply = Get(target);
    EXPECT_EQ(reply.status, 404) << target;
    EXPECT_EQ(Json(reply.body)["error"]["type"], "not_found_error") << target;
  }
  const HttpReply wrong_method = Call("PUT", "/v1/kv/conversations/x");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(Json(wrong_method.body)["error"]["code"], "method_not_allowed");
  EXPECT_NE(std::find(wrong_method.headers.begin(), wrong_method.headers.end(),
                      std::pair<std::string, std::string>("allow", "GET, HEAD, DELETE")),
            wrong_method.headers.end());
}

}  // namespace
}  // namespace layover::testing
