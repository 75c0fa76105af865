// Jinja2 itself, in a helper process with limits (template_helper.py).
//
// What must stay true:
//  - A template is an untrusted program: whatever it does costs the one request that renders it. Memory, processor
//  time,
//    time by the clock and output are bounded; a helper that breaks a bound is killed, the next render starts another.
//  - The helper never outlives the coordinator. One thread owns it (a process started with a parent-death signal dies
//    with the thread that started it), so Render may be called from any thread.
#ifndef LAYOVER_COORDINATOR_TEXT_TEMPLATE_ENGINE_H_
#define LAYOVER_COORDINATOR_TEXT_TEMPLATE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/limits.h"

namespace layover {

struct TemplateEngineOptions {
  std::string helper_path;  // template_helper.py; empty: beside the running program
  std::string python;       // empty: /usr/bin/python3, then python3 on the PATH, the first that has jinja2
  int deadline_ms = limits::kTemplateDeadlineMs;
};

class TemplateEngine {
 public:
  using Options = TemplateEngineOptions;

  // Starts the helper and waits for its greeting. Unavailable says what is missing: the helper, Python or jinja2.
  static absl::StatusOr<std::unique_ptr<TemplateEngine>> Start(const Options& options);
  ~TemplateEngine();

  // Renders a template over the variables of a JSON object (keys in order, 1.0 stays 1.0, integers of any size).
  // InvalidArgument: the template's own error, or a bound it broke. Unavailable: no helper can be started.
  // `now_unix_s` is what the template's strftime_now takes for now; 0: the clock. Thread-safe; renders run one after
  // the other.
  absl::StatusOr<std::string> Render(const std::string& template_source, const std::string& context_json,
                                     int64_t now_unix_s = 0);

  // The helper's process id at this moment; -1 between the end of one and the start of the next.
  int helper_pid() const;

 private:
  struct Impl;
  explicit TemplateEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_TEMPLATE_ENGINE_H_
