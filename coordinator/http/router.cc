#include "coordinator/http/router.h"

#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace layover {
namespace {

bool IsParam(const std::string& segment) {
  return segment.size() > 2 && segment.front() == '{';
}

bool Matches(const std::vector<std::string>& pattern, const std::vector<std::string>& segments) {
  if (pattern.size() != segments.size()) return false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (IsParam(pattern[i]) ? segments[i].empty() : pattern[i] != segments[i]) return false;
  }
  return true;
}

}  // namespace

void Router::Add(Route route) {
  HttpRequest parsed;
  const absl::Status status = ParseTarget(route.pattern, parsed);
  LAYOVER_CHECK(status.ok());
  entries_.push_back({std::move(route), std::move(parsed.segments)});
}

Router::Match Router::Find(std::string_view method, const std::vector<std::string>& segments) const {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  Match match;
  for (const Entry& entry : entries_) {
    if (!Matches(entry.segments, segments)) continue;
    if (entry.route.method == wanted) {
      match.route = &entry.route;
      for (size_t i = 0; i < segments.size(); ++i) {
        if (IsParam(entry.segments[i])) match.params.push_back(segments[i]);
      }
      return match;
    }
    if (!match.allowed_methods.empty()) match.allowed_methods += ", ";
    match.allowed_methods += entry.route.method == "GET" ? "GET, HEAD" : entry.route.method;
  }
  return match;
}

}  // namespace layover
