#include "coordinator/text/special_tokens.h"

#include <algorithm>
#include <utility>

namespace layover {
namespace {

uint64_t EdgeKey(int32_t node, unsigned char byte) {
  return static_cast<uint64_t>(node) << 8 | byte;
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<SpecialToken> tokens) : tokens_(std::move(tokens)), token_at_{-1} {
  root_children_.fill(-1);
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const SpecialToken& a, const SpecialToken& b) { return a.text.size() > b.text.size(); });
  for (size_t index = 0; index < tokens_.size(); ++index) {
    int32_t node = 0;
    for (const char c : tokens_[index].text) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(token_at_.size());
        token_at_.push_back(-1);
        (node == 0 ? root_children_[byte] : children_[EdgeKey(node, byte)]) = child;
      }
      node = child;
    }
    if (node != 0 && token_at_[node] < 0) token_at_[node] = static_cast<int32_t>(index);
  }
}

int32_t SpecialTokens::Child(int32_t node, unsigned char byte) const {
  if (node == 0) return root_children_[byte];
  const auto it = children_.find(EdgeKey(node, byte));
  return it == children_.end() ? -1 : it->second;
}

std::vector<SpecialMatch> SpecialTokens::Find(std::string_view text, bool parse_control) const {
  struct Occurrence {
    int32_t token;  // index: its order is that of length
    size_t begin;
  };
  std::vector<Occurrence> occurrences;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = Child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) break;
      const int32_t token = token_at_[node];
      if (token >= 0 && (parse_control || !tokens_[token].is_control)) occurrences.push_back({token, begin});
    }
  }
  if (occurrences.empty()) return {};
  std::stable_sort(occurrences.begin(), occurrences.end(),
                   [](const Occurrence& a, const Occurrence& b) { return a.token < b.token; });

  // What is taken is never shorter than the candidate, so an overlap covers one of the candidate's ends.
  std::vector<bool> taken(text.size(), false);
  std::vector<SpecialMatch> matches;
  for (const Occurrence& occurrence : occurrences) {
    const SpecialToken& token = tokens_[occurrence.token];
    const size_t end = occurrence.begin + token.text.size();
    if (taken[occurrence.begin] || taken[end - 1]) continue;
    std::fill(taken.begin() + static_cast<ptrdiff_t>(occurrence.begin), taken.begin() + static_cast<ptrdiff_t>(end),
              true);
    matches.push_back({occurrence.begin, end, token.id, token.is_control});
  }
  std::sort(matches.begin(), matches.end(),
            [](const SpecialMatch& a, const SpecialMatch& b) { return a.begin < b.begin; });
  return matches;
}

}  // namespace layover
