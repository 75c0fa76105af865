// The client: URLs, event streams cut anywhere, servers that are not there.
#include "coordinator/http/http_client.h"

#include "common/status.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

TEST(ServerUrls, Forms) {
  EXPECT_EQ(ParseServerUrl("http://127.0.0.1:8080")->port, "8080");
  EXPECT_EQ(ParseServerUrl("http://box")->port, "80");
  EXPECT_EQ(ParseServerUrl("http://box:81/")->host, "box");
  EXPECT_EQ(ParseServerUrl("http://[::1]:81")->host, "::1");
  EXPECT_EQ(ParseServerUrl("http://[::1]")->port, "80");
  for (const char* url :
       {"", "box", "https://box", "http://", "http://box:", "http://box:x", "http://a@b", "http://box/path"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseServerUrl(url).status())) << url;
  }
}

std::vector<std::string> Payloads(const std::string& stream, size_t piece) {
  SseReader reader;
  std::vector<std::string> out;
  for (size_t i = 0; i < stream.size(); i += piece) {
    reader.Push(std::string_view(stream).substr(i, piece), [&out](std::string_view data) {
      out.emplace_back(data);
      return true;
    });
  }
  return out;
}

TEST(SseReader, GivesTheSameHoweverItIsCut) {
  const std::string stream =
      ": ping\n\ndata: {\"a\":1}\n\nevent: x\nid: 5\ndata:no space\r\n\r\ndata: two\ndata: lines\n\n\n: ping\n\ndata: "
      "[DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "no space", "two\nlines", "[DONE]"};
  for (const size_t piece : {1, 2, 3, 7, 1000}) EXPECT_EQ(Payloads(stream, piece), expected) << piece;
}

TEST(SseReader, StopsWhenToldTo) {
  SseReader reader;
  int seen = 0;
  EXPECT_FALSE(reader.Push("data: a\n\ndata: b\n\n", [&seen](std::string_view) { return ++seen == 0; }));
  EXPECT_EQ(seen, 1);
}

TEST_F(HttpTest, ClientSendsItsKeyAndReadsStreams) {
  service_.script = [](const GenerationRequest&, GenerationObserver& observer) {
    Play(IdsOf("ab"), FinishReason::kStop, {}, observer);
  };
  StartServer();
  EXPECT_EQ(Events("/v1/completions", R"({"prompt":"a","stream":true})").size(), 4u);
  std::vector<std::string> none;
  const auto refused = HttpClient::Create({.url = server_->url()})
                           ->Stream({"POST", "/v1/completions", {}, "{}"}, [&none](std::string_view data) {
                             none.emplace_back(data);
                             return true;
                           });
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->status, 400);
  EXPECT_TRUE(none.empty());
  EXPECT_NE(refused->body.find("\"prompt\""), std::string::npos) << "an error's body is not taken for a stream";
}

TEST_F(HttpTest, AServerThatIsNotThereIsUnavailable) {
  StartServer();
  const std::string url = server_->url();
  server_.reset();
  const auto reply = HttpClient::Create({.url = url})->Send({"GET", "/health", {}, ""});
  EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
  EXPECT_NE(reply.status().message().find(url), absl::string_view::npos);
}

TEST_F(HttpTest, AServerThatIsSilentIsTooSlow) {
  StartServer();
  const auto reply = HttpClient::Create({.url = server_->url(), .read_timeout = std::chrono::milliseconds(20)})
                         ->Send({"POST", "/v1/completions", {}, R"({"prompt":"a"})"});
  EXPECT_TRUE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
}

TEST(Targets, AreCutAndDecoded) {
  HttpRequest request;
  ASSERT_TRUE(ParseTarget("/a%2Fb/c+d?x=1&y=a+b%26&x=2&z", request).ok());
  EXPECT_EQ(request.path, "/a%2Fb/c+d");
  EXPECT_EQ(request.segments, (std::vector<std::string>{"a/b", "c+d"}));
  EXPECT_EQ(request.query, (std::map<std::string, std::string>{{"x", "2"}, {"y", "a b&"}, {"z", ""}}));
  for (const char* bad : {"", "a", "*", "/%", "/%4", "/%g0", "/a?x=%"}) {
    HttpRequest other;
    EXPECT_FALSE(ParseTarget(bad, other).ok()) << bad;
  }
}

TEST(Targets, EncodingIsUndoneByDecoding) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(*PercentDecode(PercentEncode(all), false), all);
  EXPECT_EQ(PercentEncode("a/b c~"), "a%2Fb%20c~");
}

}  // namespace
}  // namespace layover::testing
