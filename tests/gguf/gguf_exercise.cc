#include "tests/gguf/gguf_exercise.h"

#include <algorithm>
#include <cstring>

#include "common/gguf/model_identity.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"

namespace layover::testing {
namespace {

void ReadEveryKey(const GgufFile& file) {
  for (const std::string& key : file.Keys()) {
    (void)file.GetInt(key);
    (void)file.GetFloat(key);
    (void)file.GetBool(key);
    (void)file.GetString(key);
    (void)file.GetStrings(key);
    (void)file.GetInts(key);
    (void)file.GetFloats(key);
    (void)file.GetArrayLength(key);
  }
}

}  // namespace

bool ReadEverything(std::string_view bytes) {
  const auto file = GgufFile::FromBytes(bytes, "hostile.gguf");
  if (!file.ok()) return false;
  ReadEveryKey(**file);
  (void)TokenizerDigest(**file);
  (void)ChatTemplateDigest(**file);
  const auto shape = ReadModelShape(**file);
  if (!shape.ok()) return false;
  (void)RopeFrequencies(*shape, **file);
  (void)RopeFrequencies(*shape, **file, LayerKind::kSlidingWindow);
  return ReadModelIdentity(**file, *shape, "f16").ok();
}

std::string Mutate(const std::string& good, const std::function<uint64_t()>& next_random) {
  static constexpr uint64_t kNumbers[] = {
      0,          1,          2,          31,         0x7f,        0x80,
      0xff,       0xffff,     0x7fffffff, 0x80000000, 0xffffffff,  uint64_t{1} << 32,
      1ull << 62, 1ull << 63, ~0ull,      ~0ull - 31, 0x3fffffffff};
  std::string bytes = good;
  for (uint64_t damages = 1 + next_random() % 4; damages > 0 && bytes.size() > 8; --damages) {
    // Half of them in the first kilobyte, where the counts and the hyper-parameters are.
    const size_t range = next_random() % 2 == 0 ? std::min<size_t>(bytes.size(), 1024) : bytes.size();
    const size_t at = next_random() % range;
    switch (next_random() % 8) {
      case 0:
        bytes.resize(at);
        break;
      case 1: {
        const size_t length = std::min<size_t>(bytes.size() - at, 1 + next_random() % 16);
        bytes.insert(at, bytes.substr(at, length));
        break;
      }
      case 2:
      case 3: {
        const uint64_t number = kNumbers[next_random() % std::size(kNumbers)];
        std::memcpy(bytes.data() + at, &number, std::min<size_t>(bytes.size() - at, next_random() % 2 == 0 ? 4 : 8));
        break;
      }
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << next_random() % 8));
    }
  }
  return bytes;
}

}  // namespace layover::testing
