#!/usr/bin/env python3
"""Float arithmetic on exactly dequantised weights: what Layover's logits are judged by.

  logits_oracle.py MODEL.gguf IDS.json OUT.json[.gz] [--top 64] [--dtype float64|float32] [--raw FILE]

MODEL is any file of the `llama` architecture (dense). IDS.json is a JSON array of token ids; the model reads them
as one context. OUT holds, per position p, the distribution of the token after p: the `top` likeliest ids (equal ones:
lower id first) with their log-probabilities, the log of the sum of exponentials of the row, and the log-probability of
the id that follows. --raw also writes the whole rows as float32 [positions, vocabulary].

Needs numpy alone. It is an independent forward pass, in double precision, straight from the definition: no K/V cache,
no blocks, no quantised activations.

How far it can be trusted. SmolLM2-135M-Instruct Q4_1, the 2,934 tokens of tests/golden/mixed_text.txt; mean KL, largest
|difference of log-probability| over the 20 likeliest ids of each row, same likeliest id:
  float32 instead of float64                         1.2e-11  5.5e-5  100 %
  transformers 5.24 (torch float32, own GGUF load)   2.4e-10  7.2e-4  100 %     RoPE's angles in float32
  llama.cpp 11434, file made F32, K/V F32            6.1e-10  9.4e-4  100 %     the same; without flash attention
  llama.cpp 11434, file made F32, K/V F16            1.5e-6   2.7e-2  99.97 %   so F32 files are judged with kv_type f32
  llama.cpp 11434, the Q4_1 file itself, K/V F16     3.3e-3   1.4     96.3 %    activations in 8 bits
On tiny random models (F32, F16, BF16, Q8_0, Q4_0, Q4_1; a head of its own) transformers agrees to 2e-5; llama.cpp on
the F32 ones to 1e-4, one with frequency factors of RoPE among them.
"""

import argparse
import gzip
import hashlib
import json
import sys

import numpy as np

import gguf_weights

QUERY_ROWS = 256  # rows whose attention scores or logits are held at once


class UnsupportedModel(ValueError):
    """The model needs something that this forward pass does not do; the text says what."""


class Llama:
    """The llama architecture over a Gguf; every product in `dtype`."""

    def __init__(self, gguf, dtype=np.float64):
        self.gguf, self.dtype = gguf, dtype
        arch = gguf.meta.get("general.architecture")
        if arch != "llama":
            raise UnsupportedModel(f"{gguf.path}: architecture {arch}; the oracle knows llama")
        key = lambda name, default=None: gguf.meta.get("llama." + name, default)
        if key("expert_count", 0):
            raise UnsupportedModel(f"{gguf.path}: experts are not known to the oracle")
        self.layers, self.dim = key("block_count"), key("embedding_length")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        if isinstance(self.heads, list) or isinstance(self.kv_heads, list):
            raise UnsupportedModel(f"{gguf.path}: head counts that differ by layer are not known to the oracle")
        self.head_dim = key("attention.key_length", self.dim // self.heads)
        self.value_dim = key("attention.value_length", self.head_dim)
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.scale = key("attention.scale", 0.0) or 1.0 / np.sqrt(self.head_dim)
        self.frequencies = self.rope_frequencies(key)
        self.embedding = gguf.tensor("token_embd.weight", np.float32)
        self.head = gguf.tensor("output.weight", np.float32) if "output.weight" in gguf else self.embedding

    def rope_frequencies(self, key):
        """Radians per position of each pair of dimensions, float64 [pairs]."""
        rotated = key("rope.dimension_count", self.head_dim)
        frequencies = float(key("rope.freq_base", 10000.0)) ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
        if "rope_freqs.weight" in self.gguf:
            frequencies = frequencies / self.gguf.tensor("rope_freqs.weight", np.float64)
        scaling = key("rope.scaling.type", "linear")  # llama.cpp's default; without a factor it changes nothing
        factor = key("rope.scaling.factor", key("rope.scale_linear", 0.0))
        if scaling == "linear":
            frequencies = frequencies / (factor or 1.0)
        elif scaling != "none":
            raise UnsupportedModel(f"{self.gguf.path}: RoPE scaling {scaling} is not known to the oracle")
        return frequencies

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.dtype(self.eps)) * self.weight(name)

    def weight(self, name):
        return self.gguf.tensor(name, self.dtype)

    def linear(self, x, name):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.gguf else y

    def rotate(self, x):
        """RoPE on [tokens, heads, head_dim]: dimensions 2p and 2p + 1 are a pair (GGUF's order for llama)."""
        n = 2 * len(self.frequencies)
        angles = np.arange(len(x), dtype=np.float64)[:, None, None] * self.frequencies
        cos, sin = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        even, odd = x[..., 0:n:2], x[..., 1:n:2]
        out = x.copy()
        out[..., 0:n:2] = even * cos - odd * sin
        out[..., 1:n:2] = even * sin + odd * cos
        return out

    def attention(self, x, prefix):
        n, group = len(x), self.heads // self.kv_heads
        q = self.rotate(self.linear(x, prefix + "attn_q").reshape(n, self.heads, self.head_dim))
        k = self.rotate(self.linear(x, prefix + "attn_k").reshape(n, self.kv_heads, self.head_dim))
        v = self.linear(x, prefix + "attn_v").reshape(n, self.kv_heads, self.value_dim)
        out = np.empty((n, self.heads, self.value_dim), self.dtype)
        for head in range(self.heads):
            keys, values = k[:, head // group], v[:, head // group]
            for begin in range(0, n, QUERY_ROWS):
                end = min(begin + QUERY_ROWS, n)
                scores = q[begin:end, head] @ keys[:end].T * self.dtype(self.scale)
                scores[np.arange(end)[None, :] > np.arange(begin, end)[:, None]] = -np.inf
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                out[begin:end, head] = scores @ values[:end] / scores.sum(axis=1, keepdims=True)
        return self.linear(out.reshape(n, -1), prefix + "attn_output")

    def feed_forward(self, x, prefix):
        gate = self.linear(x, prefix + "ffn_gate")
        with np.errstate(over="ignore"):  # exp(-gate) may be infinite: the limit 0 is right
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * self.linear(x, prefix + "ffn_up"), prefix + "ffn_down")

    def rows(self, ids):
        """Yields logits [up to QUERY_ROWS, vocabulary] in order of position."""
        x = self.embedding[np.asarray(ids)].astype(self.dtype)
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            x = x + self.attention(self.norm(x, prefix + "attn_norm.weight"), prefix)
            x = x + self.feed_forward(self.norm(x, prefix + "ffn_norm.weight"), prefix)
        x = self.norm(x, "output_norm.weight")
        head = self.head.astype(self.dtype).T
        for begin in range(0, len(x), QUERY_ROWS):
            yield x[begin:begin + QUERY_ROWS] @ head


