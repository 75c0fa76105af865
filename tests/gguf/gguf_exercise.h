// Everything that the product does with a GGUF file's bytes, for hostile files: shared by the mutation test and the
// libFuzzer target.
#ifndef LAYOVER_TESTS_GGUF_GGUF_EXERCISE_H_
#define LAYOVER_TESTS_GGUF_GGUF_EXERCISE_H_

#include <functional>
#include <string>
#include <string_view>

namespace layover::testing {

// Opens, reads every key by every getter, shape, frequencies and digests. True if the file was accepted as a model.
bool ReadEverything(std::string_view bytes);

// `good` with one to four seeded damages: flipped bits, overwritten numbers, bytes cut off or repeated.
std::string Mutate(const std::string& good, const std::function<uint64_t()>& next_random);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_GGUF_GGUF_EXERCISE_H_
