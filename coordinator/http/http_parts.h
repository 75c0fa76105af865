// What the HTTP side is built on.
#ifndef LAYOVER_COORDINATOR_HTTP_HTTP_PARTS_H_
#define LAYOVER_COORDINATOR_HTTP_HTTP_PARTS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/metrics.h"
#include "coordinator/service.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"

namespace layover {

// All of it outlives the server and may be used from several threads at once.
struct HttpParts {
  Service* service = nullptr;
  Metrics* metrics = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::function<absl::StatusOr<RenderedChat>(const ChatRequest&)> render_chat;
  std::function<absl::StatusOr<std::string>(const ChatRequest&)> render_text;
  std::string chat_template;  // shown by /props
  std::string store_dir;      // the same; absolute; empty: no store
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_HTTP_PARTS_H_
