"""Reads GGUF files with numpy alone: metadata, and tensors dequantised to float32.

Written apart from the C++ reader and from the `gguf` package on purpose: the oracle is worth something only if it
shares no code with what it judges. Layouts are GGML's (blocks of 32 or 256 elements, little-endian); the values are
those of its own dequantisation in float32, bit for bit (test_oracle_tools.py checks that against golden vectors).
"""

import mmap
import struct

import numpy as np

import iq_weights

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

# type id: (name, elements of a block, bytes of a block)
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2), 39: ("MXFP4", 32, 17), **iq_weights.TYPES,
}
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # doubled
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


class GgufError(ValueError):
    """The file is not a GGUF that this reader understands; the text names file and field."""


def half(blocks, at):
    """The f16 at byte `at` of each block, as float32 [blocks, 1]."""
    return blocks[:, at:at + 2].copy().view("<f2").astype(np.float32)


def nibbles(packed):
    """[blocks, n] bytes to [blocks, 2n] values: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def fifth_bits(blocks, at):
    """The u32 at byte `at` as 32 fifth bits, ready to add: [blocks, 32] of 0 or 16."""
    word = blocks[:, at:at + 4].copy().view("<u4")
    return (((word >> np.arange(32, dtype=np.uint32)) & 1) << 4).astype(np.uint8)


def scales_and_minima(packed):
    """The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima, float32 [blocks, 8, 1] each."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=1)
    return scales.astype(np.float32)[:, :, None], minima.astype(np.float32)[:, :, None]


