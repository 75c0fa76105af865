// The expressions are those of the tokenizers' own files (tokenizer.json), not approximations of them; each family with
// the names that use it. A family that needs more than a list of expressions is not here, so its name is refused.
#include "coordinator/text/pretokenizer_patterns.h"

#include <algorithm>

#include "fmt/core.h"

namespace layover {
namespace {

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";

// English contractions, once as an inline group that ignores case and once spelled out.
constexpr char kContractions[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr char kContractionsSpelled[] = R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))";

// Words split at a change from lower to upper case.
constexpr char kCasedWord1[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)";
constexpr char kCasedWord2[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)";

// Cased letters of the Latin, Greek, Cyrillic and smaller scripts, as DeepSeek LLM lists them.
constexpr char kDeepSeekLetters[] =
    R"(A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}\x{01C4}-\x{0293})"
    R"(\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}\x{0388}-\x{038A})"
    R"(\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})"
    R"(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"
    R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128})"
    R"(\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184})"
    R"(\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B})"
    R"(\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})";

// The llama3 expression with the number rule as the parameter.
std::string Llama3(std::string_view numbers) {
  return fmt::format(R"({}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                     kContractions, numbers);
}

// Cased words with a suffix each, a number rule, and runs of marks that may end in newlines or slashes.
std::string CasedWords(std::string_view suffix, std::string_view numbers) {
  return fmt::format(R"({0}{2}|{1}{2}|{3}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)", kCasedWord1,
                     kCasedWord2, suffix, numbers);
}

std::vector<PreTokenizerFamily> MakeFamilies() {
  const std::string one_number = R"(\p{N})";
  const std::string three_numbers = R"(\p{N}{1,3})";
  const std::string letters = kDeepSeekLetters;
  const std::string qwen2 = Llama3(one_number);
  const std::string bloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)";
  const std::string cjk_and_hangul = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
  const std::string optional_contractions = std::string(kContractions) + "?";
  const std::string optional_spelled = std::string(kContractionsSpelled) + "?";

  std::vector<PreTokenizerFamily> families;
  const auto add = [&](std::vector<std::string_view> names, std::vector<std::string> patterns) -> PreTokenizerFamily& {
    families.push_back({std::move(names), std::move(patterns)});
    return families.back();
  };

  PreTokenizerFamily& llama3 =
      add({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
          {Llama3(three_numbers)});
  llama3.ignore_merges = true;
  llama3.add_bos = true;
  add({"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {Llama3(three_numbers)});
  add({"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"},
      {qwen2});
  add({"qwen35"},
      {std::string(kContractions) + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" +
       R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"});
  add({"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {CasedWords(optional_contractions, three_numbers)});
  add({"gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4", "jina-es", "jina-de", "jina-v2-es",
       "jina-v2-de", "mpt", "olmo", "jais", "trillion", "granite-docling"},
      {kGpt2});
  add({"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
      {one_number, kGpt2});
  add({"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"});
  // `\s+$` with its start pinned: the same matches, without trying every start inside a long run of spaces.
  add({"deepseek-llm"}, {R"([\r\n])", R"(\s?[)" + letters + "]+",
                         R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
                         R"((?<!\s)\s++$)", cjk_and_hangul, R"(\p{N}+)"});
  add({"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", cjk_and_hangul, one_number});
  add({"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
      {three_numbers, R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
       R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"});
  PreTokenizerFamily& tekken = add({"tekken"}, {CasedWords("", one_number)});
  tekken.ignore_merges = true;
  tekken.add_bos = true;
  add({"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"});
  add({"bloom", "gpt3-finnish", "poro-chat"}, {bloom});
  add({"viking"}, {bloom, one_number});
  add({"bailingmoe", "bailingmoe2", "llada-moe"},
      {R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
       R"(|\s*[\r\n]|\s+(?!\S)|\s+)"});
  add({"seed-coder"}, {std::string(kContractionsSpelled) +
                       R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"});
  PreTokenizerFamily& youtu =
      add({"youtu"},
          {R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+)"
           R"(|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F})"
           R"(\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
           CasedWords(optional_spelled, one_number)});
  youtu.ignore_merges = true;
  add({"laguna"}, {R"([^\n]+|[\n]+)", qwen2});
  return families;
}

}  // namespace

std::span<const PreTokenizerFamily> AllPreTokenizerFamilies() {
  static const std::vector<PreTokenizerFamily> families = MakeFamilies();
  return families;
}

const PreTokenizerFamily* FindPreTokenizerFamily(std::string_view name) {
  for (const PreTokenizerFamily& family : AllPreTokenizerFamilies()) {
    if (std::find(family.names.begin(), family.names.end(), name) != family.names.end()) return &family;
  }
  return nullptr;
}

}  // namespace layover
