// Keys, Host and Origin: who is let in, as tables.
#include "coordinator/http/guard.h"

#include <sys/stat.h>

#include <fstream>

#include "common/status.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

std::string WriteKeys(const std::string& name, const std::string& text, mode_t mode = 0600) {
  const std::string path = ::testing::TempDir() + "layover-keys-" + name;
  std::ofstream(path) << text;
  chmod(path.c_str(), mode);
  return path;
}

HttpRequest WithHeader(const std::string& name, const std::string& value) {
  HttpRequest request;
  request.headers = {{name, value}};
  return request;
}

TEST(Hosts, LiteralAddressesLocalhostAndAllowedNamesAreServed) {
  const Guard guard({.allow_hosts = {"Box.Example"}});
  for (const char* host : {"127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]", "[::1]:8080", "[fe80::1]:1",
                           "localhost", "LOCALHOST:8080", "box.example", "box.example:443"}) {
    EXPECT_TRUE(guard.CheckHost(WithHeader("host", host)).ok()) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "box.example.evil", "127.0.0.1.evil.example",
                           "127.0.0.1:8080:1", "127.0.0.1:x", "localhost/", "localhost?a", "a@localhost", "[::1",
                           "[::1]x", "[localhost]", "x/v1/models?", "0x7f.1", "localhost:123456"}) {
    const absl::Status status = guard.CheckHost(WithHeader("host", host));
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << host;
    if (!status.ok()) {
      EXPECT_EQ(PartOf(status)->code, "host_not_allowed");
    }
  }
}

TEST(Hosts, MayBeMissingOnlyFromHttp10) {
  const Guard guard({});
  HttpRequest request;
  EXPECT_FALSE(guard.CheckHost(request).ok());
  request.http_1_0 = true;
  EXPECT_TRUE(guard.CheckHost(request).ok());
}

TEST(Origins, AbsentSameHostOrAllowed) {
  const Guard guard({.allow_origins = {"https://chat.example"}});
  HttpRequest request = WithHeader("host", "127.0.0.1:8080");
  EXPECT_TRUE(guard.CheckOrigin(request).ok());
  request.headers.emplace_back("origin", "");
  for (const char* origin :
       {"http://127.0.0.1:8080", "https://127.0.0.1:8080", "https://chat.example", "HTTPS://Chat.Example"}) {
    request.headers.back().second = origin;
    EXPECT_TRUE(guard.CheckOrigin(request).ok()) << origin;
  }
  for (const char* origin : {"null", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:8081",
                             "https://chat.example.evil", "https://chat.example:444", "http://chat.example"}) {
    request.headers.back().second = origin;
    const absl::Status status = guard.CheckOrigin(request);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << origin;
    if (!status.ok()) {
      EXPECT_EQ(PartOf(status)->code, "origin_not_allowed");
    }
    EXPECT_TRUE(guard.CorsHeaders(request).empty()) << origin;
  }
}

TEST(Origins, ExactlyTheAskingOneIsEchoedAndNeverCredentials) {
  const Guard guard({.allow_origins = {"https://a.example", "https://b.example"}});
  const HttpHeaders headers = guard.CorsHeaders(WithHeader("origin", "https://b.example"));
  EXPECT_EQ(headers, (HttpHeaders{{"Access-Control-Allow-Origin", "https://b.example"}, {"Vary", "Origin"}}));
}

TEST(Keys, NameTheOwner) {
  const auto keys = ReadKeysFile(WriteKeys("good", "# people\nalice:sk-a:1\n\n bob:sk-b \n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const Guard guard({.keys = *keys});
  EXPECT_EQ(*guard.Authenticate(WithHeader("authorization", "Bearer sk-a:1")), "alice");
  EXPECT_EQ(*guard.Authenticate(WithHeader("authorization", "bearer  sk-b ")), "bob");
  EXPECT_EQ(*guard.Authenticate(WithHeader("x-api-key", "sk-b")), "bob");
  std::vector<std::string> texts;
  for (const HttpRequest& request :
       {HttpRequest{}, WithHeader("authorization", "Bearer sk-x"), WithHeader("authorization", "Bearer"),
        WithHeader("authorization", "Basic sk-a:1"), WithHeader("x-api-key", ""), WithHeader("x-api-key", "sk-"),
        WithHeader("x-api-key", "sk-b2")}) {
    const auto owner = guard.Authenticate(request);
    EXPECT_TRUE(absl::IsUnauthenticated(owner.status()));
    texts.emplace_back(owner.status().message());
  }
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]) << "missing and wrong look the same";
}

TEST(Keys, WithoutKeysEveryoneIsTheSameOwner) {
  EXPECT_EQ(*Guard({}).Authenticate(HttpRequest{}), "");
}

