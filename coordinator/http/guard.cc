#include "coordinator/http/guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

std::array<unsigned char, 32> Sha256(std::string_view text) {
  std::array<unsigned char, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

bool IsLiteralAddress(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// "name:8080", "127.0.0.1", "[::1]:8080" to the host, in lower case; nothing if it is not exactly that.
std::optional<std::string> HostOf(std::string_view authority) {
  std::string_view host = authority;
  std::string_view port;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    port = host.substr(end + 1);
    host = host.substr(1, end - 1);
    if (!IsLiteralAddress(std::string(host))) return std::nullopt;
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos) {
    port = host.substr(colon);
    host = host.substr(0, colon);
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!port.empty() && (port[0] != ':' || port.size() > 6 || !std::all_of(port.begin() + 1, port.end(), is_digit))) {
    return std::nullopt;
  }
  const auto is_name = [&](char c) {
    return is_digit(c) || absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' ||
           c == ':';
  };
  if (host.empty() || !std::all_of(host.begin(), host.end(), is_name)) return std::nullopt;
  return AsciiLower(host);
}

bool Contains(const std::vector<std::string>& list, std::string_view wanted) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& item) { return AsciiLower(item) == wanted; });
}

// True for "http://H" and "https://H" where H is the request's own Host, port included.
bool IsSameHost(std::string_view origin, const HttpRequest& request) {
  const std::string* host = request.Header("host");
  if (host == nullptr) return false;
  const std::string own = AsciiLower(*host);
  return origin == "http://" + own || origin == "https://" + own;
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "keys file " + path);
  struct stat info {};
  std::string text;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = ErrnoStatus(errno, "keys file " + path);
  } else if (!S_ISREG(info.st_mode) || (info.st_mode & 0077) != 0) {
    status = InvalidArgument("keys file {}: only its owner may read it; its mode is {:04o}, allowed is 0600", path,
                             info.st_mode & 07777);
  } else if (static_cast<size_t>(info.st_size) > limits::kMaxKeysFileBytes) {
    status = InvalidArgument("keys file {}: larger than {} bytes", path, limits::kMaxKeysFileBytes);
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    const ssize_t got = read(fd, text.data(), text.size());
    if (got != static_cast<ssize_t>(text.size())) status = Internal("keys file {}: cannot be read whole", path);
  }
  close(fd);
  if (!status.ok()) return status;
  return text;
}

}  // namespace

absl::StatusOr<std::vector<ApiKey>> ReadKeysFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile(path));
  std::vector<ApiKey> keys;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string_view line = ToStd(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == line.size()) {
      return InvalidArgument("{}:{}: expected name:key", path, number);
    }
    const std::string_view key = line.substr(colon + 1);
    ApiKey entry{std::string(line.substr(0, colon)), Sha256(key)};
    for (const ApiKey& other : keys) {
      if (other.digest == entry.digest) return InvalidArgument("{}:{}: this key is given twice", path, number);
    }
    keys.push_back(std::move(entry));
  }
  if (keys.empty()) return InvalidArgument("keys file {}: no key in it", path);
  return keys;
}

Guard::Guard(GuardOptions options) : options_(std::move(options)) {
  for (std::string& origin : options_.allow_origins) origin = AsciiLower(origin);
}

absl::Status Guard::CheckHost(const HttpRequest& request) const {
  const std::string* given = request.Header("host");
  if (given == nullptr && request.http_1_0) return absl::OkStatus();  // no browser speaks it
  const std::optional<std::string> host = given == nullptr ? std::nullopt : HostOf(*given);
  if (host.has_value() && (*host == "localhost" || IsLiteralAddress(*host) || Contains(options_.allow_hosts, *host))) {
    return absl::OkStatus();
  }
  return WithPart(absl::PermissionDeniedError("this Host is not served here; server.allow_hosts lists further names"),
                  {.code = "host_not_allowed"});
}

absl::Status Guard::CheckOrigin(const HttpRequest& request) const {
  const std::string* given = request.Header("origin");
  if (given == nullptr) return absl::OkStatus();
  const std::string origin = AsciiLower(*given);
  if (IsSameHost(origin, request) || Contains(options_.allow_origins, origin)) return absl::OkStatus();
  return WithPart(absl::PermissionDeniedError("this Origin is not allowed; server.allow_origins lists those that are"),
                  {.code = "origin_not_allowed"});
}

absl::StatusOr<std::string> Guard::Authenticate(const HttpRequest& request) const {
  if (options_.keys.empty()) return std::string();
  std::string given;
  if (const std::string* header = request.Header("authorization"); header != nullptr) {
    absl::string_view rest = *header;
    if (absl::StartsWithIgnoreCase(rest, "bearer ")) given = std::string(absl::StripAsciiWhitespace(rest.substr(7)));
  }
  if (const std::string* header = request.Header("x-api-key"); given.empty() && header != nullptr) given = *header;
  const std::array<unsigned char, 32> digest = Sha256(given);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : options_.keys) {  // every key is compared, so time tells nothing of which one came close
    if (CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0) found = &key;
  }
  if (found == nullptr) {
    return absl::UnauthenticatedError("a valid API key is needed, in Authorization: Bearer KEY or x-api-key");
  }
  return found->name;
}

HttpHeaders Guard::CorsHeaders(const HttpRequest& request) const {
  const std::string* origin = request.Header("origin");
  if (origin == nullptr || !Contains(options_.allow_origins, AsciiLower(*origin))) return {};
  return {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}};
}

absl::Status CheckExposure(const std::string& host, bool has_keys) {
  in_addr v4{};
  const bool loopback = host == "localhost" || host == "::1" ||
                        (inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127);
  if (loopback || has_keys) return absl::OkStatus();
  return FailedPrecondition(
      "server.listen: {} can be reached from other machines, and there are no API keys; set server.keys_file, or "
      "listen "
      "on 127.0.0.1",
      host);
}

}  // namespace layover
