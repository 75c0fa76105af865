// Everything that the product does with the bytes of a store's files, for hostile bytes: shared by the mutation tests
// and the libFuzzer target. Digests are made right first, so that what lies behind them is reached.
#ifndef LAYOVER_TESTS_STORAGE_STORAGE_EXERCISE_H_
#define LAYOVER_TESTS_STORAGE_STORAGE_EXERCISE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace layover::testing {

// A segment's bytes with every digest computed anew, as far as they have the shape of a segment.
std::string ResealSegment(std::string bytes);
// A manifest's text with its last line's digest computed anew.
std::string ResealManifest(std::string text);

// Each returns whether the bytes were accepted, and aborts if something accepted breaks a promise of the format page.
bool ExerciseSegment(std::string_view bytes);
bool ExerciseManifest(std::string_view text);
// Bytes are a list of (kind, 16-bit length, payload), applied as frames of one journal.
bool ExerciseFrames(std::string_view bytes);

// `good` with one to four seeded damages: flipped bits, overwritten numbers, bytes cut off or repeated.
std::string MutateBytes(const std::string& good, const std::function<uint64_t()>& next_random);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_STORAGE_STORAGE_EXERCISE_H_
