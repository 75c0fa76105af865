#include "coordinator/text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "common/check.h"

namespace layover {
namespace {

constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
constexpr int32_t kEnd = -1;  // no symbol before or after

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Numbers strings: tokens by their id, any other string by the next number after them.
class SymbolTable {
 public:
  explicit SymbolTable(const Vocabulary* vocabulary) : vocabulary_(vocabulary), next_(vocabulary->size()) {}

  int32_t Number(std::string_view text) {
    if (const int32_t id = vocabulary_->Find(text); id >= 0) return id;
    const auto [it, is_new] = others_.emplace(std::string(text), next_);
    if (is_new) ++next_;
    return it->second;
  }

 private:
  const Vocabulary* vocabulary_;
  int32_t next_;
  absl::flat_hash_map<std::string, int32_t> others_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BpeEncoder>> BpeEncoder::Create(const Vocabulary* vocabulary,
                                                               const std::vector<std::string>& merges,
                                                               bool ignore_merges) {
  std::unique_ptr<BpeEncoder> encoder(new BpeEncoder(vocabulary, ignore_merges));
  SymbolTable symbols(vocabulary);
  for (int byte = 0; byte < 256; ++byte) encoder->byte_symbols_[byte] = symbols.Number(ByteAlphabet()[byte]);
  encoder->ranks_.reserve(merges.size());
  encoder->merged_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ', 1);  // the left part may itself begin with a space
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return InvalidArgument("tokenizer.ggml.merges: entry {} ('{}') is not two parts with a space between", i, merge);
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    encoder->ranks_.emplace(PairKey(symbols.Number(left), symbols.Number(right)), static_cast<uint32_t>(i));
    encoder->merged_.push_back(symbols.Number(std::string(left) + std::string(right)));
  }
  return encoder;
}

uint32_t BpeEncoder::RankOf(int32_t left, int32_t right) const {
  const auto it = ranks_.find(PairKey(left, right));
  return it == ranks_.end() ? kNoMerge : it->second;
}

// The heap holds (rank, left symbol), smallest first. An entry is stale if the left symbol's merge has changed since.
void BpeEncoder::MergeAll(Scratch* scratch) const {
  Scratch& s = *scratch;
  const auto entry = [&](int32_t i) { return static_cast<uint64_t>(s.rank[i]) << 32 | static_cast<uint32_t>(i); };
  s.heap.clear();
  for (size_t i = 0; i < s.symbol.size(); ++i) {
    if (s.rank[i] != kNoMerge) s.heap.push_back(entry(static_cast<int32_t>(i)));
  }
  std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  const auto update = [&](int32_t i) {
    s.rank[i] = s.next[i] == kEnd ? kNoMerge : RankOf(s.symbol[i], s.symbol[s.next[i]]);
    if (s.rank[i] == kNoMerge) return;
    s.heap.push_back(entry(i));
    std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  };
  while (!s.heap.empty()) {
    const auto left = static_cast<int32_t>(s.heap.front() & 0xFFFFFFFFu);
    const auto rank = static_cast<uint32_t>(s.heap.front() >> 32);
    std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    s.heap.pop_back();
    if (s.rank[left] != rank) continue;
    const int32_t right = s.next[left];
    s.symbol[left] = merged_[rank];
    s.next[left] = s.next[right];
    s.rank[right] = kNoMerge;
    if (s.next[left] != kEnd) s.previous[s.next[left]] = left;
    update(left);
    if (s.previous[left] != kEnd) update(s.previous[left]);
  }
}

int64_t BpeEncoder::EmitSymbol(int32_t symbol, std::string_view bytes, std::vector<int32_t>* ids) const {
  if (symbol < vocabulary_->size() && !vocabulary_->IsControl(symbol)) {
    ids->push_back(symbol);
    return 0;
  }
  int64_t dropped = 0;
  for (const char c : bytes) {
    const int32_t id = vocabulary_->ByteToken(static_cast<unsigned char>(c));
    if (id >= 0) {
      ids->push_back(id);
    } else {
      ++dropped;
    }
  }
  return dropped;
}

int64_t BpeEncoder::EncodePiece(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  Scratch& s = *scratch;
  if (ignore_merges_ && piece.size() <= vocabulary_->LongestTextBytes()) {
    s.mapped.clear();
    for (const char c : piece) s.mapped += ByteAlphabet()[static_cast<unsigned char>(c)];
    if (const int32_t id = vocabulary_->FindPlain(s.mapped); id >= 0) {
      ids->push_back(id);
      return 0;
    }
  }
  LAYOVER_CHECK(piece.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  const auto n = static_cast<int32_t>(piece.size());
  s.symbol.resize(n);
  s.previous.resize(n);
  s.next.resize(n);
  s.rank.resize(n);
  for (int32_t i = 0; i < n; ++i) {
    s.symbol[i] = byte_symbols_[static_cast<unsigned char>(piece[i])];
    s.previous[i] = i == 0 ? kEnd : i - 1;
    s.next[i] = i + 1 == n ? kEnd : i + 1;
  }
  for (int32_t i = 0; i < n; ++i) s.rank[i] = s.next[i] == kEnd ? kNoMerge : RankOf(s.symbol[i], s.symbol[i + 1]);
  MergeAll(&s);
  int64_t dropped = 0;
  for (int32_t i = n > 0 ? 0 : kEnd; i != kEnd; i = s.next[i]) {
    const int32_t end = s.next[i] == kEnd ? n : s.next[i];
    dropped += EmitSymbol(s.symbol[i], piece.substr(i, end - i), ids);
  }
  return dropped;
}

}  // namespace layover
