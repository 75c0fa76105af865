// llama-server's slots: GET /slots, and POST /slots/{i}?action=save|restore|erase. A slot is a place for a live
// conversation; a saved slot file is the conversation of that name (docs/http_api.md).
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/slot_filename.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

HttpReply JsonReply(const ordered_json& value) {
  return {200, {{"Content-Type", "application/json"}}, ToText(value)};
}

ordered_json SlotJson(const SlotInfo& slot, int64_t context) {
  ordered_json out = {{"id", slot.id},
                      {"id_task", slot.task},
                      {"n_ctx", context},
                      {"speculative", false},
                      {"is_processing", slot.is_processing},
                      {"n_tokens", slot.n_tokens}};
  if (slot.task >= 0) {
    out["next_token"] = {
        {"has_next_token", slot.is_processing}, {"n_remain", slot.n_remain}, {"n_decoded", slot.n_decoded}};
  }
  return out;
}

void GetSlots(const HttpParts& parts, const HttpCall& call) {
  const std::vector<SlotInfo> slots = parts.service->Slots();
  const auto fail = call.request->query.find("fail_on_no_slot");
  const bool any_free =
      std::any_of(slots.begin(), slots.end(), [](const SlotInfo& slot) { return !slot.is_processing; });
  if (fail != call.request->query.end() && fail->second == "1" && !any_free) {
    return call.reply->Respond(ErrorReply(503, "no slot is free"));
  }
  ordered_json out = ordered_json::array();
  for (const SlotInfo& slot : slots) out.push_back(SlotJson(slot, parts.service->model().context));
  call.reply->Respond(JsonReply(out));
}

// What an action on a slot file needs, and what its reply repeats.
struct SlotCall {
  std::shared_ptr<Responder> reply;
  int slot = 0;
  std::string filename;
  Clock::time_point begin = Clock::now();

  // The time as llama-server gives it: fractions of a millisecond, as the client's own clock would see it.
  double Ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }
};

void Save(const HttpParts& parts, const HttpCall& call, SlotCall slot_call, std::string id) {
  const int slot = slot_call.slot;
  parts.service->SaveSlot(call.owner, slot, std::move(id),
                          [slot_call = std::move(slot_call)](const absl::StatusOr<SaveResult>& result) {
                            if (!result.ok()) return slot_call.reply->Respond(ErrorReply(result.status()));
                            slot_call.reply->Respond(JsonReply({{"id_slot", slot_call.slot},
                                                                {"filename", slot_call.filename},
                                                                {"n_saved", result->n_tokens},
                                                                {"n_written", result->bytes_written},
                                                                {"n_kept", result->bytes_kept},
                                                                {"timings", {{"save_ms", slot_call.Ms()}}}}));
                          });
}

// A file that is not there is a 400 in llama-server.
absl::Status AsSlotStatus(const absl::Status& status, const std::string& filename) {
  if (!absl::IsNotFound(status)) return status;
  return WithPart(InvalidArgument("Unable to restore slot: nothing is saved as {}", filename), {.param = "filename"});
}

void Restore(const HttpParts& parts, const HttpCall& call, SlotCall slot_call, std::string id) {
  const int slot = slot_call.slot;
  parts.service->RestoreSlot(
      call.owner, slot, std::move(id), [slot_call = std::move(slot_call)](const absl::StatusOr<RestoreResult>& result) {
        if (!result.ok()) {
          return slot_call.reply->Respond(ErrorReply(AsSlotStatus(result.status(), slot_call.filename)));
        }
        ordered_json out = {{"id_slot", slot_call.slot},
                            {"filename", slot_call.filename},
                            {"n_restored", result->n_tokens},
                            {"n_read", result->bytes_read},
                            {"timings", {{"restore_ms", slot_call.Ms()}}}};
        if (!result->warnings.empty()) out["warnings"] = result->warnings;
        slot_call.reply->Respond(JsonReply(out));
      });
}

void Erase(const HttpParts& parts, const HttpCall& call, int slot) {
  parts.service->EraseSlot(call.owner, slot, [reply = call.reply, slot](const absl::StatusOr<int64_t>& n_erased) {
    if (!n_erased.ok()) return reply->Respond(ErrorReply(n_erased.status()));
    reply->Respond(JsonReply({{"id_slot", slot}, {"n_erased", *n_erased}}));
  });
}

absl::StatusOr<std::string> ReadFilename(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(request.body));
  RETURN_IF_ERROR(RequireField(body, "filename"));
  std::string filename;
  RETURN_IF_ERROR(ReadString(body, "filename", &filename));
  return filename;
}

absl::Status ActOnSlot(const HttpParts& parts, const HttpCall& call) {
  SlotCall slot_call;
  const int sessions = parts.service->model().sessions;
  if (!absl::SimpleAtoi(call.params[0], &slot_call.slot) || slot_call.slot < 0 || slot_call.slot >= sessions) {
    return WithPart(InvalidArgument("Invalid slot ID: expected 0 to {}", sessions - 1), {.param = "id_slot"});
  }
  const auto found = call.request->query.find("action");
  const std::string action = found == call.request->query.end() ? "" : found->second;
  if (action == "erase") {
    Erase(parts, call, slot_call.slot);
    return absl::OkStatus();
  }
  if (action != "save" && action != "restore") {
    return WithPart(InvalidArgument("Invalid action: expected save, restore or erase"), {.param = "action"});
  }
  ASSIGN_OR_RETURN(slot_call.filename, ReadFilename(*call.request));
  ASSIGN_OR_RETURN(std::string id, ConversationIdOfSlotFile(slot_call.filename));
  slot_call.reply = call.reply;
  (action == "save" ? Save : Restore)(parts, call, std::move(slot_call), std::move(id));
  return absl::OkStatus();
}

}  // namespace

void AddSlotRoutes(const HttpParts& parts, Router& router) {
  router.Add(
      {"GET", "/slots", Access::kKey, Urgency::kNormal, [&parts](const HttpCall& call) { GetSlots(parts, call); }});
  router.Add({"POST", "/slots/{id}", Access::kKey, Urgency::kNormal, [&parts](const HttpCall& call) {
                const absl::Status status = ActOnSlot(parts, call);
                if (!status.ok()) call.reply->Respond(ErrorReply(status));
              }});
}

}  // namespace layover
