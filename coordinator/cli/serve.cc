// `layover serve`: the parts in dependency order, then wait for the signal to end. The map of the process.
#include "coordinator/serve.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "common/log.h"
#include "common/plan/report.h"
#include "common/status.h"
#include "common/storage/fault_point.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/engine.h"
#include "coordinator/http/server.h"
#include "coordinator/metrics.h"
#include "coordinator/setup.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/template_engine.h"
#include "coordinator/text/tokenizer.h"

namespace layover {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return code;
}

// Blocks SIGTERM and SIGINT in this thread and all that it starts; they are read here instead.
int BlockEndSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &set, SFD_CLOEXEC);
}

void WaitForSignal(int fd) {
  signalfd_siginfo info;
  while (read(fd, &info, sizeof(info)) < 0 && errno == EINTR) {
  }
}

ServedModel Served(const Setup& setup) {
  ServedModel served;
  served.path_leaf = std::filesystem::path(setup.topology.model).filename().string();
  served.id = std::filesystem::path(setup.topology.model).stem().string();
  served.context = setup.plan.context;
  served.context_train = setup.shape.context_train;
  served.n_vocab = setup.shape.n_vocab;
  for (const GgufTensor& tensor : setup.file->tensors()) {
    served.n_params += tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
  }
  served.bytes = static_cast<int64_t>(setup.file->total_bytes());
  served.sessions = setup.plan.sessions;
  served.stages = static_cast<int>(setup.plan.stages.size());
  served.kv_type = setup.plan.kv_type;
  served.created_at =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return served;
}

}  // namespace

int RunServe(const ServeOptions& options) {
  const int signals = BlockEndSignals();
  InitLog("layover");
  SetFaultProgram("layover");

  const auto setup = LoadSetup(options.topology);
  if (!setup.ok()) return Fail(setup.status(), ExitCodeOfSetup(setup.status()));
  for (const std::string& warning : PlanWarnings((*setup)->plan, (*setup)->memory)) LogWarning("{}", warning);
  const Topology& topology = (*setup)->topology;
  const auto identity = ReadIdentityButWeights(*(*setup)->file, (*setup)->shape, topology.kv_type);
  if (!identity.ok()) return Fail(identity.status(), 1);
  const auto tokenizer = Tokenizer::FromGguf(*(*setup)->file);
  if (!tokenizer.ok()) return Fail(tokenizer.status(), 1);
  const auto template_engine = TemplateEngine::Start({});
  if (!template_engine.ok()) LogWarning("no chat: {}", std::string(template_engine.status().message()));
  const auto template_text = (*setup)->file->GetString("tokenizer.chat_template");
  const std::string chat_template = template_text.ok() ? template_text->value_or("") : "";
  ChatPrompt chat(template_engine.ok() ? template_engine->get() : nullptr, tokenizer->get(), chat_template);

  Metrics metrics(static_cast<int>((*setup)->plan.stages.size()));
  auto engine = Engine::Start({.topology = &topology,
                               .plan = &(*setup)->plan,
                               .shape = &(*setup)->shape,
                               .tokenizer = tokenizer->get(),
                               .metrics = &metrics,
                               .identity = *identity,
                               .served = Served(**setup)});
  if (!engine.ok()) return Fail(engine.status(), 1);
  const auto no_helper = [&]() { return Unavailable("no chat: {}", std::string(template_engine.status().message())); };
  HttpParts parts{.service = engine->get(), .metrics = &metrics, .tokenizer = tokenizer->get()};
  parts.render_chat = [&](const ChatRequest& request) -> absl::StatusOr<RenderedChat> {
    return template_engine.ok() ? chat.RenderChat(request) : no_helper();
  };
  parts.render_text = [&](const ChatRequest& request) -> absl::StatusOr<std::string> {
    return template_engine.ok() ? chat.RenderText(request) : no_helper();
  };
  parts.chat_template = chat_template;
  if (topology.store.has_value()) parts.store_dir = std::filesystem::absolute(topology.store->dir).lexically_normal();
  auto http = HttpServer::Start({.listen = topology.server.listen,
                                 .keys_file = topology.server.keys_file,
                                 .allow_hosts = topology.server.allow_hosts,
                                 .allow_origins = topology.server.allow_origins},
                                parts);
  if (!http.ok()) return Fail(http.status(), 1);

  if (const absl::Status up = (*engine)->WaitUp(); !up.ok()) return Fail(up, 1);
  std::printf("ready %s\n", (*http)->url().c_str());
  std::fflush(stdout);

  WaitForSignal(signals);
  LogInfo("shutting down");
  // A second signal does not wait for anything.
  std::thread([signals] {
    WaitForSignal(signals);
    _exit(1);
  }).detach();
  const absl::Status saved = (*engine)->Shutdown();
  (*http)->StopAccepting();
  (*http)->WaitIdle(std::chrono::seconds(2));
  http->reset();
  engine->reset();
  if (!saved.ok()) return Fail(saved, 1);
  return 0;
}

}  // namespace layover
