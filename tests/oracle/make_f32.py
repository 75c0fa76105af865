#!/usr/bin/env python3
"""Writes a GGUF file anew with every weight as F32: the same numbers, so the same oracle judges both files.

  make_f32.py MODEL.gguf OUT.gguf

The metadata is copied byte for byte (`general.file_type`, which only informs, keeps its value). Needs numpy alone.
"""

import struct
import sys

import numpy as np

import gguf_weights

F32 = 0


def write_f32(source, out_path):
    """`source`: a gguf_weights.Gguf."""
    alignment = source.meta.get("general.alignment", 32)
    with open(out_path, "wb") as out:
        out.write(source.map[:source.infos_start])
        offset = 0
        for name, (dims, _, _) in source.tensors.items():
            raw_name = name.encode()
            out.write(struct.pack("<Q", len(raw_name)) + raw_name + struct.pack("<I", len(dims)))
            out.write(struct.pack(f"<{len(dims)}QIQ", *dims, F32, offset))
            offset += -(-4 * int(np.prod(dims)) // alignment) * alignment
        for name in source.tensors:
            out.write(bytes(-out.tell() % alignment))
            source.tensor(name).astype("<f4").tofile(out)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        write_f32(gguf_weights.Gguf(sys.argv[1]), sys.argv[2])
    except gguf_weights.GgufError as error:
        sys.exit(f"make_f32: {error}")


if __name__ == "__main__":
    main()
