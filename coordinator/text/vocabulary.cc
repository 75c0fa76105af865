#include "coordinator/text/vocabulary.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_replace.h"
#include "common/limits.h"
#include "coordinator/text/utf8.h"
#include "fmt/core.h"

namespace layover {
namespace {

constexpr std::string_view kSpmSpace = "\xE2\x96\x81";  // U+2581

// Spellings that end a turn in one model family or another; metadata is often incomplete.
constexpr const char* kEogTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
};

// Padding, repository and file marks of fill-in-the-middle training: one of each kind ends a generation too.
constexpr const char* kFimPadTexts[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr const char* kFimRepoTexts[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"};
constexpr const char* kFimFileTexts[] = {"<|file_sep|>"};
constexpr const char* kFimPartTexts[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",  "<SUF>", "▁<SUF>", "<|code_suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",   "<MID>", "▁<MID>", "<|code_middle|>",
};

// gpt-oss writes its channels with control tokens that belong to the output.
constexpr const char* kShownControlTexts[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

std::array<std::string, 256> MakeByteAlphabet() {
  std::array<std::string, 256> alphabet;
  uint32_t next_substitute = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    AppendUtf8(prints ? byte : next_substitute++, &alphabet[byte]);
  }
  return alphabet;
}

// Code point to byte; -1: not a letter of the alphabet.
std::array<int16_t, 0x144> MakeInverseAlphabet() {
  std::array<int16_t, 0x144> inverse;
  inverse.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string& letter = ByteAlphabet()[byte];
    inverse[DecodeUtf8(letter, letter.size())] = static_cast<int16_t>(byte);
  }
  return inverse;
}

// False: the text has a character that is no letter of the byte alphabet.
bool MapBack(std::string_view text, std::string* bytes) {
  static const std::array<int16_t, 0x144> inverse = MakeInverseAlphabet();
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Kind::kCharacter) return false;
    const uint32_t code_point = DecodeUtf8(text, step.bytes);
    if (code_point >= inverse.size() || inverse[code_point] < 0) return false;
    bytes->push_back(static_cast<char>(inverse[code_point]));
    text.remove_prefix(step.bytes);
  }
  return true;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that "<0x0A>" names; -1: not such a spelling.
int NamedByte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

const std::array<std::string, 256>& ByteAlphabet() {
  static const std::array<std::string, 256> alphabet = MakeByteAlphabet();
  return alphabet;
}

absl::StatusOr<std::unique_ptr<Vocabulary>> Vocabulary::Create(const TokenizerSpec& spec) {
  auto vocabulary = std::make_unique<Vocabulary>();
  vocabulary->is_byte_level_ = spec.model == "gpt2";
  RETURN_IF_ERROR(vocabulary->AddTokens(spec));
  vocabulary->RetypeByText(spec.eos_id);
  vocabulary->CollectEog(spec);
  vocabulary->FillBytes();
  return vocabulary;
}

absl::Status Vocabulary::AddTokens(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  if (n == 0) return InvalidArgument("tokenizer.ggml.tokens is empty");
  if (n > static_cast<size_t>(limits::kMaxVocab)) {
    return InvalidArgument("tokenizer.ggml.tokens has {} entries; at most {} are taken", n, limits::kMaxVocab);
  }
  if (!spec.types.empty() && spec.types.size() != n) {
    return InvalidArgument("tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}", spec.types.size(), n);
  }
  tokens_.resize(n);
  for (size_t id = 0; id < n; ++id) {
    tokens_[id].text = spec.tokens[id];
    if (!spec.types.empty()) tokens_[id].type = spec.types[id];
  }
  ids_.reserve(n);
  for (size_t id = 0; id < n; ++id) {
    const std::string& text = tokens_[id].text;
    longest_text_bytes_ = std::max(longest_text_bytes_, text.size());
    const auto [it, is_new] = ids_.emplace(ToAbsl(text), static_cast<int32_t>(id));
    if (!is_new) return InvalidArgument("tokenizer.ggml.tokens: entries {} and {} are both '{}'", it->second, id, text);
  }
  return absl::OkStatus();
}

int32_t Vocabulary::Find(std::string_view text) const {
  const auto it = ids_.find(ToAbsl(text));
  return it == ids_.end() ? -1 : it->second;
}

int32_t Vocabulary::FindPlain(std::string_view text) const {
  const int32_t id = Find(text);
  return id < 0 || IsControl(id) ? -1 : id;
}

// Files made with incomplete metadata list some control tokens as ordinary ones.
void Vocabulary::RetypeByText(int32_t eos_id) {
  const auto force_control = [&](std::span<const char* const> texts) {
    for (const char* text : texts) {
      const int32_t id = Find(text);
      if (id >= 0 && (id == eos_id || !IsMarkup(id))) tokens_[id].type = TokenType::kControl;
    }
  };
  force_control(kEogTexts);
  force_control(kFimPadTexts);
  force_control(kFimRepoTexts);
  force_control(kFimFileTexts);
  force_control(kFimPartTexts);
}

// Gemma's vocabularies list the tags of HTML as user-defined, `</s>` (end of struck text) among them.
bool Vocabulary::IsMarkup(int32_t id) const {
  return tokens_[id].text == "</s>" && tokens_[id].type == TokenType::kUserDefined;
}

void Vocabulary::CollectEog(const TokenizerSpec& spec) {
  absl::flat_hash_set<int32_t> eog;
  for (const int32_t id : {spec.eos_id, spec.eot_id, spec.eom_id, spec.fim_pad_id, spec.fim_rep_id, spec.fim_sep_id}) {
    if (Contains(id)) eog.insert(id);
  }
  for (const char* text : kEogTexts) {
    if (const int32_t id = Find(text); id < 0 || !IsMarkup(id)) eog.insert(id);
  }
  // The file's own id stands for its kind; without one the first spelling found does.
  const auto insert_first = [&](int32_t given, std::span<const char* const> texts) {
    if (Contains(given)) return;
    for (const char* text : texts) {
      if (const int32_t id = Find(text); id >= 0) {
        eog.insert(id);
        return;
      }
    }
  };
  insert_first(spec.fim_pad_id, kFimPadTexts);
  insert_first(spec.fim_rep_id, kFimRepoTexts);
  insert_first(spec.fim_sep_id, kFimFileTexts);
  eog.erase(-1);

  // In gpt-oss and solar-open `<|end|>` stands between the messages of one turn; it is part of the output.
  const bool is_harmony = Find("<|return|>") >= 0 && Find("<|call|>") >= 0;
  const bool is_solar = Find("<|calls|>") >= 0 && Find("<|flush|>") >= 0;
  const int32_t end = Find("<|end|>");
  const bool end_is_shown = (is_harmony || is_solar) && end >= 0;
  if (end_is_shown) eog.erase(end);
  // Gemma 4 has `</s>` as ordinary text.
  const int32_t close_s = Find("</s>");
  if (Find("<|tool_response>") >= 0 && close_s >= 0) {
    eog.erase(close_s);
    tokens_[close_s].type = TokenType::kNormal;
  }

  eog_ids_.assign(eog.begin(), eog.end());
  std::sort(eog_ids_.begin(), eog_ids_.end());
  for (const int32_t id : eog_ids_) tokens_[id].is_eog = true;
  for (int32_t id = 0; id < size(); ++id) {
    const TokenType type = tokens_[id].type;
    tokens_[id].is_hidden = IsControl(id) || type == TokenType::kUnused || type == TokenType::kUndefined;
  }
  if (end_is_shown) tokens_[end].is_hidden = false;
  if (is_harmony) {
    for (const char* text : kShownControlTexts) {
      if (const int32_t id = Find(text); id >= 0) tokens_[id].is_hidden = false;
    }
  }
}

std::string Vocabulary::BytesOf(const Token& token) const {
  if (token.type == TokenType::kByte || (!is_byte_level_ && NamedByte(token.text) >= 0)) {
    if (const int byte = NamedByte(token.text); byte >= 0) return std::string(1, static_cast<char>(byte));
  }
  if (token.type != TokenType::kNormal && token.type != TokenType::kByte) return token.text;
  if (!is_byte_level_) return absl::StrReplaceAll(token.text, {{ToAbsl(kSpmSpace), " "}});
  std::string bytes;
  return MapBack(token.text, &bytes) ? bytes : token.text;
}

void Vocabulary::FillBytes() {
  for (Token& token : tokens_) token.bytes = BytesOf(token);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string named = fmt::format("<0x{:02X}>", byte);
    byte_tokens_[byte] = is_byte_level_ ? FindPlain(ByteAlphabet()[byte]) : FindPlain(named);
    if (byte_tokens_[byte] < 0) {
      byte_tokens_[byte] = is_byte_level_ ? FindPlain(named) : FindPlain(std::string(1, static_cast<char>(byte)));
    }
  }
}

}  // namespace layover
