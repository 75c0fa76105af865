#!/usr/bin/env python3
"""Makes tests/golden/llama_cpp.json.gz: what llama.cpp says of every tiny model, so that how this project reads GGUF (orders
of rows and heads, which norms have a 1 in them, what is skipped) is held against a reader that it shares nothing with.

Refresh, from the project's root, with a llama.cpp built as tests/bench/get_peer.sh does, in BUILD from SOURCE:
  g++ -O1 -std=c++17 -fopenmp -I SOURCE/include -I SOURCE/ggml/include tests/oracle/llama_cpp_logits.cc \\
    BUILD/src/libllama.a BUILD/ggml/src/libggml{,-cpu,-base}.a -ldl -o build/llama_cpp_logits
  /usr/bin/python3 tests/oracle/make_llama_cpp_goldens.py build/bin/make_tiny_model build/llama_cpp_logits

The ids are those of model_NAME.json.gz; every STEP-th row's TOP likeliest ids are kept. Made with build 11434.
"""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import logits_oracle

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
STEP, TOP = 6, 20


def rows_of(make_tiny_model, tool, name, ids):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([make_tiny_model, f"{folder}/model.gguf", "--arch", name], check=True)
        subprocess.run([tool, f"{folder}/model.gguf", f"{folder}/rows"], input=" ".join(map(str, ids)).encode(), check=True,
                       stderr=subprocess.DEVNULL)
        return np.fromfile(f"{folder}/rows", "<f4").reshape(len(ids), -1).astype(np.float64)


def main():
    make_tiny_model, tool = sys.argv[1:]
    models = {}
    for path in sorted(GOLDEN.glob("model_*.json.gz")):
        name = path.name.removeprefix("model_").removesuffix(".json.gz")
        rows = rows_of(make_tiny_model, tool, name, json.load(gzip.open(path))["ids"])[::STEP]
        best = logits_oracle.top_entries(rows, TOP)
        logprobs = np.take_along_axis(rows, best, 1) - logits_oracle.log_sum_exp(rows)[:, None]
        models[name] = {"top_ids": best.tolist(), "top_logprobs": logprobs.round(6).tolist()}
        print(name, flush=True)
    heading = {"about": f"every {STEP}th next-token distribution of the tiny models over the ids of model_NAME.json.gz",
               "source": "llama.cpp 11434 in float32, tests/oracle/llama_cpp_logits.cc",
               "refresh": "tests/oracle/make_llama_cpp_goldens.py has the commands", "step": STEP}
    logits_oracle.write_result(str(GOLDEN / "llama_cpp.json.gz"), heading | {"models": models})


if __name__ == "__main__":
    main()
