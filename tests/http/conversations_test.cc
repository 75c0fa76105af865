// /v1/kv/conversations, and the JSON of service.h's structs.
#include <future>

#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

using nlohmann::ordered_json;

constexpr char kOne[] = "/v1/kv/conversations/c1";

ConversationInfo Info() {
  ConversationInfo info;
  info.id = "c1";
  info.state = ConversationState::kSaved;
  info.n_tokens = 100;
  info.saved_n_tokens = 99;
  info.generation = 3;
  info.bytes_disk = 4096;
  info.branches = 2;
  info.created_at = 1700000000;
  info.last_used_at = 1700000001;
  info.identity = "abcd";
  return info;
}

constexpr char kInfoText[] =
    R"("id":"c1","state":"saved","n_tokens":100,"saved_n_tokens":99,"generation":3,"bytes_device":0,"bytes_host":0,)"
    R"("bytes_disk":4096,"branches":2,"pinned":false,"created_at":1700000000,"last_used_at":1700000001,)"
    R"("identity":"abcd","last_error":null)";

SaveResult Saved() {
  return {"c1", 3, 99, 300, 700, 12, {{0, 0, 15, 100, 300, 0, 5}, {1, 15, 30, 200, 400, 0, 7}}};
}
constexpr char kSavedText[] =
    R"({"id":"c1","generation":3,"n_tokens":99,"bytes_written":300,"bytes_kept":700,"ms":12,"stages":[)"
    R"({"stage":0,"layers":[0,15],"bytes_written":100,"bytes_kept":300,"ms":5},)"
    R"({"stage":1,"layers":[15,30],"bytes_written":200,"bytes_kept":400,"ms":7}]})";

RestoreResult Restored() {
  RestoreResult result;
  result.id = "c1";
  result.generation = 3;
  result.n_tokens = 99;
  result.bytes_read = 1000;
  result.ms = 9;
  result.stages = {{0, 0, 30, 0, 0, 1000, 9}};
  return result;
}

TEST(ConversationJson, OneAndItsDetails) {
  ConversationInfo info = Info();
  EXPECT_EQ(ToText(ConversationJson(info, false)), "{" + std::string(kInfoText) + "}");
  EXPECT_EQ(ToText(ConversationJson(info, true)),
            "{" + std::string(kInfoText) + R"(,"branch_list":[],"segments":[],"last_save":null,"divergence":null})");
  info.branch_list = {{100, 0, 99, ConversationState::kSaved, {40, 98}}, {50, 40, 0, ConversationState::kIdle, {}}};
  info.segments = {{"s00-g000003.seg", 0, 3, 0, 15, 500, 400}};
  info.last_save = {{10, 20}};
  info.divergence = Divergence{7, {1, 2}, {1, 3}};
  info.last_error = "restore refused";
  const ordered_json json = ConversationJson(info, true);
  EXPECT_EQ(json["branch_list"].dump(),
            R"([{"n_tokens":100,"fork_position":0,"saved_n_tokens":99,"state":"saved","checkpoints":[40,98]},)"
            R"({"n_tokens":50,"fork_position":40,"saved_n_tokens":0,"state":"idle","checkpoints":[]}])");
  EXPECT_EQ(json["segments"].dump(),
            R"([{"file":"s00-g000003.seg","stage":0,"generation":3,"layers":[0,15],"bytes":500,"live_bytes":400}])");
  EXPECT_EQ(json["last_save"].dump(), R"({"bytes_written":10,"bytes_kept":20})");
  EXPECT_EQ(json["divergence"].dump(), R"({"position":7,"had":[1,2],"got":[1,3]})");
  EXPECT_EQ(json["last_error"], "restore refused");
}

TEST(ConversationJson, EveryStateHasItsName) {
  const char* names[] = {"active", "idle", "parked", "saved", "saving", "restoring"};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(ConversationStateName(static_cast<ConversationState>(i)), names[i]);
}

TEST(ConversationJson, RestoreSaysItsProofAndWarnings) {
  RestoreResult result = Restored();
  EXPECT_EQ(ToText(RestoreJson(result)),
            R"({"id":"c1","generation":3,"n_tokens":99,"bytes_read":1000,"ms":9,"proof":null,)"
            R"("stages":[{"stage":0,"layers":[0,30],"bytes_read":1000,"ms":9}]})");
  result.proof = "bit-exact";
  result.warnings = {"template changed"};
  EXPECT_EQ(RestoreJson(result)["proof"], "bit-exact");
  EXPECT_EQ(RestoreJson(result)["warnings"], ordered_json::array({"template changed"}));
}

