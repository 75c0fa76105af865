#include "coordinator/text/spm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "coordinator/text/utf8.h"

namespace layover {
namespace {

constexpr int32_t kEnd = -1;  // no symbol before or after

struct Symbol {
  uint32_t begin;  // bytes of the text; empty once joined to the one before
  uint32_t bytes;
  int32_t previous;
  int32_t next;
};

struct Candidate {
  float score;
  int32_t left;
  uint32_t bytes;  // of both together: the entry is stale when they have grown
};

// Heap order: the best candidate on top.
bool IsWorse(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

std::vector<Symbol> CharactersOf(std::string_view text) {
  std::vector<Symbol> symbols;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t bytes = NextUtf8(text.substr(begin)).bytes;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(bytes), index - 1, index + 1});
    begin += bytes;
  }
  if (!symbols.empty()) symbols.back().next = kEnd;
  return symbols;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpmEncoder>> SpmEncoder::Create(const Vocabulary* vocabulary, std::vector<float> scores,
                                                               int32_t unk_id) {
  if (scores.size() != static_cast<size_t>(vocabulary->size())) {
    return InvalidArgument("tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens {}", scores.size(),
                           vocabulary->size());
  }
  const auto bad = std::find_if(scores.begin(), scores.end(), [](float score) { return std::isnan(score); });
  if (bad != scores.end()) return InvalidArgument("tokenizer.ggml.scores: entry {} is NaN", bad - scores.begin());
  return std::unique_ptr<SpmEncoder>(new SpmEncoder(vocabulary, std::move(scores), unk_id));
}

int64_t SpmEncoder::EmitSymbol(std::string_view symbol, std::vector<int32_t>* ids) const {
  if (const int32_t id = vocabulary_->FindPlain(symbol); id >= 0) {
    ids->push_back(id);
    return 0;
  }
  int64_t dropped = 0;
  for (const char c : symbol) {
    int32_t id = vocabulary_->ByteToken(static_cast<unsigned char>(c));
    if (id < 0) id = unk_id_;
    if (id >= 0) {
      ids->push_back(id);
    } else {
      ++dropped;
    }
  }
  return dropped;
}

int64_t SpmEncoder::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  const std::string escaped = absl::StrReplaceAll(ToAbsl(text), {{" ", "\xE2\x96\x81"}});
  LAYOVER_CHECK(escaped.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  std::vector<Symbol> symbols = CharactersOf(escaped);
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t left) {
    if (left == kEnd || symbols[left].next == kEnd) return;
    const uint32_t bytes = symbols[left].bytes + symbols[symbols[left].next].bytes;
    if (bytes > vocabulary_->LongestTextBytes()) return;
    const int32_t id = vocabulary_->FindPlain(std::string_view(escaped).substr(symbols[left].begin, bytes));
    if (id < 0) return;
    heap.push_back({scores_[id], left, bytes});
    std::push_heap(heap.begin(), heap.end(), IsWorse);
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), IsWorse);
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    if (left.bytes == 0 || left.next == kEnd || left.bytes + symbols[left.next].bytes != best.bytes) continue;
    Symbol& right = symbols[left.next];
    left.bytes = best.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next != kEnd) symbols[left.next].previous = best.left;
    consider(best.left);
    consider(left.previous);
  }
  int64_t dropped = 0;
  for (int32_t i = symbols.empty() ? kEnd : 0; i != kEnd; i = symbols[i].next) {
    dropped += EmitSymbol(std::string_view(escaped).substr(symbols[i].begin, symbols[i].bytes), ids);
  }
  return dropped;
}

}  // namespace layover
