#include "coordinator/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace layover {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern;
    pattern.failure.assign(stop.size(), 0);
    for (size_t i = 1; i < stop.size(); ++i) {
      int32_t border = pattern.failure[i - 1];
      while (border > 0 && stop[border] != stop[i]) border = pattern.failure[border - 1];
      pattern.failure[i] = stop[border] == stop[i] ? border + 1 : 0;
    }
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped_) return "";
  const size_t already_held = held_.size();
  held_ += text;
  for (size_t i = already_held; i < held_.size(); ++i) {
    const Pattern* complete = nullptr;
    for (Pattern& pattern : patterns_) {
      while (pattern.state > 0 && pattern.text[pattern.state] != held_[i]) {
        pattern.state = pattern.failure[pattern.state - 1];
      }
      if (pattern.text[pattern.state] == held_[i]) ++pattern.state;
      const bool is_complete = pattern.state == static_cast<int32_t>(pattern.text.size());
      if (is_complete && (complete == nullptr || pattern.text.size() > complete->text.size())) complete = &pattern;
    }
    if (complete != nullptr) {
      stopped_ = true;
      matched_ = complete->text;
      std::string shown = held_.substr(0, i + 1 - matched_.size());
      held_.clear();
      shown_bytes_ += static_cast<int64_t>(shown.size());
      return shown;
    }
  }
  int32_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.state);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  shown_bytes_ += static_cast<int64_t>(shown.size());
  return shown;
}

std::string StopMatcher::Flush() {
  std::string shown = std::move(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.state = 0;
  shown_bytes_ += static_cast<int64_t>(shown.size());
  return shown;
}

}  // namespace layover