def log_sum_exp(rows):
    top = rows.max(axis=1, keepdims=True)
    return (top + np.log(np.exp(rows - top).sum(axis=1, keepdims=True)))[:, 0]


def top_entries(rows, k):
    """Ids [rows, k], largest first, equal ones by id."""
    return np.argsort(-rows, axis=1, kind="stable")[:, :k]


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            sha.update(part)
    return sha.hexdigest()


def describe(path, model):
    """What OUT says of the model."""
    return {"model_sha256": digest(path), "dtype": np.dtype(model.dtype).name, "n_vocab": len(model.head)}


def summarise(model, ids, top, raw=None):
    """Runs `ids` through the model; returns what OUT holds of them. `raw`: a file to write rows to."""
    result = {"ids": [int(i) for i in ids], "top_ids": [], "top_logprobs": [], "log_sum_exp": [], "next_logprobs": []}
    position = 0
    for rows in model.rows(ids):
        total = log_sum_exp(rows)
        best = top_entries(rows, top)
        result["top_ids"] += best.tolist()
        result["top_logprobs"] += (np.take_along_axis(rows, best, 1) - total[:, None]).round(6).tolist()
        result["log_sum_exp"] += total.round(6).tolist()
        following = ids[position + 1:position + 1 + len(rows)]
        result["next_logprobs"] += [round(float(rows[i, id] - total[i]), 6) for i, id in enumerate(following)]
        if raw:
            rows.astype("<f4").tofile(raw)
        position += len(rows)
    return result


def write_result(path, result):
    text = json.dumps(result, separators=(",", ":"))
    if path.endswith(".gz"):
        # No time and no name inside, so that the same input gives the same file.
        with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as out:
            out.write(text.encode())
    else:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("ids", help="JSON array of token ids")
    parser.add_argument("out", help="JSON; gzip if the name ends in .gz")
    parser.add_argument("--top", type=int, default=64)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--raw", help="write all logits rows here, float32 little-endian [positions, vocabulary]")
    args = parser.parse_args()
    with open(args.ids, encoding="utf-8") as file:
        ids = json.load(file)
    try:
        model = Llama(gguf_weights.Gguf(args.model), np.dtype(args.dtype).type)
        bad = [i for i in ids if not 0 <= i < len(model.embedding)]
        if bad or not ids:
            raise UnsupportedModel(f"{args.ids}: " + (f"id {bad[0]} is outside the vocabulary" if bad else "no ids"))
        raw = open(args.raw, "wb") if args.raw else None
        result = summarise(model, ids, args.top, raw)
    except (gguf_weights.GgufError, UnsupportedModel) as error:
        sys.exit(f"logits_oracle: {error}")
    if raw:
        raw.close()
    write_result(args.out, describe(args.model, model) | result)


if __name__ == "__main__":
    main()
