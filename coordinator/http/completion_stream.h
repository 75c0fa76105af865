// From the engine's tokens to the client's reply: text out of ids, stop strings, chunks or one whole answer.
//
// What must stay true: one role chunk first (chat), one finish chunk, usage when asked for, [DONE] last; no empty data
// event and no id: line. Text that may still become a stop string, or is half a character, is held back. A failure
// before the first byte is a real HTTP status; after it, one error event and the end of the connection.
#ifndef LAYOVER_COORDINATOR_HTTP_COMPLETION_STREAM_H_
#define LAYOVER_COORDINATOR_HTTP_COMPLETION_STREAM_H_

#include <chrono>
#include <memory>
#include <string>

#include "coordinator/http/completion_json.h"
#include "coordinator/http/listener.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/metrics.h"
#include "coordinator/service.h"
#include "coordinator/text/tokenizer.h"

namespace layover {

struct CompletionReplyOptions {
  CompletionKind kind = CompletionKind::kChat;
  std::string model;
  CompletionFields fields;
  std::chrono::steady_clock::time_point arrival;
  std::chrono::milliseconds ping_interval{limits::kPingIntervalMs};
  const Tokenizer* tokenizer = nullptr;  // outlives the reply
  Metrics* metrics = nullptr;
};

// The observer that answers through `reply`: as a stream or as one object, as the fields say.
std::shared_ptr<GenerationObserver> MakeCompletionReply(CompletionReplyOptions options,
                                                        std::shared_ptr<Responder> reply);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_COMPLETION_STREAM_H_
