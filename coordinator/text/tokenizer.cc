#include "coordinator/text/tokenizer.h"

#include <atomic>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "coordinator/text/bpe.h"
#include "coordinator/text/pretokenizer.h"
#include "coordinator/text/special_tokens.h"
#include "coordinator/text/spm.h"
#include "coordinator/text/utf8.h"
#include "coordinator/text/vocabulary.h"

namespace layover {
namespace {

std::vector<SpecialToken> SpecialTokensOf(const Vocabulary& vocabulary) {
  std::vector<SpecialToken> tokens;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const bool is_control = vocabulary.IsControl(id);
    if (is_control || vocabulary.Type(id) == TokenType::kUserDefined) {
      tokens.push_back({vocabulary.Text(id), id, is_control});
    }
  }
  return tokens;
}

std::vector<std::string> ControlTextsOf(const Vocabulary& vocabulary) {
  std::vector<std::string> texts;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.IsControl(id) && !vocabulary.Text(id).empty()) texts.push_back(vocabulary.Text(id));
  }
  return texts;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(std::unique_ptr<Vocabulary> vocabulary_in, std::string model_in)
      : vocabulary(std::move(vocabulary_in)),
        model(std::move(model_in)),
        special_tokens(SpecialTokensOf(*vocabulary)),
        control_texts(ControlTextsOf(*vocabulary)) {}

  absl::Status SetUpBpe(const TokenizerSpec& spec);
  absl::Status SetUpSpm(const TokenizerSpec& spec);
  int32_t CheckedId(int32_t id, std::string_view name) const;
  void EncodePlain(std::string_view text, bool follows_special, std::vector<int32_t>* ids) const;
  void CountDropped(int64_t n) const;

  std::unique_ptr<Vocabulary> vocabulary;
  std::string model;
  std::string pre;
  SpecialTokens special_tokens;
  std::vector<std::string> control_texts;
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // gpt2
  std::unique_ptr<BpeEncoder> bpe;              // gpt2
  std::unique_ptr<SpmEncoder> spm;              // llama
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  mutable std::atomic<bool> has_warned_of_dropped{false};
};

absl::Status Tokenizer::Impl::SetUpBpe(const TokenizerSpec& spec) {
  pre = spec.pre;
  if (pre.empty()) {
    pre = "default";
    LogWarning(
        "the model names no pre-tokenizer (tokenizer.ggml.pre); text may be cut in other places than in training");
  }
  const PreTokenizerFamily* family = FindPreTokenizerFamily(pre);
  if (family == nullptr) return InvalidArgument("tokenizer.ggml.pre: '{}' is not a pre-tokenizer known here", pre);
  ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::Create(*family));
  ASSIGN_OR_RETURN(bpe, BpeEncoder::Create(vocabulary.get(), spec.merges, family->ignore_merges));
  bos_id = CheckedId(spec.bos_id, "bos");
  eos_id = CheckedId(spec.eos_id, "eos");
  add_bos = spec.add_bos.value_or(family->add_bos);
  add_eos = spec.add_eos.value_or(false);
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::SetUpSpm(const TokenizerSpec& spec) {
  // llama.cpp's defaults of a file that gives no ids: 1 begins, 2 ends, 0 is unknown.
  bos_id = CheckedId(spec.bos_id < 0 ? 1 : spec.bos_id, "bos");
  eos_id = CheckedId(spec.eos_id < 0 ? 2 : spec.eos_id, "eos");
  const int32_t unk_id = CheckedId(spec.unk_id < 0 ? 0 : spec.unk_id, "unknown");
  ASSIGN_OR_RETURN(spm, SpmEncoder::Create(vocabulary.get(), spec.scores, unk_id));
  add_bos = spec.add_bos.value_or(true);
  add_eos = spec.add_eos.value_or(false);
  add_space_prefix = spec.add_space_prefix.value_or(true);
  return absl::OkStatus();
}

int32_t Tokenizer::Impl::CheckedId(int32_t id, std::string_view name) const {
  if (id < 0 || vocabulary->Contains(id)) return id;
  LogWarning("tokenizer.ggml.{}_token_id {} is outside the vocabulary of {} tokens and is ignored", name, id,
             vocabulary->size());
  return -1;
}

void Tokenizer::Impl::CountDropped(int64_t n) const {
  if (n > 0 && !has_warned_of_dropped.exchange(true)) {
    LogWarning("{} bytes of a text have no token in this vocabulary and were left out (said once)", n);
  }
}

