#include "tests/http/http_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>

#include "common/check.h"
#include "common/status.h"

namespace layover::testing {
namespace {

std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 63))};
}

// The character that stands for a byte in byte-level vocabularies: printable ones for themselves, the rest from U+0100.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return Utf8(static_cast<uint32_t>(byte));
  uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += printable(b) ? 0 : 1;
  return Utf8(next);
}

}  // namespace

std::unique_ptr<Tokenizer> ByteTokenizer() {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) spec.tokens.push_back(ByteSymbol(byte));
  spec.types.assign(256, TokenType::kNormal);
  for (const char* control : {"<|im_start|>", "<|im_end|>"}) {
    spec.tokens.push_back(control);
    spec.types.push_back(TokenType::kControl);
  }
  spec.eos_id = kImEnd;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromSpec(std::move(spec));
  LAYOVER_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<int32_t> IdsOf(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

RawClient::RawClient(int port) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  LAYOVER_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

void RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server has had enough; what it says is read by the test
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string RawClient::ReadUntil(std::string_view wanted) {
  while (pending_.find(wanted) == std::string::npos) {
    char piece[4096];
    const ssize_t got = recv(fd_, piece, sizeof(piece), 0);
    if (got <= 0) break;
    pending_.append(piece, static_cast<size_t>(got));
  }
  return std::exchange(pending_, "");
}

std::string RawClient::ReadToEnd() {
  char piece[4096];
  for (ssize_t got = 0; (got = recv(fd_, piece, sizeof(piece), 0)) > 0;)
    pending_.append(piece, static_cast<size_t>(got));
  return std::exchange(pending_, "");
}

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawClient::SetReceiveBuffer(int bytes) {
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

HttpTest::HttpTest() {
  parts_.service = &service_;
  parts_.metrics = &metrics_;
  parts_.tokenizer = tokenizer_.get();
  parts_.chat_template = "the template";
  // The template of these tests: each message's text between the two control tokens.
  parts_.render_text = [](const ChatRequest& request) -> absl::StatusOr<std::string> {
    std::string text;
    for (const auto& message : *request.messages) {
      if (message.at("content") == "raise") return InvalidArgument("the template says no");
      text += "<|im_start|>" + message.at("content").get<std::string>() + "<|im_end|>";
    }
    if (request.tools != nullptr) text += request.tools->dump();
    return request.add_generation_prompt ? text + "<|im_start|>" : text;
  };
  parts_.render_chat = [this](const ChatRequest& request) -> absl::StatusOr<RenderedChat> {
    absl::StatusOr<std::string> text = parts_.render_text(request);
    if (!text.ok()) return text.status();
    RenderedChat out;
    out.ids = tokenizer_->Encode(*text, {.add_special = false, .parse_special = true});
    out.text = *text;
    out.prefix_ids_without_generation_prompt_n = static_cast<int64_t>(out.ids.size()) - 1;
    return out;
  };
  options_.listen = "127.0.0.1:0";
}

void HttpTest::StartServer() {
  auto server = HttpServer::Start(options_, parts_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

int HttpTest::port() const {
  return std::stoi(server_->url().substr(server_->url().rfind(':') + 1));
}

HttpReply HttpTest::Get(const std::string& target, const HttpHeaders& headers) {
  return Call("GET", target, headers);
}

HttpReply HttpTest::Call(const std::string& method, const std::string& target, const HttpHeaders& headers) {
  const auto reply = HttpClient::Create({.url = server_->url()})->Send({method, target, headers, ""});
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *reply : HttpReply{};
}

HttpReply HttpTest::Post(const std::string& target, const std::string& body, const HttpHeaders& headers) {
  const auto reply = HttpClient::Create({.url = server_->url()})->Send({"POST", target, headers, body});
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *reply : HttpReply{};
}

std::vector<std::string> HttpTest::Events(const std::string& target, const std::string& body) {
  std::vector<std::string> events;
  const auto reply =
      HttpClient::Create({.url = server_->url()})->Stream({"POST", target, {}, body}, [&events](std::string_view data) {
        std::string text(data);
        text = std::regex_replace(text, std::regex("(chat)?cmpl-[0-9a-f]{24}"), "ID");
        events.push_back(std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0"));
        return true;
      });
  EXPECT_TRUE(reply.ok()) << reply.status();
  return events;
}

nlohmann::ordered_json Json(const std::string& text) {
  auto parsed = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(parsed.is_discarded()) << text;
  return parsed.is_discarded() ? nlohmann::ordered_json::object() : parsed;
}

}  // namespace layover::testing
