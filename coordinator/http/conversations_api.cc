// /v1/kv/conversations: list, show, delete, save, restore, park, fork, rewind, verify. A save or restore with
// ?stream=true is a stream of events: progress at least once, rising; then the result or the error; then [DONE].
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/http/routes.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

// Until then a refusal (unknown, busy, no space) can still be a real HTTP status.
constexpr std::chrono::milliseconds kHeadDelay{1000};

HttpReply JsonReply(const ordered_json& value) {
  return {200, {{"Content-Type", "application/json"}}, ToText(value)};
}

// The id in the path; a bad one is answered here.
bool IdIsGood(const HttpCall& call) {
  const absl::Status status = CheckConversationId(call.params[0], "id");
  if (!status.ok()) call.reply->Respond(ErrorReply(status));
  return status.ok();
}

bool WantsStream(const HttpCall& call) {
  const auto found = call.request->query.find("stream");
  return found != call.request->query.end() && (found->second == "true" || found->second == "1");
}

template <typename T>
Callback<T> RespondWith(std::shared_ptr<Responder> reply, ordered_json (*to_json)(const T&)) {
  return [reply = std::move(reply), to_json](absl::StatusOr<T> result) {
    reply->Respond(result.ok() ? JsonReply(to_json(*result)) : ErrorReply(result.status()));
  };
}

// ------------------------------------------------------------------------------------------------------ save, restore

class TransferStream : public std::enable_shared_from_this<TransferStream> {
 public:
  explicit TransferStream(std::shared_ptr<Responder> reply) : reply_(std::move(reply)) {}

  void ArmHead() {
    reply_->After(kHeadDelay, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        std::lock_guard lock(self->mutex_);
        self->Begin();
      }
    });
  }

  void OnProgress(const TransferProgress& progress) {
    std::lock_guard lock(mutex_);
    if (progress.bytes_done <= shown_bytes_) return;  // stages report each at its own pace
    ShowProgress(progress);
  }

  // `whole`: how far it went; the last report may not have told, or there was none.
  void OnResult(const ordered_json& result, const TransferProgress& whole) {
    std::lock_guard lock(mutex_);
    if (shown_bytes_ < whole.bytes_done) ShowProgress(whole);
    Send({{"result", result}});
    Finish();
  }

  void OnError(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (!begun_) {
      begun_ = true;
      reply_->Respond(ErrorReply(status));
      return;
    }
    Send({{"error", ErrorObject(status)}});
    Finish();
  }

 private:
  void Begin() {
    if (std::exchange(begun_, true)) return;
    reply_->SetPing(std::chrono::milliseconds(limits::kPingIntervalMs), ": ping\n\n");
    reply_->BeginStream(
        200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  }
  void ShowProgress(const TransferProgress& progress) {
    Begin();
    shown_bytes_ = progress.bytes_done;
    Send({{"progress", ProgressJson(progress)}});
  }
  void Send(const ordered_json& value) { reply_->Write(fmt::format("data: {}\n\n", ToText(value))); }
  void Finish() {
    reply_->Write("data: [DONE]\n\n");
    reply_->End(false);
  }

  const std::shared_ptr<Responder> reply_;
  std::mutex mutex_;  // the engine's thread and the head's timer
  bool begun_ = false;
  int64_t shown_bytes_ = -1;
};

TransferProgress WholeTransfer(const char* verb, const std::vector<StageBytes>& stages, int64_t StageBytes::*bytes) {
  TransferProgress progress;
  progress.verb = verb;
  for (const StageBytes& stage : stages) {
    progress.bytes_done += stage.*bytes;
    progress.stages.push_back({stage.stage, stage.*bytes, stage.*bytes});
  }
  progress.bytes_total = progress.bytes_done;
  return progress;
}

struct TransferHooks {
  ProgressCallback progress;
  std::shared_ptr<TransferStream> stream;  // null: the reply is one object
};

TransferHooks HooksFor(const HttpCall& call) {
  TransferHooks hooks;
  if (!WantsStream(call)) return hooks;
  hooks.stream = std::make_shared<TransferStream>(call.reply);
  hooks.stream->ArmHead();
  hooks.progress = [stream = hooks.stream](const TransferProgress& progress) { stream->OnProgress(progress); };
  return hooks;
}

void Save(const HttpParts& parts, const HttpCall& call) {
  TransferHooks hooks = HooksFor(call);
  if (hooks.stream == nullptr) {
    return parts.service->Save(call.owner, call.params[0], {}, RespondWith<SaveResult>(call.reply, SaveJson));
  }
  parts.service->Save(call.owner, call.params[0], std::move(hooks.progress),
                      [stream = hooks.stream](const absl::StatusOr<SaveResult>& result) {
                        if (!result.ok()) return stream->OnError(result.status());
                        stream->OnResult(SaveJson(*result),
                                         WholeTransfer("save", result->stages, &StageBytes::bytes_written));
                      });
}

absl::StatusOr<bool> ReadProve(const HttpRequest& request) {
  bool prove = false;
  if (request.body.empty()) return prove;
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(request.body));
  RETURN_IF_ERROR(ReadBool(body, "prove", &prove));
  return prove;
}

