"""Many blocks of every weight type, the same here and in tests/kernels/dequantize_test.cc, and the digest of their values.

Bytes come from SplitMix64, eight at a time, seeded with the type's id. Values are digested as float32 with XXH3-128; every
NaN counts as 0x7fc00000, since a random f16 scale may be one.
"""

import numpy as np
import xxhash

BLOCKS = 4096


def random_bytes(seed, count):
    """uint8 [count]."""
    state = np.arange(1, count // 8 + 2, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15) + np.uint64(seed)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
    return (state ^ state >> np.uint64(31)).astype("<u8").view(np.uint8)[:count]


def blocks_of(type_id, block_bytes):
    return random_bytes(type_id, BLOCKS * block_bytes).reshape(BLOCKS, block_bytes)


def digest_of(values):
    bits = np.ascontiguousarray(values, "<f4").reshape(-1).copy()
    bits[np.isnan(bits)] = np.array([0x7fc00000], "<u4").view("<f4")[0]
    return xxhash.xxh3_128(bits.tobytes()).hexdigest()
