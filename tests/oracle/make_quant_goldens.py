#!/usr/bin/env python3
"""Makes tests/golden/quant_digests.txt and tests/golden/iq_grids.txt: what PyPI's `gguf` says of every weight type.

Refresh, from the project's root (nothing of it is needed to build or to test):
  pip install gguf==0.19.0 numpy xxhash
  python tests/oracle/make_quant_goldens.py
"""

import pathlib

import gguf
import numpy as np
from gguf import quants

import quant_blocks

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "IQ3_S", "IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M", "MXFP4"]
GRIDS = {"iq2xxs": quants.IQ2_XXS, "iq2xs": quants.IQ2_XS, "iq2s": quants.IQ2_S, "iq3xxs": quants.IQ3_XXS,
         "iq3s": quants.IQ3_S, "iq1": quants.IQ1_S}


def digests():
    lines = [f"# {quant_blocks.BLOCKS} random blocks of each type as PyPI's gguf 0.19.0 (MIT) "
             "dequantises them: see tests/oracle/quant_blocks.py", "# type | id | bytes of a block | XXH3-128 of the float32 values",
             "# refresh: python tests/oracle/make_quant_goldens.py"]
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        blocks = quant_blocks.blocks_of(int(kind), block_bytes)
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks.reshape(-1), kind)
        lines.append(f"{name} | {int(kind)} | {block_bytes} | {quant_blocks.digest_of(values)}")
    return lines


def grids():
    lines = ["# Codebooks of the IQ types, from PyPI's gguf 0.19.0 (MIT). name coordinates bits levels codes; coordinate i of an",
             "# entry is levels[code >> bits * i & (1 << bits) - 1]. refresh: python tests/oracle/make_quant_goldens.py"]
    for name, kind in GRIDS.items():
        kind.init_grid()
        points = kind.grid.reshape(kind.grid_shape).astype(int)
        levels = list(kind.grid_map)
        bits = 2 if len(levels) <= 4 else 3
        codes = [sum(levels.index(value) << bits * i for i, value in enumerate(point)) for point in points]
        lines.append(f"{name} {kind.grid_shape[1]} {bits} {','.join(map(str, levels))} {' '.join(map(str, codes))}")
    return lines


def main():
    for name, lines in (("quant_digests.txt", digests()), ("iq_grids.txt", grids())):
        (GOLDEN / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
