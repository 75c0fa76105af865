// The JSON of completions, written as text: order of keys fixed, floats in the shortest digits that give the same float
// again, every string valid UTF-8.
#ifndef LAYOVER_COORDINATOR_HTTP_COMPLETION_JSON_H_
#define LAYOVER_COORDINATOR_HTTP_COMPLETION_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/service.h"
#include "coordinator/text/tokenizer.h"

namespace layover {

// What stays the same in every chunk of one reply.
struct ReplyHead {
  std::string id;      // "chatcmpl-..." | "cmpl-..."
  std::string object;  // "chat.completion", "chat.completion.chunk", "text_completion"
  std::string model;
  int64_t created = 0;  // Unix seconds

  // {"id":...,"object":...,"created":...,"model":...  with the brace left open.
  std::string Open() const;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

std::string JsonString(std::string_view text);  // quoted; broken UTF-8 becomes U+FFFD
std::string JsonFloat(float value);             // shortest round trip; what JSON cannot say becomes -9999
std::string UsageText(const Usage& usage);
std::string TimingsText(const Timings& timings);
// {"id", "token", "bytes", "logprob", "top_logprobs": [...]}
std::string LogprobText(const GeneratedToken& token, const Tokenizer& tokenizer);

// What the tokens of one chunk, or of a whole reply, add to its choice besides the text.
class TokenExtras {
 public:
  TokenExtras(bool ids, bool logprobs, bool digests)
      : with_ids_(ids), with_logprobs_(logprobs), with_digests_(digests) {}

  void Add(const GeneratedToken& token, const Tokenizer& tokenizer);
  bool empty() const { return count_ == 0; }
  // ,"token_ids":[...],"logprobs":{"content":[...]},"row_xxh3":[...] with those that were asked for; then starts anew.
  std::string Take();

 private:
  bool with_ids_;
  bool with_logprobs_;
  bool with_digests_;
  int64_t count_ = 0;  // of tokens that have something to show
  std::string ids_;
  std::string logprobs_;
  std::string digests_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_COMPLETION_JSON_H_