void Tokenizer::Impl::EncodePlain(std::string_view text, bool follows_special, std::vector<int32_t>* ids) const {
  int64_t dropped = 0;
  if (spm != nullptr) {
    const bool takes_space = add_space_prefix && follows_special;
    dropped = takes_space ? spm->Encode(" " + std::string(text), ids) : spm->Encode(text, ids);
  } else {
    BpeEncoder::Scratch scratch;
    for (const std::string_view piece : pre_tokenizer->Split(text)) dropped += bpe->EncodePiece(piece, &scratch, ids);
  }
  CountDropped(dropped);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, TokenizerSpecFromGguf(file));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSpec(TokenizerSpec spec) {
  if (spec.model != "gpt2" && spec.model != "llama") {
    return InvalidArgument("tokenizer.ggml.model: '{}' is not supported; gpt2 and llama are", spec.model);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Vocabulary> vocabulary, Vocabulary::Create(spec));
  auto impl = std::make_unique<Impl>(std::move(vocabulary), spec.model);
  RETURN_IF_ERROR(spec.model == "gpt2" ? impl->SetUpBpe(spec) : impl->SetUpSpm(spec));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = ToValidUtf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (options.add_special && impl_->add_bos && impl_->bos_id >= 0) ids.push_back(impl_->bos_id);
  size_t begin = 0;
  bool follows_special = true;  // the text's first part counts as following one
  const auto encode_until = [&](size_t end) {
    if (end > begin) impl_->EncodePlain(text.substr(begin, end - begin), follows_special, &ids);
  };
  for (const SpecialMatch& match : impl_->special_tokens.Find(text, options.parse_special)) {
    encode_until(match.begin);
    ids.push_back(match.id);
    begin = match.end;
    follows_special = true;
  }
  encode_until(text.size());
  if (options.add_special && impl_->add_eos && impl_->eos_id >= 0) ids.push_back(impl_->eos_id);
  return ids;
}

std::vector<ControlSplit> Tokenizer::SplitAtControlTokens(std::string_view text) const {
  std::vector<ControlSplit> parts;
  size_t begin = 0;
  for (const SpecialMatch& match : impl_->special_tokens.Find(text, /*parse_control=*/true)) {
    if (!match.is_control) continue;
    if (match.begin > begin) parts.push_back({text.substr(begin, match.begin - begin), -1});
    parts.push_back({text.substr(match.begin, match.end - match.begin), match.id});
    begin = match.end;
  }
  if (begin < text.size()) parts.push_back({text.substr(begin), -1});
  return parts;
}

std::string_view Tokenizer::TokenBytes(int32_t id, bool show_special) const {
  const Vocabulary& vocabulary = *impl_->vocabulary;
  if (!vocabulary.Contains(id)) return {};
  const bool is_control = vocabulary.IsControl(id);
  const bool shows = !vocabulary.IsHidden(id) || (show_special && is_control);
  return shows ? std::string_view(vocabulary.Bytes(id)) : std::string_view();
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return impl_->vocabulary->Contains(id) ? std::string_view(impl_->vocabulary->Text(id)) : std::string_view();
}

TokenType Tokenizer::Type(int32_t id) const {
  return impl_->vocabulary->Contains(id) ? impl_->vocabulary->Type(id) : TokenType::kUndefined;
}

bool Tokenizer::IsEog(int32_t id) const {
  return impl_->vocabulary->Contains(id) && impl_->vocabulary->IsEog(id);
}

bool Tokenizer::IsControl(int32_t id) const {
  return impl_->vocabulary->Contains(id) && impl_->vocabulary->IsControl(id);
}

std::span<const int32_t> Tokenizer::EogIds() const {
  return impl_->vocabulary->EogIds();
}
std::span<const std::string> Tokenizer::ControlTexts() const {
  return impl_->control_texts;
}
int32_t Tokenizer::n_vocab() const {
  return impl_->vocabulary->size();
}
int32_t Tokenizer::bos_id() const {
  return impl_->bos_id;
}
int32_t Tokenizer::eos_id() const {
  return impl_->eos_id;
}
bool Tokenizer::add_bos() const {
  return impl_->add_bos;
}
bool Tokenizer::add_eos() const {
  return impl_->add_eos;
}
bool Tokenizer::drops_leading_space() const {
  return impl_->add_space_prefix;
}
std::string_view Tokenizer::model() const {
  return impl_->model;
}
std::string_view Tokenizer::pre() const {
  return impl_->pre;
}

}  // namespace layover
