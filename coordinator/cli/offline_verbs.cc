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

absl::StatusOr<PortableSecret> SecretOf(const FileOptions& file) {
  if (!file.key_file.empty()) return PortableSecret::FromKeyFile(file.key_file);
  if (!file.passphrase_file.empty()) return PortableSecret::FromPassphraseFile(file.passphrase_file);
  return PortableSecret();
}

ordered_json PortableJson(const PortableSummary& summary, const FileOptions& file) {
  return {{"id", summary.id},
          {"owner", summary.owner},
          {"file", file.path},
          {"encrypted", !file.key_file.empty() || !file.passphrase_file.empty()},
          {"generation", summary.generation},
          {"n_tokens", summary.n_tokens},
          {"segments", summary.n_segments},
          {"bytes", summary.bytes}};
}

void ShowExported(const ordered_json& one) {
  fmt::print("exported {}: {} tokens of state, {}{}, to {}\n", one.at("id").get<std::string>(),
             one.at("n_tokens").get<int64_t>(), BytesText(one.at("bytes").get<int64_t>()),
             one.at("encrypted") == true ? ", encrypted" : "", one.at("file").get<std::string>());
}

void ShowImported(const ordered_json& one) {
  fmt::print("imported {}: {} tokens of state, {}, from {}\n", one.at("id").get<std::string>(),
             one.at("n_tokens").get<int64_t>(), BytesText(one.at("bytes").get<int64_t>()),
             one.at("file").get<std::string>());
}

void ShowGarbage(const ordered_json& garbage) {
  for (const ordered_json& file : garbage.at("files")) {
    fmt::print("{}  {}\n", file.at("file").get<std::string>(), BytesText(file.at("bytes").get<int64_t>()));
  }
  fmt::print("{} {}\n", BytesText(garbage.at("bytes").get<int64_t>()),
             garbage.at("removed") == true ? "removed" : "could be removed");
}

}  // namespace

int ListOffline(const ClientOptions& options) {
  absl::StatusOr<std::vector<ConversationInfo>> found = ListStore(options.store);
  if (!found.ok()) return ReportError(found.status(), options.json);
  return Print(options, ConversationListJson({*std::move(found), ""}), ShowConversationList);
}

int ShowOffline(const ClientOptions& options, const std::string& id) {
  const absl::StatusOr<ConversationInfo> found = ShowStored(options.store, {id, options.owner});
  if (!found.ok()) return ReportError(found.status(), options.json);
  return Print(options, ConversationJson(*found, /*detail=*/true), ShowConversation);
}

int RemoveOffline(const ClientOptions& options, const std::string& id) {
  const absl::Status removed = RemoveStored(options.store, {id, options.owner});
  if (!removed.ok()) return ReportError(removed, options.json);
  return Print(options, DeletedJson(id), [](const ordered_json&) {});
}

int VerifyOffline(const ClientOptions& options, const std::string& id) {
  const absl::StatusOr<std::vector<VerifyResult>> results = VerifyStore(options.store, {id, options.owner});
  if (!results.ok()) return ReportError(results.status(), options.json);
  ordered_json report = {{"ok", true}, {"conversations", ordered_json::array()}};
  for (const VerifyResult& result : *results) {
    if (!result.ok) report["ok"] = false;
    report["conversations"].push_back(VerifyJson(result));
  }
  return PrintVerification(options, report);
}

int ExportOffline(const ClientOptions& options, const std::string& id, const FileOptions& file) {
  const absl::StatusOr<PortableSecret> secret = SecretOf(file);
  if (!secret.ok()) return ReportError(secret.status(), options.json);
  const absl::StatusOr<PortableSummary> done = ExportStored(options.store, {id, options.owner}, file.path, *secret);
  if (!done.ok()) return ReportError(done.status(), options.json);
  return Print(options, PortableJson(*done, file), ShowExported);
}

int ImportOffline(const ClientOptions& options, const ImportOptions& import) {
  const absl::StatusOr<PortableSecret> secret = SecretOf(import.file);
  if (!secret.ok()) return ReportError(secret.status(), options.json);
  const ImportTarget target{options.owner, import.as_id};
  const absl::StatusOr<PortableSummary> done = ImportStored(options.store, import.file.path, *secret, target);
  if (!done.ok()) return ReportError(done.status(), options.json);
  return Print(options, PortableJson(*done, import.file), ShowImported);
}

int CollectOffline(const ClientOptions& options, bool dry_run) {
  const absl::StatusOr<std::vector<GarbageFile>> garbage = CollectStored(options.store, dry_run);
  if (!garbage.ok()) return ReportError(garbage.status(), options.json);
  ordered_json files = ordered_json::array();
  uint64_t bytes = 0;
  for (const GarbageFile& file : *garbage) {
    files.push_back({{"file", file.file}, {"bytes", file.bytes}});
    bytes += file.bytes;
  }
  return Print(options, {{"files", std::move(files)}, {"bytes", bytes}, {"removed", !dry_run}}, ShowGarbage);
}

}  // namespace layover
