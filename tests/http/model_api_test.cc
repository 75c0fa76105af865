// Models, props, tokenizer endpoints, health, metrics, and what is not there.
#include <future>

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

TEST_F(ModelApiTest, PropsShowTheTemplateButNotTheModelsPath) {
  StartServer();
  const ordered_json props = Json(Get("/props").body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 64);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_path"], "tiny.gguf");
  EXPECT_EQ(props["chat_template"], "the template");
  EXPECT_TRUE(props["store"].is_null()) << props;
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

// Every family of the interface and every label that can be named beforehand, from the start.
TEST_F(ModelApiTest, MetricsHaveEverySeriesOfTheInterface) {
  StartServer();
  const HttpReply reply = Get("/metrics");
  EXPECT_NE(std::find(reply.headers.begin(), reply.headers.end(),
                      std::pair<std::string, std::string>("content-type", "text/plain; version=0.0.4")),
            reply.headers.end());
  std::vector<std::string> wanted = {"layover_requests_running",
                                     "layover_requests_queued",
                                     "layover_store_bytes",
                                     "layover_journal_errors_total",
                                     "layover_output_tokens_total",
                                     "layover_queue_seconds_count",
                                     "layover_prefill_seconds_count",
                                     "layover_time_to_first_token_seconds_count",
                                     "layover_save_seconds_count",
                                     "layover_restore_seconds_count",
                                     "layover_inter_token_seconds_count"};
  const auto each = [&wanted](const char* family, const char* label, const std::vector<const char*>& values) {
    for (const char* value : values) wanted.push_back(fmt::format("{}{{{}=\"{}\"}}", family, label, value));
  };
  each("layover_requests_cancelled_total", "phase", {"queued", "prefill", "decode"});
  each("layover_stage_store_read_bytes_total", "stage", {"0", "1"});
  each("layover_stage_store_written_bytes_total", "stage", {"0", "1"});
  each("layover_stage_restarts_total", "stage", {"0", "1"});
  each("layover_saves_total", "result", {"ok", "refused", "failed"});
  each("layover_restores_total", "result", {"ok", "refused", "failed"});
  each("layover_evictions_total", "tier", {"device", "host", "disk"});
  each("layover_conversation_bytes", "tier", {"device", "host", "disk"});
  each("layover_conversations", "state", {"active", "idle", "parked", "saved", "saving", "restoring"});
  each("layover_transfers_running", "verb", {"save", "restore"});
  for (const std::string& series : wanted) {
    EXPECT_NE(reply.body.find("\n" + series + " 0\n"), std::string::npos) << series << "\n" << reply.body;
  }
}

TEST_F(ModelApiTest, MetricsCount) {
  metrics_.SetRequestsRunning(2);
  metrics_.RequestCancelled(RequestPhase::kPrefill);
  metrics_.AddStageReadBytes(1, 4096);
  metrics_.SaveDone(TransferResult::kOk, 0.5);
  metrics_.SetConversations(ConversationState::kSaved, 3);
  StartServer();
  Get("/v1/models");
  Get("/v1/kv/conversations/some-id");
  const HttpReply reply = Get("/metrics");
  for (const char* line :
       {"layover_requests_running 2\n", "layover_requests_cancelled_total{phase=\"prefill\"} 1\n",
        "layover_stage_store_read_bytes_total{stage=\"1\"} 4096\n", "layover_saves_total{result=\"ok\"} 1\n",
        "layover_conversations{state=\"saved\"} 3\n", "layover_save_seconds_count 1\n",
        "layover_http_requests_total{code=\"200\",route=\"/v1/models\"} 1\n",
        "layover_http_requests_total{code=\"200\",route=\"/v1/kv/conversations/{id}\"} 1\n"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << reply.body;
  }
  EXPECT_EQ(reply.body.find("some-id"), std::string::npos) << "no id is ever a label";
}

TEST_F(ModelApiTest, MetricsSayHowFarTransfersAre) {
  StartServer();
  const auto expect = [this](std::initializer_list<const char*> lines) {
    const std::string text = Get("/metrics").body;
    for (const char* line : lines) EXPECT_NE(text.find(line), std::string::npos) << line << text;
  };
  metrics_.TransferMoved(1, {"save", 30, 300, {{0, 10, 100}, {1, 20, 200}}});
  metrics_.TransferMoved(2, {"save", 5, 50, {{1, 5, 50}}});
  metrics_.TransferMoved(3, {"restore", 7, 70, {{0, 7, 70}}});
  metrics_.TransferMoved(1, {"save", 60, 300, {{0, 20, 100}, {1, 40, 200}}});
  expect({"layover_transfers_running{verb=\"save\"} 2\n", "layover_transfers_running{verb=\"restore\"} 1\n",
          "layover_transfer_bytes_done{stage=\"0\",verb=\"save\"} 20\n",
          "layover_transfer_bytes_done{stage=\"1\",verb=\"save\"} 45\n",
          "layover_transfer_bytes_total{stage=\"1\",verb=\"save\"} 250\n",
          "layover_transfer_bytes_done{stage=\"0\",verb=\"restore\"} 7\n",
          "layover_transfer_bytes_total{stage=\"0\",verb=\"restore\"} 70\n"});
  metrics_.TransferEnded(1);
  metrics_.TransferEnded(3);
  metrics_.TransferEnded(3);
  expect({"layover_transfers_running{verb=\"save\"} 1\n", "layover_transfers_running{verb=\"restore\"} 0\n",
          "layover_transfer_bytes_done{stage=\"0\",verb=\"save\"} 0\n",
          "layover_transfer_bytes_total{stage=\"1\",verb=\"save\"} 50\n",
          "layover_transfer_bytes_total{stage=\"0\",verb=\"restore\"} 0\n"});
}

TEST_F(ModelApiTest, HealthAndMetricsAnswerWhileEveryWorkerIsBusy) {
  options_.limits.workers = 1;
  std::promise<void> entered;
  std::promise<void> release;
  service_.script = [&](const GenerationRequest&, GenerationObserver& observer) {
    entered.set_value();
    release.get_future().wait();
    Play(IdsOf("x"), FinishReason::kStop, {}, observer);
  };
  StartServer();
  auto busy = std::async(std::launch::async, [this] { return Post("/v1/completions", R"({"prompt":"a"})").status; });
  entered.get_future().wait();
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/v1/health").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
  release.set_value();
  EXPECT_EQ(busy.get(), 200);
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