def two_bit_planes(packed):
    """[blocks, 64] bytes of 2-bit values to [blocks, 256]: element 128h + 32k + l is bits 2k of byte 32h + l."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 256)


def q2_k(b):
    scale, minimum = (b[:, :16] & 15).astype(np.float32), (b[:, :16] >> 4).astype(np.float32)
    q = two_bit_planes(b[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    return (half(b, 80) * scale)[:, :, None] * q - (half(b, 82) * minimum)[:, :, None]


def q3_k(b):
    masks = b[:, :32]
    high = ((masks[:, None, :] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1).reshape(-1, 256)
    q = two_bit_planes(b[:, 32:96]).astype(np.float32) - 4 * (1 - high.astype(np.float32))
    s = b[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    top = ((s[:, None, 8:12] >> np.array([0, 2, 4, 6], np.uint8)[None, :, None]) & 3).reshape(-1, 16)
    scale = (low | (top << 4)).astype(np.float32) - 32
    return (half(b, 108) * scale)[:, :, None] * q.reshape(-1, 16, 16)


def q4_k_values(packed):
    """[blocks, 128] bytes to [blocks, 8, 32]: each 32 bytes hold one group in their low and the next in their high
    nibbles."""
    p = packed.reshape(-1, 4, 32)
    return np.stack([p & 15, p >> 4], axis=2).reshape(-1, 8, 32)


def q4_k(b):
    scale, minimum = scales_and_minima(b[:, 4:16])
    q = q4_k_values(b[:, 16:144]).astype(np.float32)
    return half(b, 0)[:, :, None] * scale * q - half(b, 2)[:, :, None] * minimum


def q5_k(b):
    scale, minimum = scales_and_minima(b[:, 4:16])
    high = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    q = (q4_k_values(b[:, 48:176]) | (high << 4)).astype(np.float32)
    return half(b, 0)[:, :, None] * scale * q - half(b, 2)[:, :, None] * minimum


def q6_k(b):
    low = b[:, :128].reshape(-1, 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 256)
    q = (low | (two_bit_planes(b[:, 128:192]) << 4)).astype(np.float32) - 32
    scale = b[:, 192:208].copy().view(np.int8).astype(np.float32)
    return (half(b, 208) * scale)[:, :, None] * q.reshape(-1, 16, 16)


def iq4_xs(b):
    high = b[:, 2:4].copy().view("<u2")
    high = ((high >> np.arange(0, 16, 2, dtype=np.uint16)) & 3).astype(np.uint8)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    scale = (low | (high << 4)).astype(np.float32) - 32
    q = b[:, 8:136].reshape(-1, 8, 16)
    return (half(b, 0) * scale)[:, :, None] * IQ4_VALUES[np.concatenate([q & 15, q >> 4], axis=2)]


DEQUANTISE = {
    "F32": lambda b: b.copy().view("<f4"),
    "F16": lambda b: b.copy().view("<f2").astype(np.float32),
    "BF16": lambda b: (b.copy().view("<u2").astype(np.uint32) << 16).view(np.float32),
    "Q4_0": lambda b: (nibbles(b[:, 2:18]).astype(np.float32) - 8) * half(b, 0),
    "Q4_1": lambda b: nibbles(b[:, 4:20]).astype(np.float32) * half(b, 0) + half(b, 2),
    "Q5_0": lambda b: ((nibbles(b[:, 6:22]) | fifth_bits(b, 2)).astype(np.float32) - 16) * half(b, 0),
    "Q5_1": lambda b: (nibbles(b[:, 8:24]) | fifth_bits(b, 4)).astype(np.float32) * half(b, 0) + half(b, 2),
    "Q8_0": lambda b: b[:, 2:34].copy().view(np.int8).astype(np.float32) * half(b, 0),
    "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
    "IQ4_NL": lambda b: IQ4_VALUES[nibbles(b[:, 2:18])] * half(b, 0),
    "IQ4_XS": iq4_xs,
    "MXFP4": lambda b: MXFP4_VALUES[nibbles(b[:, 1:17])] * np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128),
    **iq_weights.DEQUANTISE,
}


def dequantise(type_name, raw):
    """All elements of a run of whole blocks (uint8 [bytes]) as float32 [elements]."""
    block_bytes = next(t[2] for t in TYPES.values() if t[0] == type_name)
    return DEQUANTISE[type_name](raw.reshape(-1, block_bytes)).reshape(-1).astype(np.float32)


class Gguf:
    """One GGUF file: `meta` (key to value) and `tensor(name)`."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        if self.map[:4] != b"GGUF":
            raise GgufError(f"{path}: not a GGUF file")
        self.at = 4
        version = self.scalar("<I")
        if version not in (2, 3):
            raise GgufError(f"{path}: GGUF version {version}; 2 and 3 are understood")
        n_tensors, n_keys = self.scalar("<Q"), self.scalar("<Q")
        self.meta = {}
        for _ in range(n_keys):
            key = self.string().decode()
            self.meta[key] = self.value(self.scalar("<I"))
        if self.meta.get("split.count", 1) > 1:
            raise GgufError(f"{path}: split files are not understood")
        self.infos_start = self.at  # the tensors' descriptions begin here
        self.tensors = {}  # name: (GGUF dimensions, fastest first; type id; offset)
        for _ in range(n_tensors):
            name = self.string().decode()
            dims = [self.scalar("<Q") for _ in range(self.scalar("<I"))]
            self.tensors[name] = (dims, self.scalar("<I"), self.scalar("<Q"))
        alignment = self.meta.get("general.alignment", 32)
        self.data_start = (self.at + alignment - 1) // alignment * alignment

    def scalar(self, layout):
        value = struct.unpack_from(layout, self.map, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def string(self):
        n = self.scalar("<Q")
        self.at += n
        return self.map[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string().decode("utf-8", "surrogateescape")
        if kind == ARRAY:
            element, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(element) for _ in range(count)]
        if kind not in SCALARS:
            raise GgufError(f"{self.path}: unknown value type {kind}")
        return self.scalar(SCALARS[kind])

    def __contains__(self, name):
        return name in self.tensors

    def tensor(self, name, dtype=np.float32):
        """The tensor as numpy's [slowest, ..., fastest]."""
        if name not in self.tensors:
            raise GgufError(f"{self.path}: no tensor {name}")
        dims, kind, offset = self.tensors[name]
        if kind not in TYPES:
            raise GgufError(f"{self.path}: tensor {name} has type {kind}, which the oracle cannot dequantise")
        type_name, block, block_bytes = TYPES[kind]
        count = int(np.prod(dims)) // block * block_bytes
        raw = np.frombuffer(self.map, np.uint8, count, self.data_start + offset)
        return dequantise(type_name, raw).astype(dtype).reshape(dims[::-1])
