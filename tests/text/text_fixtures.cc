#include "tests/text/text_fixtures.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <utility>

#include "common/check.h"
#include "common/gguf/reader.h"
#include "common/status.h"
#include "coordinator/text/vocabulary.h"

namespace layover {
namespace {

const std::string kDemoModel = LAYOVER_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";

const GgufFile& DemoFile() {
  static const std::unique_ptr<GgufFile> file = [] {
    auto opened = GgufFile::Open(kDemoModel);
    if (!opened.ok()) std::cerr << opened.status() << "\n(./check and ./quickstart fetch the demo model)\n";
    LAYOVER_CHECK(opened.ok());
    return *std::move(opened);
  }();
  return *file;
}

}  // namespace

std::vector<nlohmann::ordered_json> ReadJsonLines(const std::string& golden_name) {
  std::ifstream file(std::string(LAYOVER_SOURCE_DIR) + "/tests/golden/" + golden_name);
  LAYOVER_CHECK(file.good());
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) rows.push_back(nlohmann::ordered_json::parse(line));
  }
  LAYOVER_CHECK(!rows.empty());
  return rows;
}

const Tokenizer& DemoTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto made = Tokenizer::FromGguf(DemoFile());
    if (!made.ok()) std::cerr << made.status() << "\n";
    LAYOVER_CHECK(made.ok());
    return *std::move(made);
  }();
  return *tokenizer;
}

std::string DemoChatTemplate() {
  const auto text = DemoFile().GetString("tokenizer.chat_template");
  LAYOVER_CHECK(text.ok() && text->has_value());
  return **text;
}

std::unique_ptr<TemplateEngine> StartEngine(int deadline_ms) {
  TemplateEngine::Options options;
  options.helper_path = LAYOVER_SOURCE_DIR "/coordinator/text/template_helper.py";
  options.deadline_ms = deadline_ms;
  auto engine = TemplateEngine::Start(options);
  if (!engine.ok()) std::cerr << engine.status() << "\n";
  LAYOVER_CHECK(engine.ok());
  return *std::move(engine);
}

TokenizerSpec ByteLevelSpec(const std::vector<std::string>& merges, const std::vector<SpecialEntry>& special) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (const std::string& letter : ByteAlphabet()) spec.tokens.push_back(letter);
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ', 1);
    spec.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  spec.merges = merges;
  spec.types.assign(spec.tokens.size(), TokenType::kNormal);
  for (const SpecialEntry& entry : special) {
    spec.tokens.push_back(entry.text);
    spec.types.push_back(entry.type);
  }
  return spec;
}

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::FromSpec(std::move(spec));
  if (!tokenizer.ok()) std::cerr << tokenizer.status() << "\n";
  LAYOVER_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

std::string Spell(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty()) text += '|';
    text += tokenizer.TokenText(id);
  }
  return text;
}

}  // namespace layover
