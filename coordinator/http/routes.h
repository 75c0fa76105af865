// The routes of the public interface, one function a family. `parts` outlives the router.
#ifndef LAYOVER_COORDINATOR_HTTP_ROUTES_H_
#define LAYOVER_COORDINATOR_HTTP_ROUTES_H_

#include "coordinator/http/http_parts.h"
#include "coordinator/http/router.h"

namespace layover {

void AddCompletionRoutes(const HttpParts& parts, Router& router);  // completions_api.cc
void AddTextRoutes(const HttpParts& parts, Router& router);        // text_api.cc: tokenize, detokenize, apply-template
void AddModelRoutes(const HttpParts& parts, Router& router);       // model_api.cc: models, props
void AddSlotRoutes(const HttpParts& parts, Router& router);        // slots_api.cc: llama-server's slots
void AddConversationRoutes(const HttpParts& parts, Router& router);  // conversations_api.cc
void AddHealthRoutes(const HttpParts& parts, Router& router);        // health_metrics.cc: open and urgent ones

// A handler that says 501: `what` is not there in this version.
RouteHandler NotSupported(std::string what);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_ROUTES_H_
