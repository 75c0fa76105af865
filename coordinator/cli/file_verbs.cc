// export, import and gc. They work on a store's files, so a server is only asked where its store is, and to save first
// what is exported. While it runs it holds the store's lock, and import and gc say so.
#include <functional>

#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/offline_verbs.h"
#include "coordinator/cli/server_call.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

// The options with the server's store in `store`; kDone, or the exit code of a printed error.
int FindStore(const HttpClient& client, ClientOptions* options) {
  const absl::StatusOr<HttpReply> reply = client.Send({"GET", "/props", {}, ""});
  if (!reply.ok()) return ReportError(reply.status(), options->json);
  if (ExitCodeOf(*reply) != kDone) return ReportError(*reply, options->json);
  const ordered_json props = ordered_json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
  const auto store = props.is_object() ? props.find("store") : props.end();
  if (store == props.end() || !store->is_string()) {
    return ReportError(Aborted("the server at {} has no store", options->server), options->json);
  }
  options->store = store->get<std::string>();
  return kDone;
}

// So that the file holds the state as it is. Being saved already is as good.
int SaveFirst(const HttpClient& client, const ClientOptions& options, const std::string& id) {
  const absl::StatusOr<HttpReply> reply = client.Send({"POST", ConversationTarget(id, "save"), {}, ""});
  if (!reply.ok()) return ReportError(reply.status(), options.json);
  const bool busy = reply->status == 409 && ExitCodeOf(*reply) == kFailed;
  return busy || ExitCodeOf(*reply) == kDone ? kDone : ReportError(*reply, options.json);
}

// Runs `verb` on --store, or on the server's after `first` (which may be empty).
int OnStore(const ClientOptions& options, const std::function<int(const HttpClient&)>& first,
            const std::function<int(const ClientOptions&)>& verb) {
  if (!options.store.empty()) return verb(options);
  const absl::StatusOr<HttpClient> client = ClientOf(options);
  if (!client.ok()) return ReportError(client.status(), options.json);
  ClientOptions there = options;
  if (const int code = FindStore(*client, &there); code != kDone) return code;
  if (const int code = first ? first(*client) : kDone; code != kDone) return code;
  return verb(there);
}

}  // namespace

int RunExport(const ClientOptions& options, const std::string& id, const FileOptions& file) {
  return OnStore(
      options, [&](const HttpClient& client) { return SaveFirst(client, options, id); },
      [&](const ClientOptions& there) { return ExportOffline(there, id, file); });
}

int RunImport(const ClientOptions& options, const ImportOptions& import) {
  return OnStore(options, nullptr, [&](const ClientOptions& there) { return ImportOffline(there, import); });
}

int RunCollect(const ClientOptions& options, bool dry_run) {
  return OnStore(options, nullptr, [&](const ClientOptions& there) { return CollectOffline(there, dry_run); });
}

}  // namespace layover
