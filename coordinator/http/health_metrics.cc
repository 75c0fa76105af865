// GET /health, /metrics and /: answered on the I/O thread, so never behind work.
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/routes.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

void GetHealth(const HttpParts& parts, const HttpCall& call) {
  const HealthReport report = parts.service->Health();
  HttpReply reply{200, {{"Content-Type", "application/json"}}, ToText(HealthJson(report))};
  if (report.status != "ok") {
    reply.status = 503;
    reply.headers.emplace_back("Retry-After", "2");
  }
  call.reply->Respond(std::move(reply));
}

}  // namespace

void AddHealthRoutes(const HttpParts& parts, Router& router) {
  for (const char* pattern : {"/health", "/v1/health"}) {
    router.Add(
        {"GET", pattern, Access::kOpen, Urgency::kUrgent, [&parts](const HttpCall& call) { GetHealth(parts, call); }});
  }
  router.Add({"GET", "/metrics", Access::kKey, Urgency::kUrgent, [&parts](const HttpCall& call) {
                call.reply->Respond({200, {{"Content-Type", "text/plain; version=0.0.4"}}, parts.metrics->Serialize()});
              }});
  router.Add({"GET", "/", Access::kOpen, Urgency::kUrgent, [](const HttpCall& call) {
                call.reply->Respond({200, {{"Content-Type", "application/json"}}, R"({"name":"layover"})"});
              }});
}

}  // namespace layover
