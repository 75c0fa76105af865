// The only file that knows CLI11: arguments to options, options to verbs.
#include "coordinator/cli/cli.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

#include "CLI/CLI.hpp"
#include "common/limits.h"
#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/verbs.h"
#include "coordinator/serve.h"
#include "fmt/core.h"

namespace layover {
namespace {

// Everything that arguments may set; a verb takes what is its own.
struct Arguments {
  ClientOptions client;
  ServeOptions serve;
  LogitsOptions logits;
  BenchOptions bench;
  ChatOptions chat;
  std::string path;  // TOPOLOGY or MODEL
  std::string id;
  std::string new_id;
  ImportOptions import;  // its file is export's too
  int64_t to = 0;
  bool prove = false;
  bool dry_run = false;
};

using Verb = std::function<int(const Arguments&)>;

class CommandLine {
 public:
  CommandLine() {
    app_.fallthrough();  // before any subcommand: `save X --json` and `--json save X` are the same
    app_.require_subcommand(1);
    app_.add_option("--server", arguments_.client.server, "URL of the server")->envname("LAYOVER_SERVER");
    app_.add_option("--store", arguments_.client.store,
                    "a store's folder, without a server (ls show verify rm export import gc)");
    app_.add_option("--owner", arguments_.client.owner, "with --store: name of the key whose conversation is meant");
    app_.add_flag("--json", arguments_.client.json, "one JSON value on stdout");
    if (const char* key = std::getenv("LAYOVER_API_KEY"); key != nullptr) arguments_.client.api_key = key;
    AddModelVerbs();
    AddConversationVerbs();
    AddChat();
  }

  int Run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? kDone : kUsage;  // 0: help was asked for
    }
    if (!arguments_.client.store.empty() && !takes_store_) {
      fmt::print(stderr, "layover: --store works with ls, show, verify, rm, export, import and gc\n");
      return kUsage;
    }
    arguments_.chat.client = arguments_.client;
    arguments_.bench.json = arguments_.client.json;
    return verb_(arguments_);
  }

 private:
  CLI::App* Add(const char* name, const char* help, Verb verb, bool takes_store = false) {
    CLI::App* command = app_.add_subcommand(name, help);
    command->fallthrough();
    command->callback([this, verb = std::move(verb), takes_store] {
      verb_ = verb;
      takes_store_ = takes_store;
    });
    return command;
  }

  void AddModelVerbs() {
    Add("serve", "run the stages and serve HTTP", [](const Arguments& a) { return RunServe(a.serve); })
        ->add_option("TOPOLOGY", arguments_.serve.topology)
        ->required();
    Add("plan", "show layers and memory of each stage",
        [](const Arguments& a) { return RunPlan(a.path, a.client.json); })
        ->add_option("TOPOLOGY", arguments_.path)
        ->required();
    Add("inspect", "show what a model file holds", [](const Arguments& a) { return RunInspect(a.path, a.client.json); })
        ->add_option("MODEL", arguments_.path)
        ->required();
    AddLogits();
    AddBench();
  }

  void AddLogits() {
    CLI::App* logits = Add("logits", "log-probabilities of a text, position by position",
                           [](const Arguments& a) { return RunLogits(a.logits); });
    logits->add_option("TOPOLOGY", arguments_.logits.topology)->required();
    logits->add_option("INPUT", arguments_.logits.input, "a text file, or IDS.json")->required();
    logits->add_option("--top", arguments_.logits.top, "how many of each position")->check(CLI::Range(0, 1'000'000));
    logits->add_option("--raw", arguments_.logits.raw_file, "write the float32 rows to this file");
  }

