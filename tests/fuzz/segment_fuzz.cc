// libFuzzer target of the store's files: the first byte chooses segment, manifest or journal frames. Build with clang
// from the project's root:
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/segment_fuzz.cc
//     tests/storage/storage_exercise.cc common/storage/*.cc common/digest.cc common/status.cc common/log.cc
//     $(pkg-config --libs libxxhash fmt spdlog liburing libcrypto absl_status absl_statusor absl_strings)
//     -o segment_fuzz && ./segment_fuzz -max_len=65536
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/storage/storage_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace layover::testing;  // NOLINT: three names of one header
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      ExerciseSegment(bytes);
      break;
    case 1:
      ExerciseSegment(ResealSegment(std::string(bytes)));
      break;
    case 2:
      ExerciseManifest(ResealManifest(std::string(bytes)));
      break;
    default:
      ExerciseFrames(bytes);
  }
  return 0;
}
