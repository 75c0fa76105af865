#include "coordinator/http/http_message.h"

#include <algorithm>

#include "common/status.h"

namespace layover {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

absl::Status ParseQuery(std::string_view text, std::map<std::string, std::string>& query) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    ASSIGN_OR_RETURN(std::string name, PercentDecode(pair.substr(0, equals), true));
    ASSIGN_OR_RETURN(std::string value, PercentDecode(pair.substr(std::min(equals + 1, pair.size())), true));
    query[std::move(name)] = std::move(value);
  }
  return absl::OkStatus();
}

}  // namespace

const std::string* HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<std::string> PercentDecode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : -1;
      if (high < 0 || low < 0) return InvalidArgument("bad percent escape in the request's target");
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

std::string PercentEncode(std::string_view segment) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : segment) {
    if (IsUnreserved(c)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

absl::Status ParseTarget(std::string_view target, HttpRequest& request) {
  if (target.empty() || target[0] != '/') return InvalidArgument("the request's target must start with '/'");
  target = target.substr(0, target.find('#'));
  const size_t question = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, question));
  RETURN_IF_ERROR(ParseQuery(target.substr(std::min(question + 1, target.size())), request.query));
  for (std::string_view rest = request.path; !rest.empty();) {
    rest.remove_prefix(1);  // the slash
    const size_t end = std::min(rest.find('/'), rest.size());
    ASSIGN_OR_RETURN(std::string segment, PercentDecode(rest.substr(0, end), false));
    request.segments.push_back(std::move(segment));
    rest.remove_prefix(end);
  }
  if (request.path == "/") request.segments.clear();
  return absl::OkStatus();
}

std::string_view ReasonPhrase(int status) {
  static constexpr std::pair<int, std::string_view> kPhrases[] = {
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {507, "Insufficient Storage"},
  };
  for (const auto& [code, phrase] : kPhrases) {
    if (code == status) return phrase;
  }
  return "Status";
}

std::string AsciiLower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace layover