TEST(ConversationJson, VerifyNamesThePart) {
  VerifyResult result;
  result.id = "c1";
  result.ok = false;
  result.n_records = 5;
  result.problems = {{"s01-g000002.seg", 1, 17, "digest differs"}, {"manifest.json", -1, -1, "cut short"}};
  EXPECT_EQ(VerifyJson(result)["problems"].dump(),
            R"([{"file":"s01-g000002.seg","stage":1,"layer":17,"what":"digest differs"},)"
            R"({"file":"manifest.json","stage":null,"layer":null,"what":"cut short"}])");
}

// -------------------------------------------------------------------------------------------------------------- routes

class ConversationsTest : public HttpTest {};

TEST_F(ConversationsTest, ListShowAndDelete) {
  service_.page = ConversationPage{{Info()}, "c1"};
  service_.info = Info();
  StartServer();
  EXPECT_EQ(Get("/v1/kv/conversations?limit=5&after=c%200").body,
            R"({"object":"list","data":[{)" + std::string(kInfoText) + R"(}],"next":"c1"})");
  EXPECT_EQ(service_.last_list_after(), "c 0");
  EXPECT_EQ(service_.last_list_limit(), 5);
  service_.page->next = "";
  EXPECT_EQ(Json(Get("/v1/kv/conversations").body)["next"], nullptr);
  EXPECT_EQ(service_.last_list_limit(), limits::kMaxListedConversations);
  for (const char* limit : {"0", "-1", "x", "1001", ""}) {
    EXPECT_EQ(Get(std::string("/v1/kv/conversations?limit=") + limit).status, 400) << limit;
  }
  EXPECT_EQ(Json(Get(kOne).body)["segments"], ordered_json::array());
  EXPECT_EQ(Call("DELETE", kOne).body, R"({"id":"c1","deleted":true})");
  EXPECT_EQ(service_.last_call(), "|c1");
}

TEST_F(ConversationsTest, IdsArePercentDecodedOnce) {
  StartServer();
  Get("/v1/kv/conversations/a%2Fb%20c%2525");
  EXPECT_EQ(service_.last_call(), "|a/b c%25");
  Get("/v1/kv/conversations/..");
  EXPECT_EQ(service_.last_call(), "|..") << "an id is only a name";
  EXPECT_EQ(Get("/v1/kv/conversations/a/b").status, 404);
  EXPECT_EQ(Get("/v1/kv/conversations/").status, 404);
  for (const char* bad : {"%00", "%0A", "%C3%A9", "%zz", "%2"}) {
    EXPECT_EQ(Get(std::string("/v1/kv/conversations/") + bad).status, 400) << bad;
  }
  EXPECT_EQ(Get("/v1/kv/conversations/" + std::string(257, 'x')).status, 400);
  EXPECT_EQ(Get("/v1/kv/conversations/" + std::string(256, 'x')).status, 200);
}

TEST_F(ConversationsTest, SaveAndRestoreAnswerWhole) {
  service_.on_save = [](const std::string&, ProgressCallback progress, Callback<SaveResult> done) {
    EXPECT_FALSE(progress);
    done(Saved());
  };
  bool proven = false;
  service_.on_restore = [&](const std::string&, bool prove, ProgressCallback, Callback<RestoreResult> done) {
    proven = prove;
    done(Restored());
  };
  StartServer();
  EXPECT_EQ(Post(std::string(kOne) + "/save", "").body, kSavedText);
  EXPECT_EQ(Json(Post(std::string(kOne) + "/restore", "").body)["n_tokens"], 99);
  EXPECT_FALSE(proven);
  Post(std::string(kOne) + "/restore", R"({"prove":true})");
  EXPECT_TRUE(proven);
  EXPECT_EQ(Post(std::string(kOne) + "/restore", R"({"prove":1})").status, 400);
  EXPECT_EQ(Post(std::string(kOne) + "/restore", "{").status, 400);
}

TEST_F(ConversationsTest, RefusalsKeepTheirCode) {
  service_.on_save = [](const std::string&, ProgressCallback, Callback<SaveResult> done) {
    done(ResourceExhausted("min_free would be broken"));
  };
  service_.info = NotFound("no conversation c1");
  service_.deleted = Aborted("c1 is active");
  StartServer();
  EXPECT_EQ(Post(std::string(kOne) + "/save", "").status, 507);
  EXPECT_EQ(Post(std::string(kOne) + "/save?stream=true", "").status, 507) << "nothing was streamed yet";
  EXPECT_EQ(Get(kOne).status, 404);
  EXPECT_EQ(Call("DELETE", kOne).status, 409);
}

