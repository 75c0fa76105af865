#!/usr/bin/env python3
"""The tree's own rules as a test (docs/style.md): sizes, opening comments, words, paths, layers, limits.

A rule that matters is checked from today's value on: what a budget below says may shrink, not grow.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = {".cc", ".h", ".inc", ".py", ".sh", ".cu", ".cuh"}
MOST_LINES = 800
LONG_LINES = 400
LONG_FILES = 15           # files over LONG_LINES today
MOST_COLUMNS = 170

# Who may include whom, by folder; common and kernels know nothing above them.
LAYERS = {
    "common": {"common", "kernels"},
    "kernels": {"common", "kernels"},
    "stage_worker": {"common", "kernels", "stage_worker"},
    "coordinator": {"common", "coordinator"},
}
# Libraries that only some files may see, because they are slow to compile or a choice that must stay in one place.
ONLY_IN = {
    "boost/beast": {"coordinator/http/"},
    "CLI/CLI.hpp": {"coordinator/cli/cli.cc", "stage_worker/main.cc", "tests/"},
    "spdlog/": {"common/log.cc"},
    "sqlite3.h": {"coordinator/catalog.cc"},
    "zmq.h": {"common/wire/socket.cc"},
    "yaml-cpp/": {"common/topology.cc", "common/yaml_map."},
    "pcre2.h": {"coordinator/text/"},
    "liburing.h": {"common/storage/"},
    "immintrin.h": {"kernels/", "common/"},
    "cuda": {"kernels/cuda/ptx.h", "kernels/cuda/runtime_cuda.cc"},  # a build without CUDA needs none of its headers
    "cublas": set(),
    "nccl": set(),
}
WORDS = re.compile(r"\b(TODO|FIXME|XXX|placeholder|not implemented|GTEST_SKIP|DISABLED_)\b|(?<!transformers\.)\butils?\b"
                   r"|(?<!open)(?<!prepare)(?<!cublasCreate)(?<!cublasDestroy)(?<!cublasSetStream)(?<!cublasGetVersion)_v2\b")
PATHS = re.compile(r"(?<![\w.])/(work|root|home|farm)/")
EXITS = re.compile(r"(?<![\w:.])(std::)?(exit|abort|terminate)\(")
RENAMES = re.compile(r"(?<!\w)(::)?(rename|renameat2?|unlink|unlinkat)\(")

# What C++ here goes without: failures are values, names are spelled out, guards have names.
NEVER = {
    re.compile(r"^\s*using namespace\b"): "names are spelled out: no using namespace",
    re.compile(r"^#pragma once"): "include guards, not #pragma once",
    re.compile(r"(^|[;{}(]\s*|^\s+)throw\b(?!\s*\()"): "failures are absl::Status: nothing is thrown",
    re.compile(r"\bstd::(cout|endl)\b"): "text goes through fmt or common/log.h",
    re.compile(r"^[^/]*\bassert\("): "a broken invariant is LAYOVER_CHECK, in every build",
}
MAY_THROW = {"common/wire/messages.cc"}  # inside cereal's archives, which know no other way; caught in the same file
# Files that a page names in back quotes must exist.
NAMED_FILE = re.compile(r"`((?:\./)?[\w./-]+/[\w.-]+\.(?:cc|h|py|sh|md|yaml|cmake|inc|json|gz|txt))`")

problems = []


def say(path, line, what):
    problems.append(f"{path}:{line}: {what}")


def tracked():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [pathlib.PurePosixPath(name) for name in names if name and (ROOT / name).is_file()]


def check_code(path, lines):
    folder = path.parts[0]
    if len(lines) > MOST_LINES:
        say(path, len(lines), f"{len(lines)} lines, {MOST_LINES} is the ceiling")
    if path.suffix in {".h", ".cc", ".inc"}:
        first = next((line for line in lines if line.strip()), "")
        own_header = path.suffix == ".cc" and (ROOT / path.with_suffix(".h")).exists()
        if not first.startswith(("//", "/*")) and not own_header and not path.name.endswith("_test.cc"):
            say(path, 1, "no opening comment, and no header that has one")
        if path.suffix == ".h":
            guard = "LAYOVER_" + re.sub(r"[^A-Za-z0-9]", "_", str(path)).upper() + "_"
            if f"#ifndef {guard}" not in "\n".join(lines):
                say(path, 1, f"the include guard is not {guard}")
    for number, line in enumerate(lines, 1):
        if len(line) > MOST_COLUMNS and path.suffix in CODE and "golden" not in path.parts:
            say(path, number, f"{len(line)} columns")
        if WORDS.search(line) and path.name != "check_tree.py":
            say(path, number, f"unfinished or empty word: {WORDS.search(line).group(0)}")
        if folder in LAYERS:
            if include := re.match(r'#include "([a-z_]+)/', line):
                if include.group(1) in LAYERS and include.group(1) not in LAYERS[folder]:
                    say(path, number, f"{folder} includes {include.group(1)}")
            if EXITS.search(line) and path.name != "check.h":
                say(path, number, "only LAYOVER_CHECK ends the process")
            if RENAMES.search(line) and path.parts[:2] != ("common", "storage"):
                say(path, number, "files are renamed and removed in common/storage only")
        if include := re.match(r'#include [<"]([^>"]+)', line):
            for library, places in ONLY_IN.items():
                if include.group(1).startswith(library) and not any(str(path).startswith(place) for place in places):
                    say(path, number, f"{library} is for {', '.join(sorted(places))}")


def check_spaces_and_opening(path, text, lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip(" \t"):
            say(path, number, "spaces at the end of the line")
        if "\t" in line and path.suffix != ".md":
            say(path, number, "a tab")
    if not text.endswith("\n") or text.endswith("\n\n"):
        say(path, len(lines), "a file ends with one newline")
    if path.suffix == ".py" and not re.match(r'(#!.*\n)?"""', text):
        say(path, 1, "no opening docstring")
    if path.suffix in {".sh", ".cmake"} and not text.startswith("#"):
        say(path, 1, "no opening comment")


