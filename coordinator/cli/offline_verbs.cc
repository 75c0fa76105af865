#include "coordinator/cli/offline_verbs.h"

#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/server_call.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/store/offline.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

int Print(const ClientOptions& options, const ordered_json& value, ShowJson show) {
  if (options.json) {
    fmt::print("{}\n", ToText(value));
  } else {
    show(value);
  }
  return kDone;
}

}  // namespace

int ListOffline(const ClientOptions& options) {
  absl::StatusOr<std::vector<ConversationInfo>> found = ListStore(options.store);
  if (!found.ok()) return ReportError(found.status(), options.json);
  return Print(options, ConversationListJson({*std::move(found), ""}), ShowConversationList);
}

int ShowOffline(const ClientOptions& options, const std::string& id) {
  const absl::StatusOr<ConversationInfo> found = ShowStored(options.store, id);
  if (!found.ok()) return ReportError(found.status(), options.json);
  return Print(options, ConversationJson(*found, /*detail=*/true), ShowConversation);
}

int RemoveOffline(const ClientOptions& options, const std::string& id) {
  const absl::Status removed = RemoveStored(options.store, id);
  if (!removed.ok()) return ReportError(removed, options.json);
  return Print(options, DeletedJson(id), [](const ordered_json&) {});
}

int VerifyOffline(const ClientOptions& options, const std::string& id) {
  const absl::StatusOr<std::vector<VerifyResult>> results = VerifyStore(options.store, id);
  if (!results.ok()) return ReportError(results.status(), options.json);
  ordered_json report = {{"ok", true}, {"conversations", ordered_json::array()}};
  for (const VerifyResult& result : *results) {
    if (!result.ok) report["ok"] = false;
    report["conversations"].push_back(VerifyJson(result));
  }
  return PrintVerification(options, report);
}

}  // namespace layover