TEST_F(ConversationsTest, AStreamedSaveRisesAndEndsWithItsResult) {
  service_.on_save = [](const std::string&, ProgressCallback progress, Callback<SaveResult> done) {
    progress({"save", 100, 300, {{0, 100, 100}, {1, 0, 200}}});
    progress({"save", 100, 300, {}});
    progress({"save", 50, 300, {}});
    progress({"save", 300, 300, {}});
    done(Saved());
  };
  StartServer();
  const std::vector<std::string> expected = {
      R"({"progress":{"verb":"save","bytes_done":100,"bytes_total":300,"stages":[)"
      R"({"stage":0,"bytes_done":100,"bytes_total":100},{"stage":1,"bytes_done":0,"bytes_total":200}]}})",
      R"({"progress":{"verb":"save","bytes_done":300,"bytes_total":300,"stages":[]}})",
      R"({"result":)" + std::string(kSavedText) + "}", "[DONE]"};
  EXPECT_EQ(Events(std::string(kOne) + "/save?stream=true", ""), expected);
}

TEST_F(ConversationsTest, AStreamedRestoreTooShortForReportsStillSaysHowFarItWent) {
  service_.on_restore = [](const std::string&, bool, ProgressCallback, Callback<RestoreResult> done) {
    done(Restored());
  };
  StartServer();
  const auto events = Events(std::string(kOne) + "/restore?stream=true", "");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0], R"({"progress":{"verb":"restore","bytes_done":1000,"bytes_total":1000,)"
                       R"("stages":[{"stage":0,"bytes_done":1000,"bytes_total":1000}]}})");
}

TEST_F(ConversationsTest, AFailureInMidTransferIsAnErrorEvent) {
  service_.on_restore = [](const std::string&, bool, ProgressCallback progress, Callback<RestoreResult> done) {
    progress({"restore", 1, 2, {}});
    done(DataLoss("journal: damaged"));
  };
  StartServer();
  const auto events = Events(std::string(kOne) + "/restore?stream=1", "");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(Json(events[1])["error"]["message"], "journal: damaged");
  EXPECT_EQ(events[2], "[DONE]");
}

TEST_F(ConversationsTest, AStreamAlwaysSaysThatTheWholeIsDone) {
  service_.on_restore = [](const std::string&, bool, ProgressCallback progress, Callback<RestoreResult> done) {
    progress({"restore", 400, 1000, {{0, 400, 1000}}});
    done(Restored());
  };
  StartServer();
  const auto events = Events(std::string(kOne) + "/restore?stream=true", "");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(Json(events[1])["progress"]["stages"].dump(), R"([{"stage":0,"bytes_done":1000,"bytes_total":1000}])");
  EXPECT_EQ(Json(events[2])["result"]["bytes_read"], 1000);
}

TEST_F(ConversationsTest, AWatcherThatLeavesDoesNotStopTheSave) {
  std::promise<std::pair<ProgressCallback, Callback<SaveResult>>> asked;
  service_.on_save = [&asked](const std::string&, ProgressCallback progress, Callback<SaveResult> done) {
    asked.set_value({std::move(progress), std::move(done)});
  };
  StartServer();
  RawClient client(port());
  client.Send("POST /v1/kv/conversations/c1/save?stream=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  auto [progress, done] = asked.get_future().get();
  progress({"save", 100, 300, {}});
  EXPECT_NE(client.ReadUntil("bytes_done").find("text/event-stream"), std::string::npos);
  client.Close();
  progress({"save", 200, 300, {}});
  done(Saved());
  EXPECT_EQ(service_.cancels(), 0);
  EXPECT_EQ(Get("/health").status, 200);
}

// One refusal of every kind that names its part, from a call that answers whole and from one that streams.
TEST_F(ConversationsTest, RefusalsOfARestoreNameTheirPart) {
  struct Row {
    absl::Status status;
    int http;
    const char* error;
  };
  const Row rows[] = {
      {WithPart(FailedPrecondition("manifest.json: other weights"), {.file = "manifest.json", .field = "weights"}), 409,
       R"({"message":"manifest.json: other weights","type":"conflict_error","param":null,"code":"identity_mismatch",)"
       R"("file":"manifest.json","field":"weights"})"},
      {WithPart(DataLoss("s01-g000017.seg: cut short"), {.file = "s01-g000017.seg", .stage = 1}), 422,
       R"({"message":"s01-g000017.seg: cut short","type":"unprocessable_entity_error","param":null,)"
       R"("code":"image_damaged","file":"s01-g000017.seg","stage":1})"},
      {Aborted("c1 is active"), 409,
       R"({"message":"c1 is active","type":"conflict_error","param":null,"code":"conversation_busy"})"},
      {NotFound("no c1"), 404,
       R"({"message":"no c1","type":"not_found_error","param":null,"code":"conversation_not_found"})"}};
  absl::Status refusal;
  service_.on_restore = [&refusal](const std::string&, bool, ProgressCallback, Callback<RestoreResult> done) {
    done(refusal);
  };
  StartServer();
  for (const Row& row : rows) {
    refusal = row.status;
    for (const char* query : {"", "?stream=true", "?stream=false"}) {
      const HttpReply reply = Post(std::string(kOne) + "/restore" + query, "");
      EXPECT_EQ(reply.status, row.http) << query;
      EXPECT_EQ(reply.body, R"({"error":)" + std::string(row.error) + "}") << query;
    }
  }
}

TEST_F(ConversationsTest, VerifyWithProblemsIsStill200) {
  service_.verify = VerifyResult{"c1", false, 3, 12, 4096, {{"s00-g000003.seg", 0, 2, "digest differs"}}};
  StartServer();
  const HttpReply reply = Post(std::string(kOne) + "/verify", "");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, R"({"id":"c1","ok":false,"generation":3,"n_records":12,"bytes":4096,"problems":[)"
                        R"({"file":"s00-g000003.seg","stage":0,"layer":2,"what":"digest differs"}]})");
  EXPECT_EQ(service_.last_call(), "|c1");
  service_.verify = NotFound("no c1");
  EXPECT_EQ(Post(std::string(kOne) + "/verify", "").status, 404);
}

