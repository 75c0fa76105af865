// A real server on a free port over a FakeService and a vocabulary of the 256 bytes, with clients to talk to it.
#ifndef LAYOVER_TESTS_HTTP_HTTP_FIXTURE_H_
#define LAYOVER_TESTS_HTTP_HTTP_FIXTURE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/http_client.h"
#include "coordinator/http/server.h"
#include "coordinator/metrics.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/http/fake_service.h"

namespace layover::testing {

// Token id of a byte is the byte's place in the vocabulary; two control tokens follow.
inline constexpr int32_t kImStart = 256;
inline constexpr int32_t kImEnd = 257;

std::unique_ptr<Tokenizer> ByteTokenizer();
// The ids of a text, byte by byte.
std::vector<int32_t> IdsOf(std::string_view text);

// A socket that says exactly what the test says.
class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(std::string_view bytes);
  // Reads until `wanted` has come, or the end; returns all read since the last call.
  std::string ReadUntil(std::string_view wanted);
  std::string ReadToEnd();
  void Close();
  void SetReceiveBuffer(int bytes);

 private:
  int fd_ = -1;
  std::string pending_;
};

class HttpTest : public ::testing::Test {
 protected:
  HttpTest();

  // Starts the server; a test may change `options` and `service` before.
  void StartServer();
  int port() const;
  HttpReply Get(const std::string& target, const HttpHeaders& headers = {});
  HttpReply Post(const std::string& target, const std::string& body, const HttpHeaders& headers = {});
  HttpReply Call(const std::string& method, const std::string& target, const HttpHeaders& headers = {});
  // POST of a streaming request: the payloads of its events, ids and times replaced by ID and 0.
  std::vector<std::string> Events(const std::string& target, const std::string& body);

  std::unique_ptr<Tokenizer> tokenizer_ = ByteTokenizer();
  FakeService service_;
  Metrics metrics_{2};
  HttpParts parts_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

nlohmann::ordered_json Json(const std::string& text);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_HTTP_HTTP_FIXTURE_H_
