#include "coordinator/text/held_ids.h"

#include <algorithm>
#include <string_view>

namespace layover {
namespace {

class Comparison {
 public:
  Comparison(const Tokenizer& tokenizer, std::span<const int32_t> held, std::span<const int32_t> fresh)
      : tokenizer_(tokenizer), held_(held), fresh_(fresh) {}

  CommonText Run() const {
    CommonText common = Start();
    while (true) {
      const Walk walk = WalkText(common);
      common = walk.common;
      if (!walk.agrees || AtEnd(common)) return common;
      const int32_t next = fresh_[Index(common.fresh_n)];
      if (!StandsAlone(next)) continue;  // text goes on, after a user-defined token
      if (held_[Index(common.held_n)] != next) return common;
      ++common.held_n;
      ++common.fresh_n;
    }
  }

 private:
  struct Walk {
    CommonText common;
    bool agrees = false;  // nothing differs up to here, where either ends or what comes next is of one kind in both
  };

  static size_t Index(int64_t n) { return static_cast<size_t>(n); }
  bool AtEnd(const CommonText& at) const {
    return Index(at.held_n) == held_.size() || Index(at.fresh_n) == fresh_.size();
  }

  // Control tokens, and whatever else adds no bytes to a text.
  bool StandsAlone(int32_t id) const { return tokenizer_.IsControl(id) || tokenizer_.TokenBytes(id).empty(); }

  // Whether an SPM encoder put a space before the text that begins here.
  bool TakesSpace(int64_t fresh_n) const {
    if (!tokenizer_.drops_leading_space()) return false;
    if (fresh_n == 0) return true;
    const int32_t before = fresh_[Index(fresh_n) - 1];
    return StandsAlone(before) || tokenizer_.Type(before) == TokenType::kUserDefined;
  }

  // Equal ids need no look at what they spell; but with a space put before it a text is looked at as a whole.
  CommonText Start() const {
    const size_t most = std::min(held_.size(), fresh_.size());
    const auto end = held_.begin() + static_cast<std::ptrdiff_t>(most);
    int64_t n = std::mismatch(held_.begin(), end, fresh_.begin()).first - held_.begin();
    if (tokenizer_.drops_leading_space() && Index(n) < most) {
      while (!TakesSpace(n)) --n;
    }
    return {n, n};
  }

  Walk WalkText(const CommonText& from) const {
    const Walk walk = WalkBytes(from, 0);
    if (walk.agrees || Index(from.fresh_n) == fresh_.size() || !TakesSpace(from.fresh_n)) return walk;
    if (StandsAlone(fresh_[Index(from.fresh_n)])) return walk;
    if (!tokenizer_.TokenBytes(fresh_[Index(from.fresh_n)]).starts_with(' ')) return walk;
    const Walk without_space = WalkBytes(from, 1);
    const bool says_more =
        without_space.common.fresh_n > walk.common.fresh_n && without_space.common.held_n > from.held_n;
    return says_more ? without_space : walk;
  }

  // Byte by byte to the next token that stands alone, in either; `skipped` bytes of the fresh text are left out.
  Walk WalkBytes(const CommonText& from, size_t skipped) const {
    Walk walk{from};
    size_t i = Index(from.held_n);
    size_t j = Index(from.fresh_n);
    std::string_view held, fresh;  // what is left of the tokens in hand
    if (skipped > 0) fresh = tokenizer_.TokenBytes(fresh_[j++]).substr(skipped);
    while (true) {
      if (held.empty() && fresh.empty()) {
        walk.common = {static_cast<int64_t>(i), static_cast<int64_t>(j)};
        if (j > Index(from.fresh_n) && TakesSpace(walk.common.fresh_n)) break;
      }
      if (held.empty()) {
        if (i == held_.size() || StandsAlone(held_[i])) break;
        held = tokenizer_.TokenBytes(held_[i++]);
      }
      if (fresh.empty()) {
        if (j == fresh_.size() || StandsAlone(fresh_[j])) return walk;
        fresh = tokenizer_.TokenBytes(fresh_[j++]);
      }
      const size_t n = std::min(held.size(), fresh.size());
      if (held.substr(0, n) != fresh.substr(0, n)) return walk;
      held.remove_prefix(n);
      fresh.remove_prefix(n);
    }
    walk.agrees =
        held.empty() && fresh.empty() && (AtEnd(walk.common) || StandsAlone(held_[i]) == StandsAlone(fresh_[j]));
    return walk;
  }

  const Tokenizer& tokenizer_;
  const std::span<const int32_t> held_;
  const std::span<const int32_t> fresh_;
};

}  // namespace

CommonText CommonTextOf(const Tokenizer& tokenizer, std::span<const int32_t> held, std::span<const int32_t> fresh) {
  return Comparison(tokenizer, held, fresh).Run();
}

}  // namespace layover
