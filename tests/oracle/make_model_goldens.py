#!/usr/bin/env python3
"""Makes tests/golden/model_NAME.json.gz: what transformers in float32 says of every tiny model.

Refresh, from the project's root (a few minutes; nothing of it is needed to build or to test):
  pip install torch transformers==5.24.0 numpy
  python tests/oracle/make_model_goldens.py build/bin/make_tiny_model [NAME ...]

300 ids: 252 of a fixed sequence, then 48 that the model itself finds likeliest, one after the other. OUT is what
logits_oracle.py writes, and `greedy_from`, where the model's own ids begin.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import gguf_weights
import logits_oracle
import transformers_models

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
GIVEN, GREEDY, TOP = 252, 48, 20
NAMES = ["llama", "llama-moe", "qwen2", "qwen3", "qwen3moe", "gemma3", "qwen3next", "qwen35", "qwen35moe", "gpt-oss"]


class Rows:
    """What logits_oracle.summarise asks of a model."""

    def __init__(self, all_rows):
        self.all_rows = all_rows

    def rows(self, ids):
        yield self.all_rows[:len(ids)]


def make(tool, name):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}.gguf"
        subprocess.run([tool, path, "--arch", name], check=True)
        model = transformers_models.load(gguf_weights.Gguf(path))
        sha256 = logits_oracle.digest(path)
    ids = [(37 * i * i + 11 * i) % 259 for i in range(GIVEN)]
    for _ in range(GREEDY):
        ids.append(int(np.argmax(transformers_models.rows(model, ids)[-1])))
    rows = transformers_models.rows(model, ids)
    heading = {"about": f"next-token distributions of the tiny {name} (make_tiny_model --arch {name})",
               "source": "transformers in float32, tests/oracle/transformers_models.py",
               "refresh": "python tests/oracle/make_model_goldens.py build/bin/make_tiny_model",
               "model_sha256": sha256, "dtype": "float32", "n_vocab": rows.shape[1], "greedy_from": GIVEN}
    logits_oracle.write_result(str(GOLDEN / f"model_{name}.json.gz"),
                               heading | logits_oracle.summarise(Rows(rows), ids, TOP))


def main():
    for name in sys.argv[2:] or NAMES:
        make(sys.argv[1], name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
