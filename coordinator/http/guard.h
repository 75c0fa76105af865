// Who may ask: API keys, the Host check (against DNS rebinding) and the Origin check (against other sites' pages).
// All of it is decided from a request's head, before its body is read.
#ifndef LAYOVER_COORDINATOR_HTTP_GUARD_H_
#define LAYOVER_COORDINATOR_HTTP_GUARD_H_

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/http/http_message.h"

namespace layover {

// Only the SHA-256 of a key is kept: comparing digests takes the same time whatever was sent.
struct ApiKey {
  std::string name;  // the owner of what is made with it
  std::array<unsigned char, 32> digest{};
};

// One `name:key` a line; empty lines and lines that begin with # are skipped. The file must be readable by its owner
// only (0600 or 0400). InvalidArgument: FILE:LINE and what is wrong.
absl::StatusOr<std::vector<ApiKey>> ReadKeysFile(const std::string& path);

struct GuardOptions {
  std::vector<ApiKey> keys;                // none: every request is let in as owner ""
  std::vector<std::string> allow_hosts;    // names, besides localhost and literal addresses
  std::vector<std::string> allow_origins;  // "https://chat.example.org"
};

class Guard {
 public:
  explicit Guard(GuardOptions options);

  // PermissionDenied (host_not_allowed): a Host that is no literal address, not localhost and not allowed.
  absl::Status CheckHost(const HttpRequest& request) const;
  // PermissionDenied (origin_not_allowed), unless Origin is absent, the same host, or allowed.
  absl::Status CheckOrigin(const HttpRequest& request) const;
  // The owner's name, from Authorization: Bearer or x-api-key. Unauthenticated: one text, missing or wrong.
  absl::StatusOr<std::string> Authenticate(const HttpRequest& request) const;

  // What a reply to that origin carries: exactly this one origin, never credentials.
  HttpHeaders CorsHeaders(const HttpRequest& request) const;
  bool has_keys() const { return !options_.keys.empty(); }

 private:
  GuardOptions options_;
};

// FailedPrecondition: `host` can be reached from other machines, and there are no keys.
absl::Status CheckExposure(const std::string& host, bool has_keys);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_GUARD_H_
