// llama-server's slots: its shapes, its status codes, and names that never become paths.
#include "common/status.h"
#include "coordinator/http/slot_filename.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

using nlohmann::ordered_json;

std::string IdOf(std::string_view filename) {
  const absl::StatusOr<std::string> id = ConversationIdOfSlotFile(filename);
  EXPECT_TRUE(id.ok()) << filename << ": " << id.status();
  return id.ok() ? *id : "";
}

TEST(SlotFilenames, AreTheIdsOfTheirConversations) {
  for (const char* name : {"slot1.bin", "a", "my chat", "-", ".hidden", "a.b.c", "~", "#&;$(x)`'", "CON"}) {
    EXPECT_EQ(IdOf(name), name);
  }
}

TEST(SlotFilenames, WhatIsNotAsciiIsEncodedSoThatNoTwoAreOne) {
  EXPECT_EQ(IdOf("caf\xC3\xA9"), "caf%C3%A9");
  EXPECT_EQ(IdOf("caf%C3%A9"), "caf%25C3%25A9");
  EXPECT_EQ(IdOf("\xF0\x9F\x99\x82"), "%F0%9F%99%82");
}

TEST(SlotFilenames, LengthIsBoundedAsAFileNameAndAsAnId) {
  EXPECT_EQ(IdOf(std::string(255, 'x')).size(), 255u);
  EXPECT_FALSE(ConversationIdOfSlotFile(std::string(256, 'x')).ok());
  EXPECT_FALSE(ConversationIdOfSlotFile(std::string(300, 'x')).ok());
  std::string two_byte;
  for (int i = 0; i < 42; ++i) two_byte += "\xC3\xA9";
  EXPECT_EQ(IdOf(two_byte).size(), 252u);
  EXPECT_FALSE(ConversationIdOfSlotFile(two_byte + "\xC3\xA9").ok());
}

TEST(SlotFilenames, WhatLlamaServerRefusesIsRefused) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view name :
       {""sv, "."sv, ".."sv, "../x"sv, "/etc/passwd"sv, "a/b"sv, "a\\b"sv, "C:x"sv, "a..b"sv, "x."sv, " x"sv, "x "sv,
        "a*"sv, "a?"sv, "a\"b"sv, "<a"sv, "a>"sv, "a|b"sv, "a\nb"sv, "a\tb"sv, "a\0b"sv, "\x7F"sv, "a\xC2\x85"sv,
        "a\xEF\xBC\x8E"sv, "a\xE2\x88\x95"sv, "a\xE2\x88\x96"sv, "\xEF\xBF\xBD"sv, "\xEF\xBB\xBFx"sv,
        // Not UTF-8: a stray byte, one cut short, overlong forms of '/', a surrogate, beyond the last code point.
        "\xFF"sv, "a\xC3"sv, "\xC0\xAF"sv, "\xE0\x80\xAF"sv, "\xED\xA0\x80"sv, "\xF4\x90\x80\x80"sv}) {
    const absl::Status status = ConversationIdOfSlotFile(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    ASSERT_TRUE(PartOf(status).has_value());
    EXPECT_EQ(PartOf(status)->param, "filename");
    EXPECT_TRUE(ToStd(status.message()).starts_with("Invalid filename")) << status;
  }
}

