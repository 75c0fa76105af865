"""The IQ types of GGUF with a codebook, dequantised with numpy alone; gguf_weights.py has the other types.

A codebook's points were chosen by clustering, so they are data: tests/golden/iq_grids.txt, made from PyPI's `gguf` by
make_quant_goldens.py. Signs: bit j of a sign byte makes coordinate j negative; where a format stores seven bits of eight,
the eighth makes their number even.
"""

import functools
import pathlib

import numpy as np

GRIDS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "iq_grids.txt"
SIGN_BITS = np.arange(8, dtype=np.uint8)
EVEN = np.array([s | (bin(s).count("1") & 1) << 7 for s in range(128)], np.uint8)


@functools.cache
def grid(name):
    """float32 [entries, coordinates]."""
    for line in GRIDS.read_text().splitlines():
        if line.startswith(name + " "):
            _, coordinates, bits, levels, codes = line.split(" ", 4)
            coordinates, bits = int(coordinates), int(bits)
            codes = np.array([int(c) for c in codes.split()], np.uint32)[:, None]
            picked = codes >> (bits * np.arange(coordinates, dtype=np.uint32)) & ((1 << bits) - 1)
            return np.array([float(v) for v in levels.split(",")], np.float32)[picked]
    raise KeyError(f"{GRIDS}: there is no grid {name}")


def field(blocks, at, count, kind="u1"):
    """`count` values of a little-endian type at byte `at` of each block: [blocks, count]."""
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(blocks[:, at:at + count * size]).view("<" + kind)


def scale_of(blocks):
    return field(blocks, 0, 1, "f2").astype(np.float32)[:, :, None, None]


def signed(points, signs):
    """points [..., 8] with the signs of one byte each."""
    return np.where(signs[..., None] >> SIGN_BITS & 1, -points, points)


def seven_bit_signs(words):
    """The signs of four points in each 32-bit word [blocks, groups]: [blocks, groups, 4]."""
    return EVEN[words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127]


def halves(scales):
    """A byte of two four-bit scales for each group [blocks, 8], to one a point [blocks, 8, 4, 1]."""
    nibbles = np.stack([scales & 15, scales & 15, scales >> 4, scales >> 4], -1)
    return nibbles.astype(np.float32)[..., None]


def iq2_xxs(b):
    words = field(b, 2, 16, "u4").reshape(-1, 8, 2)
    index = np.ascontiguousarray(words[..., :1]).view("u1")
    scale = (words[..., 1] >> 28).astype(np.float32)[..., None, None]
    return scale_of(b) * (0.5 + scale) * 0.25 * signed(grid("iq2xxs")[index], seven_bit_signs(words[..., 1]))


def iq2_xs(b):
    words = field(b, 2, 32, "u2").reshape(-1, 8, 4)
    points = signed(grid("iq2xs")[words & 511], EVEN[words >> 9])
    return scale_of(b) * (0.5 + halves(b[:, 66:74])) * 0.25 * points


def iq2_s(b):
    high = b[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    index = b[:, 2:34].reshape(-1, 8, 4) | high.astype(np.uint16) << 8
    points = signed(grid("iq2s")[index], b[:, 34:66].reshape(-1, 8, 4))
    return scale_of(b) * (0.5 + halves(b[:, 74:82])) * 0.25 * points


def iq3_xxs(b):
    words = field(b, 66, 8, "u4")
    points = grid("iq3xxs")[b[:, 2:66]].reshape(-1, 8, 4, 8)
    scale = (words >> 28).astype(np.float32)[..., None, None]
    return scale_of(b) * (0.5 + scale) * 0.5 * signed(points, seven_bit_signs(words))


def iq3_s(b):
    high = b[:, 66:74, None] >> SIGN_BITS & 1
    points = grid("iq3s")[b[:, 2:66].reshape(-1, 8, 8) | high.astype(np.uint16) << 8].reshape(-1, 8, 4, 8)
    scales = np.stack([b[:, 106:110] & 15, b[:, 106:110] >> 4], -1).reshape(-1, 8).astype(np.float32)
    return scale_of(b) * (1 + 2 * scales)[..., None, None] * signed(points, b[:, 74:106].reshape(-1, 8, 4))


def iq1_s(b):
    high = field(b, 34, 8, "u2")
    index = b[:, 2:34].reshape(-1, 8, 4) | (high[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7) << 8
    shift = np.where(high >> 15, np.float32(-0.125), np.float32(0.125))[..., None, None]
    scale = (2 * (high >> 12 & 7) + 1).astype(np.float32)[..., None, None]
    return scale_of(b) * scale * (grid("iq1")[index] + shift)


def iq1_m(b):
    words = field(b, 48, 4, "u2")
    d = np.bitwise_or.reduce((words >> 12) << np.array([0, 4, 8, 12], np.uint16), axis=1).astype("<u2").view("<f2")
    high = np.stack([b[:, 32:48] & 15, b[:, 32:48] >> 4], -1).reshape(-1, 8, 4)
    index = b[:, :32].reshape(-1, 8, 4) | (high & 7).astype(np.uint16) << 8
    shift = np.where(high & 8, np.float32(-0.125), np.float32(0.125))[..., None]
    scale = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 8, 2)  # of each half of a group
    scale = np.repeat(2 * scale + 1, 2, axis=-1).astype(np.float32)[..., None]
    return d.astype(np.float32)[:, None, None, None] * scale * (grid("iq1")[index] + shift)


TYPES = {16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
         21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 29: ("IQ1_M", 256, 56)}
DEQUANTISE = {"IQ2_XXS": iq2_xxs, "IQ2_XS": iq2_xs, "IQ2_S": iq2_s, "IQ3_XXS": iq3_xxs, "IQ3_S": iq3_s, "IQ1_S": iq1_s,
              "IQ1_M": iq1_m}
