// Text from users never becomes a control token.
//
// A template sees one string, so what a user wrote and what the template wrote can no longer be told apart in its
// output. So every string of a request is guarded before: one marker character, which neither the request nor the
// template contains, is put
//   - into each spelling of a control token, in any letter case (a template may change the case),
//   - into each tail that begins one (what the template or the next string adds could complete it), white space at the
//     end not counted (a template may trim),
//   - before each head that completes a beginning which the template itself writes right before an expression, as in
//     `'<' ~ name ~ '>'`.
// In the rendered text control tokens are then the template's own; afterwards the markers are taken out.
#ifndef LAYOVER_COORDINATOR_TEXT_CONTROL_GUARD_H_
#define LAYOVER_COORDINATOR_TEXT_CONTROL_GUARD_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// Spellings, letter case of ASCII ignored. Immutable.
class SpellingTrie {
 public:
  explicit SpellingTrie(std::span<const std::string> spellings);

  struct Walk {
    size_t longest = 0;        // bytes of the longest spelling that text begins with; 0: none
    bool is_inside = false;    // all of text is the beginning of a longer spelling
    size_t reached_bytes = 0;  // bytes of text that begin some spelling
  };
  Walk WalkFrom(std::string_view text) const;

 private:
  static constexpr int32_t kNone = -1;
  int32_t Child(int32_t node, char c) const;

  absl::flat_hash_map<uint64_t, int32_t> children_;  // (node, byte) to node; node 0 is the root
  std::vector<bool> is_end_;
  std::vector<bool> has_children_;
};

// What depends on the model alone.
class ControlGuard {
 public:
  ControlGuard(std::span<const std::string> control_texts, const std::string& template_source);

  // A spelling of one character cannot be broken; such a token must not be parsed from rendered text.
  static bool CanGuard(std::string_view control_text);

  // One request's marker and what is done with it. The guard outlives it.
  class Marker {
   public:
    // A copy with every string and key guarded, but for what stands under "role" in the elements of an array
    // (the caller has checked roles against a list). InvalidArgument: nested deeper than limits::kMaxJsonDepth.
    absl::StatusOr<nlohmann::ordered_json> GuardMessages(const nlohmann::ordered_json& messages) const;
    // The same without the exception.
    absl::StatusOr<nlohmann::ordered_json> Guard(const nlohmann::ordered_json& value) const;
    std::string GuardString(std::string_view text) const;
    // Takes the markers out, also where a filter has spelled one as \uXXXX.
    std::string Remove(std::string_view rendered) const;

   private:
    friend class ControlGuard;
    Marker(const ControlGuard* guard, uint32_t code_point);
    bool CompletesBeginning(std::string_view text) const;
    absl::StatusOr<nlohmann::ordered_json> GuardAt(const nlohmann::ordered_json& value, int depth) const;

    const ControlGuard* guard_;
    std::string marker_;   // one private-use character
    std::string escaped_;  // "\ue000"
  };

  // InvalidArgument: the request uses every private-use character.
  absl::StatusOr<Marker> MarkerFor(std::span<const nlohmann::ordered_json* const> values) const;

 private:
  friend class Marker;
  std::string template_source_;
  std::vector<std::string> control_texts_;
  SpellingTrie spellings_;
  SpellingTrie completions_;  // what would complete a beginning that the template writes
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_CONTROL_GUARD_H_
