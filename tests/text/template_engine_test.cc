// The helper process: Jinja2's semantics against vectors, and hostile templates that cost one request each.
#include "coordinator/text/template_engine.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "common/status.h"
#include "fmt/core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using ::testing::HasSubstr;

std::string MessageOf(const absl::StatusOr<std::string>& result) {
  return result.ok() ? "rendered: " + *result : std::string(result.status().message());
}

// Where we render and transformers refuses: lists may be changed in place, as several published templates do.
const std::map<std::string, std::string> kDeliberatelyAllowed = {
    {"{% set _ = l.append(3) %}{{ l }}", "[1, 3]"},
    {"{% set l = [1] %}{% set _ = l.append(3) %}{{ l }}", "[1, 3]"},
    {"{{ l.pop() }}", "1"},
};

// The moment that the vectors were made at, as UTC: 2026-03-07 09:05:02.
constexpr int64_t kVectorsNow = 1772874302;

TEST(TemplateEngine, JinjaVectors) {
  ASSERT_EQ(setenv("TZ", "UTC", 1), 0);
  const auto engine = StartEngine();
  int n = 0;
  int n_allowed = 0;
  for (const auto& row : ReadJsonLines("jinja_vectors.jsonl")) {
    const std::string source = row["t"];
    const auto text = engine->Render(source, row["c"].dump(), kVectorsNow);
    ++n;
    if (const auto allowed = kDeliberatelyAllowed.find(source); allowed != kDeliberatelyAllowed.end()) {
      EXPECT_TRUE(row.contains("err"));
      EXPECT_EQ(MessageOf(text), "rendered: " + allowed->second) << source;
      ++n_allowed;
    } else if (row.contains("out")) {
      EXPECT_EQ(MessageOf(text), "rendered: " + row["out"].get<std::string>()) << source;
    } else if (row["err"] == "TemplateError: boom") {
      EXPECT_EQ(MessageOf(text), "boom") << "raise_exception's own message, unadorned";
    } else {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source;
      EXPECT_THAT(MessageOf(text), HasSubstr(row["err"].get<std::string>())) << source;
    }
  }
  EXPECT_EQ(n, 141);
  EXPECT_EQ(n_allowed, 3);
}

TEST(TemplateEngine, KeepsKeyOrderAndNumbers) {
  const auto engine = StartEngine();
  const std::string json = R"({"x": {"b": 1.0, "a": 123456789012345678901234567890, "é": [true, null, -0.5, 1e22]}})";
  EXPECT_EQ(MessageOf(engine->Render("{{ x | tojson }}", json)),
            R"(rendered: {"b": 1.0, "a": 123456789012345678901234567890, "é": [true, null, -0.5, 1e+22]})");
}

TEST(TemplateEngine, ErrorsNameTheLine) {
  const auto engine = StartEngine();
  EXPECT_THAT(MessageOf(engine->Render("a\nb\n{{ x.y.z }}", "{}")), HasSubstr("(line 3 of the template)"));
  EXPECT_THAT(MessageOf(engine->Render("a\n{% if %}", "{}")), HasSubstr("(line 2 of the template)"));
}

TEST(TemplateEngine, FunctionsOfTransformers) {
  const auto engine = StartEngine();
  EXPECT_THAT(MessageOf(engine->Render("{{ strftime_now('%Y') }}", "{}")), HasSubstr("rendered: 2"));
  EXPECT_EQ(MessageOf(engine->Render("{% generation %}x{{ y }}{% endgeneration %}", R"({"y": 1})")), "rendered: x1");
  EXPECT_EQ(MessageOf(engine->Render("{% set l = [3] %}{% set _ = l.clear() %}{{ l }}", "{}")), "rendered: []");
}

struct Hostile {
  const char* name;
  const char* source;
  const char* message;       // part of it
  int deadline_ms = 60'000;  // enough for what ends by another limit, on a busy machine too
};

class HostileTemplate : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileTemplate, CostsOneRequest) {
  const auto engine = StartEngine(GetParam().deadline_ms);
  const auto text = engine->Render(GetParam().source, R"({"x": "abc", "l": [1, 2]})");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << MessageOf(text);
  EXPECT_THAT(MessageOf(text), HasSubstr(GetParam().message));
  EXPECT_EQ(MessageOf(engine->Render("{{ x }}", R"({"x": "next"})")), "rendered: next");
}

