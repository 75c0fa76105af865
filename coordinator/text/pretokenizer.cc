#include "coordinator/text/pretokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace layover {
namespace {

// What a match writes to, one of each per thread.
struct MatchScratch {
  MatchScratch()
      : context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create(1, nullptr)),
        jit_stack(pcre2_jit_stack_create(32 * limits::kKiB, limits::kPreTokenizerJitStackBytes, nullptr)) {
    LAYOVER_CHECK(context != nullptr && data != nullptr && jit_stack != nullptr);
    pcre2_set_match_limit(context, limits::kPreTokenizerMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, jit_stack);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

  pcre2_match_context* context;
  pcre2_match_data* data;
  pcre2_jit_stack* jit_stack;
};

MatchScratch& ThreadScratch() {
  thread_local MatchScratch scratch;
  return scratch;
}

std::string PcreMessage(int error) {
  unsigned char text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// PCRE2's own \s also takes U+180E, which is not White_Space.
std::string WithUnicodeSpaces(const std::string& pattern) {
  return absl::StrReplaceAll(pattern, {{"\\s", "\\p{wspace}"}, {"\\S", "\\P{wspace}"}, {"\\\\", "\\\\"}});
}

}  // namespace

struct PreTokenizer::Expression {
  ~Expression() { pcre2_code_free(code); }

  // PCRE2's answer for the first match at or after `start`.
  int Match(std::string_view text, size_t start, MatchScratch* scratch) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (has_jit) return pcre2_jit_match(code, subject, text.size(), start, 0, scratch->data, scratch->context);
    return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, scratch->data, scratch->context);
  }

  void Split(std::string_view piece, std::vector<std::string_view>* pieces) const {
    MatchScratch& scratch = ThreadScratch();
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data);
    size_t gap = 0;  // where what no match has taken begins
    while (gap < piece.size()) {
      const int answer = Match(piece, gap, &scratch);
      if (answer < 0 && answer != PCRE2_ERROR_NOMATCH) {
        LogWarning("pre-tokenizer: {} ({}) in a piece of {} bytes; its last {} bytes stay whole", PcreMessage(answer),
                   answer, piece.size(), piece.size() - gap);
      }
      // An empty match cuts nothing; none of our expressions has one.
      if (answer < 0 || range[1] == range[0]) break;
      if (range[0] > gap) pieces->push_back(piece.substr(gap, range[0] - gap));
      pieces->push_back(piece.substr(range[0], range[1] - range[0]));
      gap = range[1];
    }
    if (gap < piece.size()) pieces->push_back(piece.substr(gap));
  }

  pcre2_code* code = nullptr;
  bool has_jit = false;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const PreTokenizerFamily& family) {
  std::unique_ptr<PreTokenizer> pre_tokenizer(new PreTokenizer());
  for (const std::string& source : family.patterns) {
    const std::string pattern = WithUnicodeSpaces(source);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto expression = std::make_unique<Expression>();
    expression->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr);
    if (expression->code == nullptr) {
      return InvalidArgument("pre-tokenizer '{}': {} at byte {} of {}", family.names.front(), PcreMessage(error),
                             offset, pattern);
    }
    expression->has_jit = pcre2_jit_compile(expression->code, PCRE2_JIT_COMPLETE) == 0;
    pre_tokenizer->expressions_.push_back(std::move(expression));
  }
  return pre_tokenizer;
}

std::vector<std::string_view> PreTokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  std::vector<std::string_view> finer;
  for (const std::unique_ptr<Expression>& expression : expressions_) {
    finer.clear();
    finer.reserve(pieces.size() * 2);
    for (const std::string_view piece : pieces) expression->Split(piece, &finer);
    pieces.swap(finer);
  }
  return pieces;
}

}  // namespace layover
