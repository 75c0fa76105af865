// A client that goes away cancels its generation, in every phase, streaming or not, and exactly once.
#include "common/status.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {
namespace {

struct Phase {
  const char* name;
  bool stream;
  void (*play)(GenerationObserver&);
};
class DisconnectTest : public HttpTest, public ::testing::WithParamInterface<Phase> {};

TEST_P(DisconnectTest, CancelsTheGeneration) {
  StartServer();
  RawClient client(port());
  const std::string body = std::string(R"({"prompt":"a","stream":)") + (GetParam().stream ? "true}" : "false}");
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const FakeService::Generation generation = service_.WaitForGeneration();
  GetParam().play(*generation.observer);
  client.Close();
  EXPECT_EQ(service_.WaitForCancel(), generation.id);
  generation.observer->OnFailed(Cancelled("the client is gone"));
  EXPECT_TRUE(server_->WaitIdle(std::chrono::minutes(1)));
  EXPECT_EQ(service_.cancels(), 1) << "told once";
}

void InQueue(GenerationObserver&) {}
void InPrefill(GenerationObserver& observer) {
  observer.OnStarted({});
  observer.OnProgress(1, 4);
}
void InDecode(GenerationObserver& observer) {
  InPrefill(observer);
  GeneratedToken token;
  token.id = 'a';
  observer.OnToken(token);
}
INSTANTIATE_TEST_SUITE_P(Phases, DisconnectTest,
                         ::testing::Values(Phase{"queued_stream", true, InQueue}, Phase{"queued_whole", false, InQueue},
                                           Phase{"prefill_stream", true, InPrefill},
                                           Phase{"prefill_whole", false, InPrefill},
                                           Phase{"decode_stream", true, InDecode},
                                           Phase{"decode_whole", false, InDecode}),
                         [](const auto& phase) { return std::string(phase.param.name); });

TEST_F(HttpTest, AFinishedGenerationIsNotCancelledWhenTheClientLeaves) {
  service_.script = [](const GenerationRequest&, GenerationObserver& observer) {
    Play(IdsOf("x"), FinishReason::kStop, {}, observer);
  };
  StartServer();
  {
    RawClient client(port());
    client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
    EXPECT_NE(client.ReadUntil("\"queue_ms\"").find("200 OK"), std::string::npos);
  }
  server_.reset();
  EXPECT_EQ(service_.cancels(), 0);
}

TEST_F(HttpTest, TheServersEndCancelsWhatRuns) {
  StartServer();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
  const FakeService::Generation generation = service_.WaitForGeneration();
  server_.reset();
  EXPECT_EQ(service_.cancels(), 1);
  generation.observer->OnFailed(Cancelled("gone"));  // a late answer goes nowhere and harms nothing
}

}  // namespace
}  // namespace layover::testing