class SlotsTest : public HttpTest {
 protected:
  // The reply's JSON, with the times, which must be there, taken out.
  ordered_json Act(const std::string& target, const std::string& body, const char* time) {
    const HttpReply reply = Post(target, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    ordered_json json = Json(reply.body);
    EXPECT_TRUE(json["timings"][time].is_number_float()) << reply.body;
    json.erase("timings");
    return json;
  }
};

TEST_F(SlotsTest, EachTellsWhatItHoldsAndDoes) {
  service_.slots = {{0, true, 12, 7, 3, 20}, {1, false, 0}};
  StartServer();
  EXPECT_EQ(Get("/slots").body,
            R"([{"id":0,"id_task":7,"n_ctx":64,"speculative":false,"is_processing":true,"n_tokens":12,)"
            R"("next_token":{"has_next_token":true,"n_remain":20,"n_decoded":3}},)"
            R"({"id":1,"id_task":-1,"n_ctx":64,"speculative":false,"is_processing":false,"n_tokens":0}])");
  EXPECT_EQ(Get("/slots?fail_on_no_slot=1").status, 200);
  service_.slots[1].is_processing = true;
  EXPECT_EQ(Get("/slots?fail_on_no_slot=1").status, 503);
  EXPECT_EQ(Get("/slots").status, 200);
}

TEST_F(SlotsTest, Save) {
  service_.slot_saved = SaveResult{"slot.bin", 1, 1745, 14309796, 512, 49, {}};
  StartServer();
  EXPECT_EQ(Act("/slots/3?action=save", R"({"filename":"slot.bin"})", "save_ms").dump(),
            R"({"id_slot":3,"filename":"slot.bin","n_saved":1745,"n_written":14309796,"n_kept":512})");
  EXPECT_EQ(service_.last_call(), "|3|slot.bin");
}

TEST_F(SlotsTest, Restore) {
  service_.slot_restored = RestoreResult{};
  service_.slot_restored->n_tokens = 1745;
  service_.slot_restored->bytes_read = 14309796;
  StartServer();
  EXPECT_EQ(Act("/slots/0?action=restore", R"({"filename":"caf\u00e9"})", "restore_ms").dump(),
            "{\"id_slot\":0,\"filename\":\"caf\xC3\xA9\",\"n_restored\":1745,\"n_read\":14309796}");
  EXPECT_EQ(service_.last_call(), "|0|caf%C3%A9");
  service_.slot_restored->warnings = {"template changed"};
  EXPECT_EQ(Act("/slots/0?action=restore", R"({"filename":"a"})", "restore_ms")["warnings"][0], "template changed");
}

TEST_F(SlotsTest, Erase) {
  service_.slot_erased = 1745;
  StartServer();
  EXPECT_EQ(Post("/slots/2?action=erase", "").body, R"({"id_slot":2,"n_erased":1745})");
  EXPECT_EQ(Post("/slots/2?action=erase", "{}").body, R"({"id_slot":2,"n_erased":1745})");
  EXPECT_EQ(service_.last_call(), "|2");
}

TEST_F(SlotsTest, WhatIsWrongIsA400BeforeTheEngineIsAsked) {
  StartServer();
  struct Row {
    const char* target;
    std::string body;
    const char* param;
  };
  const std::string good = R"({"filename":"a"})";
  const Row rows[] = {{"/slots/4?action=save", good, "id_slot"},
                      {"/slots/-1?action=save", good, "id_slot"},
                      {"/slots/x?action=save", good, "id_slot"},
                      {"/slots/0x1?action=erase", good, "id_slot"},
                      {"/slots/99999999999?action=erase", good, "id_slot"},
                      {"/slots/0", good, "action"},
                      {"/slots/0?action=", good, "action"},
                      {"/slots/0?action=SAVE", good, "action"},
                      {"/slots/0?action=save", "{}", "filename"},
                      {"/slots/0?action=save", R"({"filename":5})", "filename"},
                      {"/slots/0?action=save", R"({"filename":null})", "filename"},
                      {"/slots/0?action=save", R"({"filename":""})", "filename"},
                      {"/slots/0?action=save", R"({"filename":"../x"})", "filename"},
                      {"/slots/0?action=restore", R"({"filename":"/etc/passwd"})", "filename"},
                      {"/slots/0?action=restore", R"({"filename":"a\u0000b"})", "filename"},
                      {"/slots/0?action=restore", R"({"filename":")" + std::string(300, 'x') + "\"}", "filename"}};
  for (const Row& row : rows) {
    const HttpReply reply = Post(row.target, row.body);
    EXPECT_EQ(reply.status, 400) << row.target << " " << row.body;
    EXPECT_EQ(Json(reply.body)["error"]["param"], row.param) << row.target << " " << row.body;
  }
  for (const char* body :
       {"", "{", "[]", "{\"filename\":\"\xff\"}", "{\"filename\":\"\xC0\xAF\"}", R"({"filename":"\ud800"})"}) {
    EXPECT_EQ(Post("/slots/0?action=save", body).status, 400) << body;
  }
  EXPECT_EQ(service_.last_call(), "");
}

TEST_F(SlotsTest, FailuresKeepTheirStatusButAMissingFileIsA400) {
  StartServer();
  const std::string body = R"({"filename":"a"})";
  service_.slot_restored = NotFound("no conversation a");
  const HttpReply missing = Post("/slots/0?action=restore", body);
  EXPECT_EQ(missing.status, 400);
  EXPECT_EQ(Json(missing.body)["error"]["message"], "Unable to restore slot: nothing is saved as a");
  service_.slot_restored = WithPart(DataLoss("manifest.json: cut short"), {.file = "manifest.json"});
  EXPECT_EQ(Post("/slots/0?action=restore", body).status, 422);
  service_.slot_restored = WithPart(FailedPrecondition("other weights"), {.field = "weights"});
  EXPECT_EQ(Post("/slots/0?action=restore", body).status, 409);
  service_.slot_saved = InvalidArgument("slot 0 is empty");
  EXPECT_EQ(Post("/slots/0?action=save", body).status, 400);
  service_.slot_saved = Unimplemented("no store");
  EXPECT_EQ(Post("/slots/0?action=save", body).status, 501);
  service_.slot_saved = ResourceExhausted("min_free");
  EXPECT_EQ(Post("/slots/0?action=save", body).status, 507);
  service_.slot_erased = Aborted("slot 0 is at work");
  EXPECT_EQ(Post("/slots/0?action=erase", "").status, 409);
}

}  // namespace
}  // namespace layover::testing
