// Cuts a text into the pieces that byte-level BPE works on, with the model's own regular expressions run by PCRE2.
//
// Each expression in turn replaces every piece by gap, match, gap, match, ...; nothing is dropped, so the pieces,
// joined, are the text. Immutable; Split may run on several threads at once (what PCRE2 writes to belongs to the
// thread).
#ifndef LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_H_
#define LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/text/pretokenizer_patterns.h"

namespace layover {

class PreTokenizer {
 public:
  // InvalidArgument: an expression that PCRE2 does not take.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(const PreTokenizerFamily& family);
  ~PreTokenizer();

  // `text` is valid UTF-8; pieces point into it and are not empty. Where PCRE2 gives up (its match limit; our patterns
  // do not reach it) the rest of that piece stays whole and a warning says so.
  std::vector<std::string_view> Split(std::string_view text) const;

 private:
  struct Expression;
  PreTokenizer();
  std::vector<std::unique_ptr<Expression>> expressions_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_H_