TEST(Keys, AFileThatIsWrongIsRefusedWithItsLine) {
  EXPECT_FALSE(ReadKeysFile("/nonexistent/keys").ok());
  EXPECT_NE(ReadKeysFile(WriteKeys("open", "a:b\n", 0644)).status().message().find("0644"), absl::string_view::npos);
  EXPECT_NE(ReadKeysFile(WriteKeys("group", "a:b\n", 0640)).status().message().find("0600"), absl::string_view::npos);
  EXPECT_NE(ReadKeysFile(WriteKeys("form", "a:b\nnonsense\n")).status().message().find(":2:"), absl::string_view::npos);
  EXPECT_NE(ReadKeysFile(WriteKeys("twice", "a:b\nc:b\n")).status().message().find(":2:"), absl::string_view::npos);
  EXPECT_FALSE(ReadKeysFile(WriteKeys("nokey", "a:\n")).ok());
  EXPECT_FALSE(ReadKeysFile(WriteKeys("noname", ":b\n")).ok());
  EXPECT_FALSE(ReadKeysFile(WriteKeys("empty", "# nothing\n")).ok());
}

TEST(Exposure, OtherMachinesNeedKeys) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1"})
    EXPECT_TRUE(CheckExposure(host, false).ok()) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.5", "box.example"}) {
    EXPECT_FALSE(CheckExposure(host, false).ok()) << host;
    EXPECT_TRUE(CheckExposure(host, true).ok()) << host;
  }
}

// ---------------------------------------------------------------------------------------------- through the whole
// server

class GuardedServer : public HttpTest {
 protected:
  GuardedServer() {
    options_.keys_file = WriteKeys("server", "alice:sk-a\nbob:sk-b\n");
    options_.allow_origins = {"https://chat.example"};
  }
};

TEST_F(GuardedServer, OnlyHealthAndTheRootAreOpen) {
  StartServer();
  for (const char* target : {"/health", "/v1/health", "/"}) EXPECT_EQ(Get(target).status, 200) << target;
  EXPECT_EQ(Call("HEAD", "/").status, 200);
  for (const char* target : {"/v1/models", "/models", "/v1/models/tiny", "/metrics", "/props", "/slots",
                             "/v1/kv/conversations", "/v1/kv/conversations/x"}) {
    EXPECT_EQ(Get(target).status, 401) << target;
    EXPECT_EQ(Get(target, {{"Authorization", "Bearer nope"}}).status, 401) << target;
    EXPECT_EQ(Get(target, {{"Authorization", "Bearer sk-a"}}).status, 200) << target;
  }
  for (const char* target :
       {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/v1/embeddings",
        "/slots/0", "/slots/0?action=erase", "/v1/kv/conversations/x/save", "/v1/kv/conversations/x/park",
        "/v1/kv/conversations/x/fork", "/v1/kv/conversations/x/rewind", "/v1/kv/conversations/x/verify",
        "/v1/kv/conversations/x/restore"}) {
    EXPECT_EQ(Post(target, "{}").status, 401) << target;
  }
  const auto error = Json(Get("/v1/models").body)["error"];
  EXPECT_EQ(error["type"], "authentication_error");
  EXPECT_EQ(error["code"], "invalid_api_key");
}

TEST_F(GuardedServer, TheKeysNameIsTheOwner) {
  StartServer();
  Get("/v1/kv/conversations/x", {{"X-Api-Key", "sk-b"}});
  EXPECT_EQ(service_.last_call(), "bob|x");
}

TEST_F(GuardedServer, HostAndOriginAreCheckedBeforeAnythingIsDone) {
  StartServer();
  const HttpHeaders key = {{"Authorization", "Bearer sk-a"}};
  EXPECT_EQ(Get("/health", {{"Host", "evil.example"}}).status, 403);
  HttpHeaders with_origin = key;
  with_origin.emplace_back("Origin", "https://evil.example");
  EXPECT_EQ(Call("DELETE", "/v1/kv/conversations/x", with_origin).status, 403);
  EXPECT_EQ(service_.last_call(), "");
  with_origin.back().second = "https://chat.example";
  const HttpReply reply = Get("/v1/models", with_origin);
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(std::find(reply.headers.begin(), reply.headers.end(),
                      std::pair<std::string, std::string>("access-control-allow-origin", "https://chat.example")),
            reply.headers.end());
}

TEST_F(GuardedServer, PreflightNeedsNoKeyButAnAllowedOrigin) {
  StartServer();
  const HttpReply reply = Call("OPTIONS", "/v1/chat/completions", {{"Origin", "https://chat.example"}});
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(Call("OPTIONS", "/v1/chat/completions", {{"Origin", "https://evil.example"}}).status, 403);
}

TEST_F(GuardedServer, AWrongKeysBodyIsNeverRead) {
  StartServer();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("}}").starts_with("HTTP/1.1 401 "));
}

TEST_F(HttpTest, AnAddressOthersCanReachIsRefusedWithoutKeys) {
  options_.listen = "0.0.0.0:0";
  const auto server = HttpServer::Start(options_, parts_);
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("keys_file"), absl::string_view::npos) << server.status();
}

TEST_F(HttpTest, AListenAddressThatIsNoneIsNamed) {
  for (const char* listen : {"8080", "localhost", ":8080", "127.0.0.1:99999", "::1:8080", "127.0.0.1:http"}) {
    options_.listen = listen;
    const auto server = HttpServer::Start(options_, parts_);
    EXPECT_TRUE(absl::IsInvalidArgument(server.status())) << listen << " " << server.status();
  }
}

}  // namespace
}  // namespace layover::testing
