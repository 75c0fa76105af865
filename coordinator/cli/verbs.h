// What each verb does, one function a verb; cli.cc parses the arguments. Each returns a process exit code and prints
// its own errors.
#ifndef LAYOVER_COORDINATOR_CLI_VERBS_H_
#define LAYOVER_COORDINATOR_CLI_VERBS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace layover {

// Where conversations are asked for, and how the answer is printed.
struct ClientOptions {
  std::string server = "http://127.0.0.1:8080";
  std::string api_key;
  std::string store;  // not empty: this store itself, without a server
  bool json = false;
  std::optional<std::string> owner;  // with `store`: whose conversation is meant, or whose it becomes
};

// A portable file. At most one of the secrets; none: it is not encrypted.
struct FileOptions {
  std::string path;
  std::string key_file;
  std::string passphrase_file;
};
struct ImportOptions {
  FileOptions file;
  std::optional<std::string> as_id;
};

// server_verbs.cc, and offline_verbs.cc for those that work with --store.
int RunList(const ClientOptions& options);
int RunShow(const ClientOptions& options, const std::string& id);
int RunRemove(const ClientOptions& options, const std::string& id);
int RunVerify(const ClientOptions& options, const std::string& id);  // empty id: every conversation
int RunPark(const ClientOptions& options, const std::string& id);
int RunFork(const ClientOptions& options, const std::string& id, const std::string& new_id);
int RunRewind(const ClientOptions& options, const std::string& id, int64_t to);

// transfer_verbs.cc: with a progress bar on a terminal.
int RunSave(const ClientOptions& options, const std::string& id);
int RunRestore(const ClientOptions& options, const std::string& id, bool prove);

// file_verbs.cc: work on the store's files; without --store, on those of the server, which must run on this machine.
int RunExport(const ClientOptions& options, const std::string& id, const FileOptions& file);
int RunImport(const ClientOptions& options, const ImportOptions& import);
int RunCollect(const ClientOptions& options, bool dry_run);

// chat.cc
struct ChatOptions {
  ClientOptions client;
  std::string conversation;  // empty: a new one, whose id is shown
  std::string history;       // file of the messages so far, kept up to date; empty: none
  std::string system;        // system message of a new chat; empty: none
  double temperature = -1;   // below 0: the server's default
  int64_t max_tokens = -1;
};
int RunChat(const ChatOptions& options);

// model_verbs.cc: need neither server nor store.
int RunPlan(const std::string& topology, bool json);
int RunInspect(const std::string& model, bool json);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLI_VERBS_H_
