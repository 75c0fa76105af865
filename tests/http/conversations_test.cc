// /v1/kv/conversations and the JSON of service.h's structs, and every status of the engine as HTTP.
#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
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
            "{" + std::string(kInfoText) + R"(,"segments":[],"last_save":null,"divergence":null})");
  info.segments = {{"s00-g000003.seg", 0, 3, 0, 15, 500, 400}};
  info.last_save = {{10, 20}};
  info.divergence = Divergence{7, {1, 2}, {1, 3}};
  info.last_error = "restore refused";
  const ordered_json json = ConversationJson(info, true);
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

// ------------------------------------------------------------------------------------------------------------- errors

TEST(Errors, EveryStatusHasItsCodeAndType) {
  struct Row {
    absl::Status status;
    int http;
    const char* type;
    ordered_json code;
  };
  const Row rows[] = {{InvalidArgument("m"), 400, "invalid_request_error", nullptr},
                      {absl::UnauthenticatedError("m"), 401, "authentication_error", "invalid_api_key"},
                      {absl::PermissionDeniedError("m"), 403, "permission_error", nullptr},
                      {NotFound("m"), 404, "not_found_error", "conversation_not_found"},
                      {FailedPrecondition("m"), 409, "conflict_error", "identity_mismatch"},
                      {Aborted("m"), 409, "conflict_error", "conversation_busy"},
                      {DataLoss("m"), 422, "unprocessable_entity_error", "image_damaged"},
                      {Internal("m"), 500, "server_error", nullptr},
                      {absl::UnknownError("m"), 500, "server_error", nullptr},
                      {Unimplemented("m"), 501, "not_supported_error", nullptr},
                      {Unavailable("m"), 503, "unavailable_error", nullptr},
                      {DeadlineExceeded("m"), 504, "timeout_error", nullptr},
                      {ResourceExhausted("m"), 507, "insufficient_storage", "no_space"}};
  for (const Row& row : rows) {
    const HttpReply reply = ErrorReply(row.status);
    EXPECT_EQ(reply.status, row.http) << row.status;
    EXPECT_EQ(
        Json(reply.body),
        (ordered_json{{"error", {{"message", "m"}, {"type", row.type}, {"param", nullptr}, {"code", row.code}}}}));
    const auto has = [&reply](const char* name, const char* value) {
      return std::find(reply.headers.begin(), reply.headers.end(), std::pair<std::string, std::string>(name, value)) !=
             reply.headers.end();
    };
    EXPECT_EQ(has("x-should-retry", "false"), row.http == 409 || row.http == 501 || row.http == 507) << row.http;
    EXPECT_EQ(has("Retry-After", "2"), row.http == 503) << row.http;
  }
}

TEST(Errors, CarryThePart) {
  const absl::Status status = WithPart(DataLoss("s01-g000017.seg: digest differs"),
                                       {.file = "s01-g000017.seg", .stage = 1, .field = "weights"});
  EXPECT_EQ(ToText(ErrorObject(status)),
            R"({"message":"s01-g000017.seg: digest differs","type":"unprocessable_entity_error","param":null,)"
            R"("code":"image_damaged","file":"s01-g000017.seg","stage":1,"field":"weights"})");
}

TEST(Errors, AMessageThatIsNotUtf8IsStillJson) {
  EXPECT_NE(ErrorReply(Internal("bad \xff byte")).body.find("bad \xEF\xBF\xBD byte"), std::string::npos);
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

TEST_F(ConversationsTest, VerbsOfLaterVersionsSay501) {
  StartServer();
  for (const char* verb : {"park", "fork", "rewind"}) {
    const HttpReply reply = Post(std::string(kOne) + "/" + verb, "{}");
    EXPECT_EQ(reply.status, 501) << verb;
    EXPECT_EQ(Json(reply.body)["error"]["type"], "not_supported_error");
  }
  EXPECT_EQ(Post(std::string(kOne) + "/dance", "{}").status, 404);
}

}  // namespace
}  // namespace layover::testing