void Restore(const HttpParts& parts, const HttpCall& call) {
  const absl::StatusOr<bool> prove = ReadProve(*call.request);
  if (!prove.ok()) return call.reply->Respond(ErrorReply(prove.status()));
  TransferHooks hooks = HooksFor(call);
  if (hooks.stream == nullptr) {
    return parts.service->Restore(call.owner, call.params[0], *prove, {},
                                  RespondWith<RestoreResult>(call.reply, RestoreJson));
  }
  parts.service->Restore(call.owner, call.params[0], *prove, std::move(hooks.progress),
                         [stream = hooks.stream](const absl::StatusOr<RestoreResult>& result) {
                           if (!result.ok()) return stream->OnError(result.status());
                           stream->OnResult(RestoreJson(*result),
                                            WholeTransfer("restore", result->stages, &StageBytes::bytes_read));
                         });
}

// ------------------------------------------------------------------------------------------------------- the other
// verbs

void List(const HttpParts& parts, const HttpCall& call) {
  const auto& query = call.request->query;
  int limit = limits::kMaxListedConversations;
  if (const auto found = query.find("limit"); found != query.end()) {
    if (!absl::SimpleAtoi(found->second, &limit) || limit < 1 || limit > limits::kMaxListedConversations) {
      return call.reply->Respond(ErrorReply(
          BadField("limit", fmt::format("expected an integer from 1 to {}", limits::kMaxListedConversations))));
    }
  }
  const auto after = query.find("after");
  parts.service->List(call.owner, after == query.end() ? "" : after->second, limit,
                      RespondWith<ConversationPage>(call.reply, ConversationListJson));
}

void Show(const HttpParts& parts, const HttpCall& call) {
  parts.service->Show(call.owner, call.params[0],
                      RespondWith<ConversationInfo>(call.reply, [](const ConversationInfo& info) {
                        return ConversationJson(info, /*detail=*/true);
                      }));
}

void Delete(const HttpParts& parts, const HttpCall& call) {
  parts.service->Delete(call.owner, call.params[0],
                        [reply = call.reply, id = call.params[0]](const absl::Status& status) {
                          reply->Respond(status.ok() ? JsonReply(DeletedJson(id)) : ErrorReply(status));
                        });
}

void Park(const HttpParts& parts, const HttpCall& call) {
  parts.service->Park(call.owner, call.params[0], RespondWith<ParkResult>(call.reply, ParkJson));
}

absl::StatusOr<std::string> ReadNewId(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(request.body));
  RETURN_IF_ERROR(RequireField(body, "new_id"));
  std::string new_id;
  RETURN_IF_ERROR(ReadString(body, "new_id", &new_id));
  RETURN_IF_ERROR(CheckConversationId(new_id, "new_id"));
  return new_id;
}

void Fork(const HttpParts& parts, const HttpCall& call) {
  const absl::StatusOr<std::string> new_id = ReadNewId(*call.request);
  if (!new_id.ok()) return call.reply->Respond(ErrorReply(new_id.status()));
  parts.service->Fork(call.owner, call.params[0], *new_id,
                      RespondWith<ConversationInfo>(call.reply, [](const ConversationInfo& info) {
                        return ConversationJson(info, /*detail=*/false);
                      }));
}

absl::StatusOr<int64_t> ReadPosition(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const ordered_json body, ParseBody(request.body));
  RETURN_IF_ERROR(RequireField(body, "to"));
  int64_t to = 0;
  RETURN_IF_ERROR(ReadInteger(body, "to", 0, limits::kMaxContextTokens, &to));
  return to;
}

void Rewind(const HttpParts& parts, const HttpCall& call) {
  const absl::StatusOr<int64_t> to = ReadPosition(*call.request);
  if (!to.ok()) return call.reply->Respond(ErrorReply(to.status()));
  parts.service->Rewind(call.owner, call.params[0], *to, RespondWith<RewindResult>(call.reply, RewindJson));
}

void Verify(const HttpParts& parts, const HttpCall& call) {
  parts.service->Verify(call.owner, call.params[0], RespondWith<VerifyResult>(call.reply, VerifyJson));
}

}  // namespace

void AddConversationRoutes(const HttpParts& parts, Router& router) {
  static constexpr char kOne[] = "/v1/kv/conversations/{id}";
  router.Add({"GET", "/v1/kv/conversations", Access::kKey, Urgency::kNormal,
              [&parts](const HttpCall& call) { List(parts, call); }});
  const auto add = [&](const char* method, const std::string& pattern,
                       void (*handler)(const HttpParts&, const HttpCall&)) {
    router.Add({method, pattern, Access::kKey, Urgency::kNormal, [&parts, handler](const HttpCall& call) {
                  if (IdIsGood(call)) handler(parts, call);
                }});
  };
  add("GET", kOne, Show);
  add("DELETE", kOne, Delete);
  add("POST", std::string(kOne) + "/save", Save);
  add("POST", std::string(kOne) + "/restore", Restore);
  add("POST", std::string(kOne) + "/verify", Verify);
  add("POST", std::string(kOne) + "/park", Park);
  add("POST", std::string(kOne) + "/fork", Fork);
  add("POST", std::string(kOne) + "/rewind", Rewind);
}

}  // namespace layover
