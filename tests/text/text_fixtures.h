// What the text tests share: golden files, the demo model's tokenizer, a template helper, small made-up vocabularies.
#ifndef LAYOVER_TESTS_TEXT_TEXT_FIXTURES_H_
#define LAYOVER_TESTS_TEXT_TEXT_FIXTURES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/template_engine.h"
#include "coordinator/text/tokenizer.h"
#include "nlohmann/json.hpp"

namespace layover {

std::vector<nlohmann::ordered_json> ReadJsonLines(const std::string& golden_name);

// The demo model's, read once; fails the test if models/ does not hold it.
const Tokenizer& DemoTokenizer();
std::string DemoChatTemplate();

std::unique_ptr<TemplateEngine> StartEngine(int deadline_ms = limits::kTemplateDeadlineMs);

// A byte-level vocabulary: the 256 bytes, the tokens that `merges` make, then `special` ones.
struct SpecialEntry {
  std::string text;
  TokenType type = TokenType::kControl;
};
TokenizerSpec ByteLevelSpec(const std::vector<std::string>& merges, const std::vector<SpecialEntry>& special = {});

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec);

// A published model's vocabulary, cut down to what its texts need, and the ids that others make of them.
struct PublishedVocabulary {
  std::string label;
  TokenizerSpec spec;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;  // per text
};
const std::vector<PublishedVocabulary>& PublishedVocabularies();

// Token texts joined by '|', for expectations that read well.
std::string Spell(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace layover

#endif  // LAYOVER_TESTS_TEXT_TEXT_FIXTURES_H_
