// libFuzzer target of the GGUF reader. Build with clang from the project's root, then start it on a folder of seeds:
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/gguf_fuzz.cc
//     tests/gguf/gguf_exercise.cc common/gguf/*.cc common/digest.cc common/status.cc
//     $(pkg-config --libs libxxhash fmt absl_status absl_statusor absl_strings absl_flat_hash_map absl_flat_hash_set)
//     -o gguf_fuzz
//   make_tiny_model seeds/tiny.gguf --layers 1 --embd 32 --ff 32 --vocab 260 && ./gguf_fuzz -max_len=65536 seeds
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/gguf/gguf_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  layover::testing::ReadEverything(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