TEST_F(ConversationsTest, Park) {
  service_.parked = ParkResult{"c1", 8192};
  StartServer();
  EXPECT_EQ(Post(std::string(kOne) + "/park", "").body, R"({"id":"c1","bytes_host":8192})");
  EXPECT_EQ(service_.last_call(), "|c1");
  service_.parked = Aborted("c1 is active");
  EXPECT_EQ(Json(Post(std::string(kOne) + "/park", "").body)["error"]["code"], "conversation_busy");
  service_.parked = ResourceExhausted("park.ram_budget is smaller");
  EXPECT_EQ(Post(std::string(kOne) + "/park", "").status, 507);
}

TEST_F(ConversationsTest, ForkAnswersWithTheNewConversation) {
  service_.info = Info();
  service_.info->id = "c 2";
  StartServer();
  EXPECT_EQ(Json(Post(std::string(kOne) + "/fork", R"({"new_id":"c 2"})").body),
            Json(ToText(ConversationJson(*service_.info, /*detail=*/false))));
  EXPECT_EQ(service_.last_call(), "|c1|c 2");
  service_.info = absl::AlreadyExistsError("there is a c 2");
  const HttpReply taken = Post(std::string(kOne) + "/fork", R"({"new_id":"c 2"})");
  EXPECT_EQ(taken.status, 409);
  EXPECT_EQ(Json(taken.body)["error"]["code"], "conversation_exists");
}

TEST_F(ConversationsTest, RewindSaysWhereItIs) {
  service_.rewound = RewindResult{"c1", 64};
  StartServer();
  EXPECT_EQ(Post(std::string(kOne) + "/rewind", R"({"to":64})").body, R"({"id":"c1","n_tokens":64})");
  EXPECT_EQ(service_.last_call(), "|c1|64");
  Post(std::string(kOne) + "/rewind", R"({"to":0})");
  EXPECT_EQ(service_.last_call(), "|c1|0");
  service_.rewound = WithPart(InvalidArgument("to: c1 has 70 tokens"), {.param = "to"});
  const HttpReply past = Post(std::string(kOne) + "/rewind", R"({"to":71})");
  EXPECT_EQ(past.status, 400);
  EXPECT_EQ(Json(past.body)["error"]["param"], "to");
}

TEST_F(ConversationsTest, WrongBodiesOfForkAndRewindNameTheField) {
  StartServer();
  const std::string long_id(257, 'x');
  for (const std::string& body :
       {std::string("{}"), std::string(R"({"new_id":null})"), std::string(R"({"new_id":5})"),
        std::string(R"({"new_id":""})"), std::string(R"({"new_id":"a\nb"})"), R"({"new_id":")" + long_id + "\"}"}) {
    const HttpReply reply = Post(std::string(kOne) + "/fork", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(Json(reply.body)["error"]["param"], "new_id") << body;
  }
  for (const char* body : {"{}", R"({"to":null})", R"({"to":"5"})", R"({"to":-1})", R"({"to":1.5})",
                           R"({"to":18446744073709551615})", R"({"to":true})"}) {
    const HttpReply reply = Post(std::string(kOne) + "/rewind", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(Json(reply.body)["error"]["param"], "to") << body;
  }
  for (const char* verb : {"/fork", "/rewind"}) {
    EXPECT_EQ(Post(kOne + std::string(verb), "").status, 400) << verb;
    EXPECT_EQ(Post("/v1/kv/conversations/%00" + std::string(verb), R"({"new_id":"a","to":1})").status, 400) << verb;
    EXPECT_EQ(Get(kOne + std::string(verb)).status, 405) << verb;
  }
  EXPECT_EQ(service_.last_call(), "") << "nothing was asked of the engine";
  EXPECT_EQ(Post(std::string(kOne) + "/dance", "{}").status, 404);
}

}  // namespace
}  // namespace layover::testing