def check_cpp(path, lines):
    for number, line in enumerate(lines, 1):
        for pattern, why in NEVER.items():
            if pattern.search(line.split("//")[0]) and path.parts[0] in LAYERS and str(path) not in MAY_THROW:
                say(path, number, why)
    header = path.with_suffix(".h")
    if path.suffix == ".cc" and (ROOT / header).exists():
        first = next((line for line in lines if line.startswith("#include")), "")
        if first != f'#include "{header}"':
            say(path, 1, f"{header} is not its first include")


def check_named_files(path, text):
    for match in NAMED_FILE.finditer(text):
        name = match.group(1).removeprefix("./")
        if not (ROOT / name).exists() and not (ROOT / path.parent / name).exists():
            line = text[:match.start()].count("\n") + 1
            say(path, line, f"it names {name}, which is not there")


def check_limits(paths):
    """Numbers that bound something stand in common/limits.h; elsewhere a constant named kMax... must be one of a kernel's tiles."""
    for path in paths:
        if path.parts[0] not in {"common", "coordinator", "stage_worker"} or path.suffix not in {".h", ".cc"} or path.name == "limits.h":
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if re.search(r"constexpr [\w:]+ kMax\w+ = [\d(]", line):
                say(path, number, "a bound outside common/limits.h")


def check_tests_are_built(paths):
    built = (ROOT / "tests" / "CMakeLists.txt").read_text()
    for path in paths:
        if path.name.endswith("_test.cc") and not re.search(rf"layover_test\(\w+\s+{path.parts[1]}\b", built):
            say(path, 1, "no test program is built of this folder")


def main():
    paths = tracked()
    long_files = []
    for path in paths:
        if path.suffix not in CODE and path.suffix not in {".md", ".txt", ".cmake", ".yaml", ".json"}:
            continue
        text = (ROOT / path).read_text(errors="replace")
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if PATHS.search(line) and path.name != "check_tree.py" and "golden" not in path.parts:
                say(path, number, "a path of one machine")
        if path.suffix == ".md" and len(path.parts) > 1:
            check_named_files(path, text)
        if path.suffix in CODE:
            check_code(path, lines)
            if "golden" not in path.parts or path.suffix == ".py":
                check_spaces_and_opening(path, text, lines)
            if path.suffix in {".cc", ".h", ".inc"}:
                check_cpp(path, lines)
            if len(lines) > LONG_LINES:
                long_files.append(f"{len(lines):5} {path}")
    if len(long_files) > LONG_FILES:
        say("tests/check_tree.py", 1, f"{len(long_files)} files over {LONG_LINES} lines, {LONG_FILES} is today's number:\n  " + "\n  ".join(sorted(long_files)))
    check_limits(paths)
    check_tests_are_built(paths)
    for problem in problems:
        print(problem)
    print(f"{len(paths)} files, {len(problems)} problems, {len(long_files)} files over {LONG_LINES} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
