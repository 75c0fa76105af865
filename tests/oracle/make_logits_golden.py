#!/usr/bin/env python3
"""Makes tests/golden/mixed_text_ids.json and tests/golden/logits_demo.json.gz from mixed_text.txt.

Refresh, from the project's root (about a minute; nothing of it is needed to build or to test):
  pip install tokenizers==0.23.3 transformers==5.24.0 gguf numpy
  python tests/oracle/make_logits_golden.py models/SmolLM2-135M-Instruct.Q4_1.gguf

The ids are those of Hugging Face's `tokenizers`, the distributions those of logits_oracle.py in double precision.
"""

import json
import pathlib
import sys

import gguf

import gguf_weights
import logits_oracle

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TOP = 32  # keeps the file well under 1 MB and most of a KL


def main():
    model = sys.argv[1]
    sys.path.insert(0, str(GOLDEN))
    from make_text_goldens import make_tokenizer
    tokenizer, _ = make_tokenizer(gguf.GGUFReader(model).fields)
    ids = tokenizer.encode((GOLDEN / "mixed_text.txt").read_bytes().decode()).ids
    lines = [", ".join(map(str, ids[i:i + 20])) for i in range(0, len(ids), 20)]
    (GOLDEN / "mixed_text_ids.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")

    oracle = logits_oracle.Llama(gguf_weights.Gguf(model))
    heading = {
        "about": "next-token distributions of SmolLM2-135M-Instruct Q4_1 (weights dequantised exactly, arithmetic in "
                 "double precision) over mixed_text.txt, read as one context",
        "source": "tests/oracle/logits_oracle.py",
        "refresh": "python tests/oracle/make_logits_golden.py MODEL",
    }
    result = heading | logits_oracle.describe(model, oracle) | logits_oracle.summarise(oracle, ids, TOP)
    logits_oracle.write_result(str(GOLDEN / "logits_demo.json.gz"), result)


if __name__ == "__main__":
    main()
