// Stop strings over streamed text. Linear in the text; nothing is shown that may turn out to belong to a stop string.
#ifndef LAYOVER_COORDINATOR_TEXT_STOP_STRINGS_H_
#define LAYOVER_COORDINATOR_TEXT_STOP_STRINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace layover {

// Feed text with Push, show what it returns. The stop string that is complete first wins; of several complete at the
// same byte, the longest. Results, joined, do not depend on how the text was cut. Empty stop strings are ignored.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that may be shown now. All but the longest suffix that is a proper prefix of a stop string; after a match,
  // what stands before it, and from then on nothing.
  std::string Push(std::string_view text);
  // At the end of a generation: what was held back.
  std::string Flush();

  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string, once stopped
  int64_t shown_bytes() const { return shown_bytes_; }     // returned so far, over all calls

 private:
  struct Pattern {
    std::string text;
    std::vector<int32_t> failure;  // KMP: longest proper border of text[0, i]
    int32_t state = 0;             // bytes of text that end here
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  std::string matched_;
  int64_t shown_bytes_ = 0;
  bool stopped_ = false;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_STOP_STRINGS_H_
