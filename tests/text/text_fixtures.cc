#include "tests/text/text_fixtures.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/container/flat_hash_map.h"
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

// `own_ids`: the model's id to that of the cut-down vocabulary.
TokenizerSpec SpecOf(const nlohmann::ordered_json& row, const absl::flat_hash_map<int32_t, int32_t>& own_ids) {
  TokenizerSpec spec;
  spec.model = row["model"];
  spec.pre = row["pre"];
  spec.tokens = row["tokens"].get<std::vector<std::string>>();
  for (const int type : row["types"]) spec.types.push_back(static_cast<TokenType>(type));
  spec.scores = row["scores"].get<std::vector<float>>();
  spec.merges = row["merges"].get<std::vector<std::string>>();
  const nlohmann::ordered_json& keys = row["keys"];
  const std::pair<const char*, int32_t*> special[] = {
      {"bos_token_id", &spec.bos_id}, {"eos_token_id", &spec.eos_id}, {"unknown_token_id", &spec.unk_id}};
  for (const auto& [key, id] : special) {
    if (keys.contains(key)) *id = own_ids.at(keys[key].get<int32_t>());
  }
  if (keys.contains("add_bos_token")) spec.add_bos = keys["add_bos_token"].get<bool>();
  if (keys.contains("add_eos_token")) spec.add_eos = keys["add_eos_token"].get<bool>();
  if (keys.contains("add_space_prefix")) spec.add_space_prefix = keys["add_space_prefix"].get<bool>();
  return spec;
}

std::vector<PublishedVocabulary> ReadVocabularies() {
  const auto rows = ReadJsonLines("vocabularies.jsonl");
  std::vector<PublishedVocabulary> vocabularies;
  for (size_t i = 1; i < rows.size(); ++i) {
    const nlohmann::ordered_json& row = rows[i];
    PublishedVocabulary vocabulary;
    vocabulary.label = row["kind"].get<std::string>() + " " + row["name"].get<std::string>();
    absl::flat_hash_map<int32_t, int32_t> own_ids;
    int32_t next = 0;
    for (const int32_t id : row["token_ids"]) own_ids[id] = next++;
    vocabulary.spec = SpecOf(row, own_ids);
    vocabulary.tokenizer = MakeTokenizer(vocabulary.spec);
    const nlohmann::ordered_json& texts = row["texts"].is_array() ? row["texts"] : rows[0]["texts"];
    vocabulary.texts = texts.get<std::vector<std::string>>();
    for (const nlohmann::ordered_json& ids : row["ids"]) {
      std::vector<int32_t>& own = vocabulary.ids.emplace_back();
      for (const int32_t id : ids) own.push_back(own_ids.at(id));
    }
    vocabularies.push_back(std::move(vocabulary));
  }
  return vocabularies;
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

const std::vector<PublishedVocabulary>& PublishedVocabularies() {
  static const std::vector<PublishedVocabulary> vocabularies = ReadVocabularies();
  return vocabularies;
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
