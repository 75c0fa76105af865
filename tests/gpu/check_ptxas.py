#!/usr/bin/env python3
"""Judges ptxas's reports of the CUDA kernels: no spills, no stack, registers within a budget, static shared memory.

check_ptxas.py FOLDER [ARCHITECTURE ...]: FOLDER holds a *.ptxas.txt of each kernel file (the build puts them in
build-cuda/cuda); each must have every entry compiled for each architecture ("80" ...).
"""
import collections
import pathlib
import re
import sys

# Most registers of a thread, by the kernel's name; 64 for what is not named. A block of 256 threads may have 255 each, and
# two of them fit a multiprocessor with 128. These may shrink, not grow.
REGISTERS = [
    (r"ManyRowsKernel", 255),
    (r"FewRowsKernel", 96),
    (r"FewFloatRowsKernel", 80),  # blocks of one warp: 24 of them, the most on sm_86, 89 and 120, may have 85 each
    (r"AttentionKernelILi\dELi1E", 168),
    (r"AttentionKernelILi\dELi[248]E", 255),
    (r"DeltaNetKernelILi32E", 224),  # heads of 512
    (r"DeltaNetKernelILi(4|8|16)E", 128),
]
OTHERS = 64
STATIC_SHARED = 48 * 1024


def entries(text):
    """(entry, architecture, spilled or stacked bytes, registers, static shared bytes) for each report in the text."""
    for part in re.split(r"Compiling entry function ", text)[1:]:
        head = re.match(r"'(\S+)' for 'sm_(\d+)a?'", part)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        if not head or not frame or not used:
            raise ValueError(f"unreadable report: {part[:200]}")
        shared = re.search(r"(\d+) bytes smem", part)
        yield head.group(1), head.group(2), sum(map(int, frame.groups())), int(used.group(1)), int(shared.group(1)) if shared else 0


def problems_in(reports, architectures):
    problems, seen = [], collections.defaultdict(set)
    for name, text in reports.items():
        for entry, arch, spilled, registers, shared in entries(text):
            seen[name, entry].add(arch)
            limit = next((most for pattern, most in REGISTERS if re.search(pattern, entry)), OTHERS)
            for what, bad in ((f"{spilled} bytes of stack and spills", spilled > 0),
                              (f"{registers} registers, {limit} is the limit", registers > limit),
                              (f"{shared} bytes of static shared memory", shared > STATIC_SHARED)):
                if bad:
                    problems.append(f"{name}: {entry} for sm_{arch}: {what}")
        if not any(file == name for file, _ in seen):
            problems.append(f"{name}: no kernel in it")
    for (name, entry), archs in seen.items():
        missing = set(architectures) - archs
        if missing:
            problems.append(f"{name}: {entry} is not compiled for sm_{', sm_'.join(sorted(missing))}")
    return problems, len(seen)


def self_test():
    good = ("ptxas info    : Compiling entry function '_Z1kv' for 'sm_80'\nptxas info    : Function properties for _Z1kv\n"
            "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 60 registers, 8704 bytes smem\n")
    assert problems_in({"a": good}, ["80"]) == ([], 1)
    for old, new in (("0 bytes spill stores", "4 bytes spill stores"), ("60 registers", "65 registers"), ("8704", "50000")):
        assert len(problems_in({"a": good.replace(old, new)}, ["80"])[0]) == 1
    assert len(problems_in({"a": good}, ["80", "86"])[0]) == 1 and len(problems_in({"a": ""}, ["80"])[0]) == 1


def main():
    self_test()
    folder, architectures = pathlib.Path(sys.argv[1]), sys.argv[2:]
    reports = {path.name: path.read_text() for path in sorted(folder.glob("*.ptxas.txt"))}
    if not reports:
        print(f"{folder}: no ptxas reports")
        return 1
    problems, kernels = problems_in(reports, architectures)
    for problem in problems:
        print(problem)
    print(f"{kernels} kernels in {len(reports)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
