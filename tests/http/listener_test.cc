// What the listener takes in: requests whole and in pieces, limits, deadlines, too many of them.
#include "tests/http/listener_fixture.h"

namespace layover::testing {
namespace {

TEST_F(ListenerTest, KeepAliveServesSeveralRequestsInOrder) {
  Start();
  RawClient client(listener_->port());
  client.Send(
      "GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
      "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadToEnd();
  const size_t a = all.find("GET /a 0");
  const size_t b = all.find("POST /b 3");
  const size_t c = all.find("GET /c 0");
  ASSERT_NE(a, std::string::npos) << all;
  ASSERT_NE(b, std::string::npos) << all;
  ASSERT_NE(c, std::string::npos) << all;
  EXPECT_LT(a, b);
  EXPECT_LT(b, c);
  EXPECT_NE(all.find("Connection: keep-alive"), std::string::npos);
  EXPECT_NE(all.find("Connection: close"), std::string::npos);
}

TEST_F(ListenerTest, ChunkedBodiesAreJoined) {
  Start();
  const std::string reply = Talk(
      "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "4\r\nabcd\r\n3;ext=1\r\nefg\r\n0\r\n\r\n");
  EXPECT_NE(reply.find("POST /x 7"), std::string::npos) << reply;
}

TEST_F(ListenerTest, BrokenChunksAreRefused) {
  Start();
  for (const char* chunk : {"-2\r\nab\r\n", "zz\r\n", "fffffffffffffffff\r\n"}) {
    const std::string reply =
        Talk("POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(chunk));
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 4")) << chunk << " -> " << reply;
  }
}

TEST_F(ListenerTest, HeadHasTheLengthButNoBody) {
  Start();
  const std::string reply = Talk("HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(reply.find("Content-Length: 9\r\n"), std::string::npos) << reply;
  EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
}

TEST_F(ListenerTest, ExpectContinueIsAnswered) {
  Start();
  RawClient client(listener_->port());
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_NE(client.ReadUntil("POST /x 2").find("200 OK"), std::string::npos);
}

TEST_F(ListenerTest, ALargeBodyIsRefusedByItsLengthBeforeItIsRead) {
  options_.max_body_bytes = 1000;
  Start();
  const std::string reply = Talk("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 413 ")) << reply;
  EXPECT_NE(reply.find("request_too_large"), std::string::npos) << reply;
  EXPECT_NE(reply.find("Connection: close"), std::string::npos) << reply;
}

TEST_F(ListenerTest, ALargeChunkedBodyIsRefusedWhileItIsRead) {
  options_.max_body_bytes = 1000;
  Start();
  std::string request = "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) request += "64\r\n" + std::string(100, 'x') + "\r\n";
  const std::string reply = Talk(request);
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 413 ")) << reply;
}

TEST_F(ListenerTest, TheReplyToARefusedUploadArrivesWhileTheClientStillSends) {
  options_.max_body_bytes = 1000;
  Start();
  const std::string reply =
      Talk("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + std::string(4000000, 'x'));
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 413 ")) << reply.substr(0, 100);
}

TEST_F(ListenerTest, BodiesOfAllConnectionsTogetherAreBounded) {
  options_.max_body_bytes_in_flight = 1000;
  Start();
  RawClient first(listener_->port());
  first.Send("POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 801\r\n\r\n");
  first.ReadUntil("\r\n\r\n");
  first.Send(std::string(800, 'x'));
  RawClient second(listener_->port());
  std::string reply;
  // The first body may not have been counted yet; it stays, so a second one is soon too much.
  while (!reply.starts_with("HTTP/1.1 503 ")) {
    reply =
        Talk("POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 300\r\n\r\n" + std::string(300, 'x'));
  }
  first.Send("x");
  EXPECT_NE(first.ReadUntil("POST /x 801").find("200 OK"), std::string::npos);
}

TEST_F(ListenerTest, ALargeHeadIsRefused) {
  options_.max_header_bytes = 1000;
  Start();
  EXPECT_TRUE(
      Talk("GET /x HTTP/1.1\r\nHost: x\r\nA: " + std::string(1000, 'a') + "\r\n\r\n").starts_with("HTTP/1.1 431 "));
  EXPECT_TRUE(Talk("GET /" + std::string(3000, 'a')).starts_with("HTTP/1.1 431 "));
}

TEST_F(ListenerTest, WhatIsNotHttpIsRefused) {
  Start();
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n", "GET /x HTTP/3.0\r\n\r\n",
                            "hello\r\n\r\n", "GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                            "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
                            "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
                            "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a/b HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    EXPECT_TRUE(Talk(bytes).starts_with("HTTP/1.1 4")) << bytes;
  }
}

TEST_F(ListenerTest, SlowHeadersEndAtTheDeadlineHoweverTheyTrickle) {
  options_.header_deadline = kShort;
  Start();
  RawClient client(listener_->port());
  client.Send("GET /x HTTP/1.1\r\nHo");
  EXPECT_TRUE(client.ReadToEnd().starts_with("HTTP/1.1 408 "));
  RawClient silent(listener_->port());
  EXPECT_EQ(silent.ReadToEnd(), "") << "who says nothing gets nothing";
}

TEST_F(ListenerTest, ASlowBodyEndsAtTheDeadline) {
  options_.body_deadline = kShort;
  Start();
  RawClient client(listener_->port());
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(client.ReadToEnd().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(WaitForStatuses(1), std::vector<int>{408});
}

TEST_F(ListenerTest, AnIdleConnectionIsClosed) {
  options_.idle_deadline = kShort;
  Start();
  const std::string reply = Talk("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(reply.find("Connection: keep-alive"), std::string::npos);
}

TEST_F(ListenerTest, UrgentRequestsAreAnsweredWhileEveryWorkerIsBusy) {
  options_.workers = 1;
  std::promise<void> entered;
  std::promise<void> release;
  handler_ = [&](std::shared_ptr<const HttpRequest> request, std::shared_ptr<Responder> reply) {
    if (request->path == "/slow") {
      entered.set_value();
      release.get_future().wait();
    }
    reply->Respond({200, {}, "done " + request->path});
  };
  Start();
  RawClient slow(listener_->port());
  slow.Send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
  entered.get_future().wait();
  const std::string reply = Talk("GET /urgent HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(reply.find("done /urgent"), std::string::npos) << reply;
  release.set_value();
  EXPECT_NE(slow.ReadUntil("done /slow").find("200 OK"), std::string::npos);
}

TEST_F(ListenerTest, AFullQueueAnswers503) {
  options_.workers = 1;
  options_.max_queued_requests = 1;
  std::promise<void> entered;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> first{true};
  handler_ = [&](std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder> reply) {
    if (first.exchange(false)) entered.set_value();
    released.wait();
    reply->Respond({200, {}, "done"});
  };
  Start();
  RawClient running(listener_->port());
  running.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  entered.get_future().wait();
  RawClient a(listener_->port());
  a.Send("GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  RawClient b(listener_->port());
  b.Send("GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  // One of the two fits in the queue, the other does not; which one is the scheduler's choice.
  auto reply_a = std::async(std::launch::async, [&] { return a.ReadToEnd(); });
  auto reply_b = std::async(std::launch::async, [&] { return b.ReadToEnd(); });
  while (reply_a.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready &&
         reply_b.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
  }
  release.set_value();
  const std::string both = reply_a.get() + reply_b.get();
  EXPECT_NE(both.find("HTTP/1.1 503 "), std::string::npos) << both;
  EXPECT_NE(both.find("HTTP/1.1 200 "), std::string::npos) << both;
}

TEST_F(ListenerTest, ReservedConnectionsServeOnlyUrgentRequests) {
  options_.max_connections = 3;
  options_.reserved_connections = 2;
  Start();
  RawClient held(listener_->port());
  held.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  held.ReadUntil("GET /x 0");
  EXPECT_TRUE(Talk("GET /x HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(Talk("GET /urgent HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

TEST_F(ListenerTest, BeyondAllConnectionsTheDoorIsShut) {
  options_.max_connections = 1;
  options_.reserved_connections = 0;
  Start();
  RawClient held(listener_->port());
  held.Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  held.ReadUntil("GET /x 0");
  EXPECT_EQ(Talk("GET /urgent HTTP/1.1\r\nHost: x\r\n\r\n"), "");
}

TEST_F(ListenerTest, ABindErrorNamesTheAddress) {
  Start();
  ListenerOptions second = options_;
  second.port = listener_->port();
  const auto refused = Listener::Start(second);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("127.0.0.1:" + std::to_string(second.port)), absl::string_view::npos)
      << refused.status();
  EXPECT_TRUE(absl::IsUnavailable(refused.status()));
}

}  // namespace
}  // namespace layover::testing
