// What an HTTP exchange says, without sockets: a request, a reply, and the parsing of targets.
#ifndef LAYOVER_COORDINATOR_HTTP_HTTP_MESSAGE_H_
#define LAYOVER_COORDINATOR_HTTP_HTTP_MESSAGE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace layover {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;                        // as sent: "GET", "POST", ...
  std::string path;                          // as sent, still encoded, without the query
  std::vector<std::string> segments;         // of the path, each decoded on its own: %2F stays inside its segment
  std::map<std::string, std::string> query;  // decoded; of a repeated name the last value counts
  HttpHeaders headers;                       // names in lower case
  std::string body;
  std::string remote;  // "127.0.0.1:51234"
  bool http_1_0 = false;

  // The first header of that (lower-case) name; null where there is none.
  const std::string* Header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  HttpHeaders headers;  // Content-Length and Connection are added by the listener
  std::string body;
};

// Splits "/a/b%2Fc?x=1" into path, segments {"a", "b/c"} and query. InvalidArgument: not absolute, a bad percent
// escape.
absl::Status ParseTarget(std::string_view target, HttpRequest& request);

// The inverse for one segment: everything but unreserved characters is escaped.
std::string PercentEncode(std::string_view segment);
absl::StatusOr<std::string> PercentDecode(std::string_view text, bool plus_is_space);

std::string_view ReasonPhrase(int status);
std::string AsciiLower(std::string_view text);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_HTTP_MESSAGE_H_
