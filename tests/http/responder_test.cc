// What goes out: streams, readers that stall or leave, handlers that forget, the drain.
#include "tests/http/listener_fixture.h"

namespace layover::testing {
namespace {

TEST_F(ListenerTest, AReaderThatStallsIsDroppedAndItsHandlerTold) {
  options_.max_send_buffer_bytes = 64 * 1024;
  options_.socket_send_buffer_bytes = 4096;
  std::promise<std::shared_ptr<Responder>> handed;
  std::promise<void> gone;
  handler_ = [&](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    reply->OnGone([&gone] { gone.set_value(); });
    reply->BeginStream(200, {});
    handed.set_value(reply);
  };
  Start();
  RawClient client(listener_->port());
  client.SetReceiveBuffer(4096);
  client.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::shared_ptr<Responder> reply = handed.get_future().get();
  const std::string chunk(16 * 1024, 'x');
  while (!reply->gone()) reply->Write(chunk);  // the client reads nothing: the buffers fill
  gone.get_future().wait();
  EXPECT_TRUE(listener_->WaitIdle(std::chrono::minutes(1)));
}

TEST_F(ListenerTest, AReaderThatTakesNothingIsDroppedAtTheWriteDeadline) {
  options_.write_deadline = kShort;
  options_.socket_send_buffer_bytes = 4096;
  std::promise<void> gone;
  handler_ = [&](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    reply->OnGone([&gone] { gone.set_value(); });
    reply->BeginStream(200, {});
    reply->Write(std::string(7'000'000, 'x'));
    reply->After(std::chrono::minutes(5), [reply] {});  // holds the responder, as an engine would
  };
  Start();
  RawClient client(listener_->port());
  client.SetReceiveBuffer(4096);
  client.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  gone.get_future().wait();
  EXPECT_TRUE(listener_->WaitIdle(std::chrono::minutes(1)));
}

TEST_F(ListenerTest, AHandlerThatForgetsToAnswerCostsA500) {
  handler_ = [](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder>) {};
  Start();
  EXPECT_TRUE(Talk("GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 500 "));
  handler_ = nullptr;
}

TEST_F(ListenerTest, AStreamThatIsLetGoEndsTheConnection) {
  handler_ = [](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    reply->BeginStream(200, {});
    reply->Write("part");
  };
  Start();
  const std::string all = Talk("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(all.find("4\r\npart\r\n"), std::string::npos) << all;
}

TEST_F(ListenerTest, DrainLetsAStreamEndAndClosesTheRest) {
  std::promise<std::shared_ptr<Responder>> handed;
  handler_ = [&](std::shared_ptr<const HttpRequest> request, std::shared_ptr<Responder> reply) {
    if (request->path == "/idle") return reply->Respond({200, {}, "idle"});
    reply->BeginStream(200, {});
    reply->Write("one ");
    handed.set_value(reply);
  };
  Start();
  RawClient idle(listener_->port());
  idle.Send("GET /idle HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.ReadUntil("idle");
  RawClient client(listener_->port());
  client.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  std::shared_ptr<Responder> reply = handed.get_future().get();
  listener_->StopAccepting();
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_FALSE(listener_->WaitIdle(std::chrono::milliseconds(0)));
  reply->Write("two");
  reply->End(false);
  const std::string all = client.ReadToEnd();
  EXPECT_NE(all.find("two"), std::string::npos) << all;
  EXPECT_TRUE(all.ends_with("0\r\n\r\n")) << all;
  EXPECT_TRUE(listener_->WaitIdle(std::chrono::minutes(1)));
}

TEST_F(ListenerTest, GoneIsToldOnceAndAtOnceToWhoAsksLate) {
  std::promise<std::shared_ptr<Responder>> handed;
  std::promise<void> gone;
  handler_ = [&](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    reply->OnGone([&gone] { gone.set_value(); });  // a second call would throw
    handed.set_value(reply);
  };
  Start();
  std::shared_ptr<Responder> reply;
  {
    RawClient client(listener_->port());
    client.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    reply = handed.get_future().get();
  }
  gone.get_future().wait();
  EXPECT_TRUE(reply->gone());
  bool told = false;
  reply->OnGone([&told] { told = true; });
  EXPECT_TRUE(told);
  reply->Respond({200, {}, "nobody hears it"});
  EXPECT_EQ(WaitForStatuses(1), std::vector<int>{0});
}

TEST_F(ListenerTest, AClientThatSendsOnWhileItWaitsIsCutOff) {
  std::promise<std::shared_ptr<Responder>> handed;
  std::promise<void> gone;
  handler_ = [&](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    reply->OnGone([&gone] { gone.set_value(); });
    handed.set_value(reply);
  };
  Start();
  RawClient client(listener_->port());
  client.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::shared_ptr<Responder> reply = handed.get_future().get();
  client.Send(std::string(200'000, 'x'));
  gone.get_future().wait();
  EXPECT_TRUE(reply->gone());
}

}  // namespace
}  // namespace layover::testing
