// What a chat's template is told, and what the engine is told of it.
#include "gtest/gtest.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

TEST_F(HttpTest, AChatIsRenderedWithTheDateOfItsBeginning) {
  std::vector<int64_t> rendered_at;
  parts_.render_chat = [&, render = parts_.render_chat](const ChatRequest& request) {
    rendered_at.push_back(request.now_unix_s);
    return render(request);
  };
  service_.began["|old"] = 1500000000;
  std::vector<GenerationRequest> requests;
  service_.script = [&](const GenerationRequest& request, GenerationObserver& observer) {
    requests.push_back(request);
    Play({}, FinishReason::kStop, {}, observer);
  };
  StartServer();
  const std::string body = R"({"messages":[{"role":"user","content":"a"}],"conversation_id":)";
  EXPECT_EQ(Post(kChat, body + R"("old"})").status, 200);
  EXPECT_EQ(Post(kChat, body + R"("new"})").status, 200);
  EXPECT_EQ(Post(kChat, body + "null}").status, 200);
  EXPECT_EQ(Post(kText, R"({"prompt":"a","conversation_id":"old"})").status, 200);
  ASSERT_EQ(rendered_at.size(), 3u);
  EXPECT_EQ(rendered_at[0], 1500000000);
  EXPECT_GT(rendered_at[1], 1500000000);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(requests[i].now_unix_s, rendered_at[i]) << "what a new conversation remembers";
    EXPECT_TRUE(requests[i].is_rendered);
  }
  EXPECT_FALSE(requests[3].is_rendered) << "a prompt is literal";
}

}  // namespace
}  // namespace layover::testing
