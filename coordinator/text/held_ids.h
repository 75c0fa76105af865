// How far two sequences of ids say the same, whatever they say it with.
//
// A client sends a chat back as text, and what the model wrote as " th|e" is encoded as " the". The state that is held
// belongs to the ids that were drawn, so those are kept as far as they spell what the new ids spell.
//
// What must stay true: a control token equals itself alone, never text that is spelled like it, so a prompt that keeps
// held ids has the control tokens that its own encoding has, at the same places, and the same text between them.
#ifndef LAYOVER_COORDINATOR_TEXT_HELD_IDS_H_
#define LAYOVER_COORDINATOR_TEXT_HELD_IDS_H_

#include <cstdint>
#include <span>

#include "coordinator/text/tokenizer.h"

namespace layover {

// The first held_n ids of one sequence say what the first fresh_n of the other do. No more than that is promised: the
// place is the last one at which a token ends in both.
struct CommonText {
  int64_t held_n = 0;
  int64_t fresh_n = 0;
};

// `held`: ids as they were fed or drawn; `fresh`: ids of an encoded text. Both may hold any number of turns; linear in
// their length. The space that an SPM encoder puts before the text after a special token is not part of the text: where
// the held ids do without it, that says the same.
CommonText CommonTextOf(const Tokenizer& tokenizer, std::span<const int32_t> held, std::span<const int32_t> fresh);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_HELD_IDS_H_
