#!/usr/bin/env python3
"""Words that a CUDA kernel's source may not have, because one of its two compilers would take them otherwise than the other.

The rules and their reasons: kernels/cuda/gpu.h. The wrappers in ptx.h are exempt from those about instructions.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS = [
    (r"__shared__", "shared memory through GPU_SHARED or SharedCarver: it is poisoned and of exact size in the emulation"),
    (r"<<<|>>>\s*\(", "launch through gpu::Launch"),
    (r"\basm\b", "instructions are wrapped in ptx.h"),
    (r"__cvta_|\bwmma::|cooperative_groups|cuda::barrier|cuda::std|\btex(1D|2D|3D)\w*\(", "the emulation has no such thing"),
    (r"#\s*pragma", "GPU_UNROLL"),
    (r"#\s*include\s*<", "only the project's own headers"),
    (r"__activemask|__any_sync\(__activemask", "masks are constant"),
    (r"\b(volatile|goto|throw|try|dynamic_cast|typeid|new|malloc|printf|assert)\b", "not in device code"),
    (r"\bstd::", "nothing of std in device code"),
    (r"__(expf|logf|sinf|cosf|fdividef|frcp_\w+|fsqrt_r[zud]|fmul_r[zud])\b|\brsqrtf?\(|\bexpf\(|\bexp\(|\btanhf?\(",
     "the contract's own functions (device_math.h): the same bits everywhere"),
    (r"#\s*if(def|ndef)?\s.*__CUDA", "no kernel knows its compiler"),
    (r"\b__(constant|managed)__\b", "arguments by value, tables in memory"),
]
# Headers that a kernel includes and that are no kernels.
EXEMPT = {"ptx.h", "gpu.h", "runtime.h", "pack_weight.h", "gpu_device.h", "gpu_stream.h"}


def code_of(text):
    """The text without comments and strings, lines kept."""
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', re.sub(r'(#include\s+)"[^"]*"', r"\1own", text))
    return re.sub(r"//[^\n]*", "", text)


def problems_in(name, text):
    problems = []
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for pattern, why in WORDS:
            if found := re.search(pattern, line):
                problems.append(f"{name}:{number}: {found.group(0).strip()}: {why}")
    return problems


def main():
    for bad in ("__shared__ float x[3];", "kernel<<<1, 2>>>(x);", 'asm("nop");', "#pragma unroll", "x = std::max(a, b);", "y = expf(x);"):
        assert problems_in("self-test", bad), bad
    assert not problems_in("self-test", '// asm\nLaunch("<<<", k);\n#include "kernels/ops.h"\n#ifndef A\n')
    kernels = [path for path in sorted((ROOT / "kernels" / "cuda").iterdir()) + sorted((ROOT / "tests" / "gpu").glob("*.cu"))
               if path.suffix in {".cu", ".h"} and path.name not in EXEMPT]
    problems = []
    for path in kernels:
        text = path.read_text()
        # Layouts and lists of functions say what they hold by standard types.
        if path.suffix == ".h" and "__device__" not in text:
            continue
        problems += problems_in(path.relative_to(ROOT), text)
    for problem in problems:
        print(problem)
    print(f"{len(kernels)} kernel sources, {len(problems)} problems")
    return 1 if problems or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