  void AddBench() {
    CLI::App* bench = Add("bench", "measure speed", [](const Arguments& a) { return RunBench(a.bench); });
    bench->add_option("TOPOLOGY", arguments_.bench.topology)->required();
    bench->add_option("--prompt", arguments_.bench.prompt_tokens, "tokens of the prompt")
        ->check(CLI::Range(1, 1 << 20));
    bench->add_option("--output", arguments_.bench.output_tokens, "tokens generated")->check(CLI::Range(1, 1 << 20));
    bench->add_option("--state", arguments_.bench.state_tokens, "tokens of the conversation saved and restored")
        ->check(CLI::Range(1, 1 << 20));
    bench->add_option("--repeats", arguments_.bench.repeats)->check(CLI::Range(1, 1000));
    bench->add_option("--peer", arguments_.bench.peer, "path of llama.cpp's llama-bench");
  }

  void AddConversationVerbs() {
    Add(
        "ls", "list conversations", [](const Arguments& a) { return RunList(a.client); }, true);
    WithId(
        "show", "show one conversation", [](const Arguments& a) { return RunShow(a.client, a.id); }, true);
    WithId("save", "save to the store", [](const Arguments& a) { return RunSave(a.client, a.id); });
    WithId("restore", "restore from the store", [](const Arguments& a) {
      return RunRestore(a.client, a.id, a.prove);
    })->add_flag("--prove", arguments_.prove, "compare the next logits row with the one of the save");
    WithId(
        "rm", "delete, live and saved", [](const Arguments& a) { return RunRemove(a.client, a.id); }, true);
    Add(
        "verify", "check every byte of a saved conversation, or of all",
        [](const Arguments& a) { return RunVerify(a.client, a.id); }, true)
        ->add_option("ID", arguments_.id);
    AddFileVerbs();
    WithId("park", "move to host memory", [](const Arguments& a) { return RunPark(a.client, a.id); });
    WithId("fork", "branch into a new conversation",
           [](const Arguments& a) { return RunFork(a.client, a.id, a.new_id); })
        ->add_option("NEW", arguments_.new_id)
        ->required();
    WithId("rewind", "go back to a token position", [](const Arguments& a) { return RunRewind(a.client, a.id, a.to); })
        ->add_option("--to", arguments_.to, "token position")
        ->required()
        ->check(CLI::Range(0, limits::kMaxContextTokens));
  }

  void AddFileVerbs() {
    WithFile(WithId(
        "export", "write one portable file",
        [](const Arguments& a) { return RunExport(a.client, a.id, a.import.file); }, true));
    CLI::App* import = Add(
        "import", "take in a portable file", [](const Arguments& a) { return RunImport(a.client, a.import); }, true);
    WithFile(import);
    import->add_option("--as", arguments_.import.as_id, "the conversation's id here");
    Add(
        "gc", "remove what nothing needs", [](const Arguments& a) { return RunCollect(a.client, a.dry_run); }, true)
        ->add_flag("--dry-run", arguments_.dry_run, "only list it");
  }

  void WithFile(CLI::App* command) {
    FileOptions& file = arguments_.import.file;
    command->add_option("FILE", file.path)->required();
    CLI::Option* key = command->add_option("--key-file", file.key_file, "32 bytes, or 64 hex digits");
    command->add_option("--passphrase-file", file.passphrase_file)->excludes(key);
  }

  CLI::App* WithId(const char* name, const char* help, Verb verb, bool takes_store = false) {
    CLI::App* command = Add(name, help, std::move(verb), takes_store);
    command->add_option("ID", arguments_.id)->required();
    return command;
  }

  void AddChat() {
    CLI::App* chat = Add("chat", "talk in the terminal", [](const Arguments& a) { return RunChat(a.chat); });
    chat->add_option("--conversation", arguments_.chat.conversation, "the conversation's id");
    chat->add_option("--history", arguments_.chat.history, "keep the messages in this file");
    chat->add_option("--system", arguments_.chat.system, "system message of a new chat");
    chat->add_option("--temperature", arguments_.chat.temperature);
    chat->add_option("--max-tokens", arguments_.chat.max_tokens);
  }

  CLI::App app_{"Layover: one model over several processes, conversations that survive restarts", "layover"};
  Arguments arguments_;
  Verb verb_;
  bool takes_store_ = false;
};

}  // namespace

int RunCli(int argc, char** argv) {
  return CommandLine().Run(argc, argv);
}

}  // namespace layover