constexpr Hostile kHostile[] = {
    {"RepeatedString", "{{ 'a' * 10**10 }}", "a repeated string or list is too long"},
    {"RepeatedList", "{{ 10**9 * l }}", "a repeated string or list is too long"},
    {"FoldedPower", "{{ 10 ** (10 ** 8) }}", "a power is too large"},
    {"BigProduct",
     "{% set ns = namespace(n=9) %}{% for i in range(99999) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
     "a product is too large"},
    {"DoublingString",
     "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
     "too much memory"},
    {"GrowingList", "{% for i in range(99) %}{% set _ = l.extend(l) %}{% endfor %}", "too much memory"},
    {"EndlessLoop", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
     "longer than 500 ms", 500},
    {"EndlessOutput",
     "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
     "the rendered text is too long"},
    {"LongOutput", "{{ x * 4000000 }}{{ x * 4000000 }}", "the rendered text is too long"},
    {"Recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"},
    {"WidePadding", "{{ '%1000000000d' % 1 }}", "too much memory"},
    {"WideFormat", "{{ '{:1000000000}'.format(1) }}", "too much memory"},
    {"WideCenter", "{{ 'a' | center(1000000000) }}", "too much memory"},
    {"HugeRange", "{{ range(10**9) | list }}", "Range too big"},
    {"Classes", "{{ x.__class__.__mro__[1].__subclasses__() }}", "SecurityError"},
    {"Globals", "{{ raise_exception.__globals__.sys.exit() }}", "SecurityError"},
    {"Include", "{% include '/etc/passwd' %}", "no loader"},
    {"ChangedDict", "{{ {}.update({1: 2}) }}", "SecurityError"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileTemplate, ::testing::ValuesIn(kHostile),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TemplateEngine, DeeplyNestedSourceCostsOneRequest) {
  const auto engine = StartEngine();
  const std::string deep = "{{ " + std::string(50'000, '(') + "1" + std::string(50'000, ')') + " }}";
  EXPECT_EQ(engine->Render(deep, "{}").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(engine->Render("ok", "{}")), "rendered: ok");
}

TEST(TemplateEngine, SizesAreBounded) {
  const auto engine = StartEngine();
  EXPECT_THAT(MessageOf(engine->Render(std::string(limits::kMaxChatTemplateBytes + 1, 'x'), "{}")),
              HasSubstr("at most"));
  EXPECT_EQ(MessageOf(engine->Render(std::string(limits::kMaxChatTemplateBytes, 'x'), "{}")).size(),
            limits::kMaxChatTemplateBytes + std::string("rendered: ").size());
  EXPECT_THAT(MessageOf(engine->Render("", std::string(limits::kMaxTemplateContextBytes + 1, ' '))),
              HasSubstr("at most"));
}

TEST(TemplateEngine, AKilledHelperIsReplaced) {
  const auto engine = StartEngine();
  const pid_t first = engine->helper_pid();
  ASSERT_GT(first, 0);
  kill(first, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(first), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(MessageOf(engine->Render("{{ 1 }}", "{}")), "rendered: 1");
  EXPECT_NE(engine->helper_pid(), first);
}

TEST(TemplateEngine, OutlivesTheThreadThatStartedIt) {
  std::unique_ptr<TemplateEngine> engine;
  std::thread starter([&] { engine = StartEngine(); });
  starter.join();
  const pid_t helper = engine->helper_pid();
  EXPECT_EQ(MessageOf(engine->Render("{{ 1 }}", "{}")), "rendered: 1");
  EXPECT_EQ(engine->helper_pid(), helper);
}

TEST(TemplateEngine, DiesWithItsProcess) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto engine = StartEngine();
    const int helper = engine->helper_pid();
    if (write(ends[1], &helper, sizeof helper) != sizeof helper) _exit(1);
    pause();
    _exit(0);
  }
  int helper = -1;
  ASSERT_EQ(read(ends[0], &helper, sizeof helper), static_cast<ssize_t>(sizeof helper));
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, helper, 0));
  ASSERT_GE(handle, 0);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  pollfd entry{handle, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 60'000), 1) << "the helper is still there";
  close(handle);
  close(ends[0]);
  close(ends[1]);
}

TEST(TemplateEngine, MayBeCalledFromSeveralThreads) {
  const auto engine = StartEngine();
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto text = engine->Render("{{ n }}", fmt::format(R"({{"n": {}}})", t * 1000 + i));
        wrong[t] += MessageOf(text) != fmt::format("rendered: {}", t * 1000 + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TemplateEngine, SaysWhatIsMissing) {
  TemplateEngine::Options options;
  options.helper_path = "/nowhere/template_helper.py";
  auto engine = TemplateEngine::Start(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("/nowhere/template_helper.py"));

  options.helper_path = LAYOVER_SOURCE_DIR "/coordinator/text/template_helper.py";
  options.python = "/nowhere/python3";
  engine = TemplateEngine::Start(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("/nowhere/python3"));
}

TEST(TemplateEngine, SaysThatJinjaIsMissing) {
  // Without the site module Python finds its own library only.
  const std::string python = ::testing::TempDir() + "/python_without_site";
  std::ofstream(python) << "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n";
  ASSERT_EQ(chmod(python.c_str(), 0700), 0);
  TemplateEngine::Options options;
  options.helper_path = LAYOVER_SOURCE_DIR "/coordinator/text/template_helper.py";
  options.python = python;
  const auto engine = TemplateEngine::Start(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("python3-jinja2"));
}

}  // namespace
}  // namespace layover
