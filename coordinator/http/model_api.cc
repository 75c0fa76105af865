// What is served: /v1/models, /props; and the endpoints of other servers that this one answers with 501.
#include <utility>

#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/routes.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

HttpReply JsonReply(const ordered_json& value) {
  return {200, {{"Content-Type", "application/json"}}, ToText(value)};
}

ordered_json ModelJson(const ServedModel& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created_at},
          {"owned_by", "layover"},
          {"context_length", model.context},
          {"max_model_len", model.context},
          {"architecture", {{"input_modalities", {"text"}}, {"output_modalities", {"text"}}}},
          {"meta",
           {{"n_ctx", model.context},
            {"n_ctx_train", model.context_train},
            {"n_params", model.n_params},
            {"size", model.bytes},
            {"n_vocab", model.n_vocab}}}};
}

void ListModels(const HttpParts& parts, const HttpCall& call) {
  ordered_json data = ordered_json::array();
  data.push_back(ModelJson(parts.service->model()));
  call.reply->Respond(JsonReply({{"object", "list"}, {"data", std::move(data)}}));
}

void GetModel(const HttpParts& parts, const HttpCall& call) {
  const ServedModel& model = parts.service->model();
  if (call.params[0] == model.id) return call.reply->Respond(JsonReply(ModelJson(model)));
  call.reply->Respond(ErrorReply(404, "no such model here; GET /v1/models lists what is served", "model_not_found"));
}

void GetProps(const HttpParts& parts, const HttpCall& call) {
  const ServedModel& model = parts.service->model();
  call.reply->Respond(
      JsonReply({{"default_generation_settings", {{"n_ctx", model.context}, {"params", ordered_json::object()}}},
                 {"total_slots", model.sessions},
                 {"model_path", model.path_leaf},
                 {"role", "model"},
                 {"chat_template", parts.chat_template},
                 {"store", parts.store_dir.empty() ? ordered_json() : ordered_json(parts.store_dir)},
                 {"chat_template_caps", ordered_json::object()},
                 {"modalities", {{"vision", false}, {"audio", false}}},
                 {"stages", model.stages},
                 {"kv_type", model.kv_type},
                 {"build_info", "layover"},
                 {"is_sleeping", false}}));
}

}  // namespace

RouteHandler NotSupported(std::string what) {
  return [what = std::move(what)](const HttpCall& call) {
    call.reply->Respond(ErrorReply(Unimplemented("{} is not supported by this version", what)));
  };
}

void AddModelRoutes(const HttpParts& parts, Router& router) {
  const auto get = [&](const char* pattern, void (*handler)(const HttpParts&, const HttpCall&)) {
    router.Add({"GET", pattern, Access::kKey, Urgency::kNormal,
                [&parts, handler](const HttpCall& call) { handler(parts, call); }});
  };
  get("/v1/models", ListModels);
  get("/models", ListModels);
  get("/v1/models/{id}", GetModel);
  get("/props", GetProps);
  const auto absent = [&](const char* pattern, const char* what) {
    router.Add({"POST", pattern, Access::kKey, Urgency::kNormal, NotSupported(what)});
  };
  absent("/v1/embeddings", "embedding");
  absent("/v1/rerank", "reranking");
  absent("/infill", "infilling");
  absent("/v1/infill", "infilling");
}

}  // namespace layover
