// Every status of the engine as HTTP: code, type, error object, retry headers.
#include "coordinator/http/error_json.h"

#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

using nlohmann::ordered_json;

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
                      {absl::AlreadyExistsError("m"), 409, "conflict_error", "conversation_exists"},
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

}  // namespace
}  // namespace layover::testing
