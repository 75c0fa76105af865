"""Every architecture's forward pass in double precision on exactly dequantised weights, numpy alone: what quantised files
are judged by. It stands on logits_oracle.Llama (norms, products, top lists) and is itself judged by transformers
(test_models.py compares it with tests/golden/model_*.json.gz).

`load(gguf)` gives the model of a file; it has what logits_oracle.summarise asks for.
"""

import numpy as np

import logits_oracle
from logits_oracle import QUERY_ROWS, UnsupportedModel


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def clamped_swiglu(gate, up):
    gate = np.minimum(gate, 7.0)
    return gate * sigmoid(1.702 * gate) * (np.clip(up, -7.0, 7.0) + 1)


class Model(logits_oracle.Llama):
    """The parts that architectures are put together from. A subclass says which and in what order."""

    neox = True                 # pairs are the halves of the rotated dims, not neighbours
    activation = staticmethod(lambda gate, up: silu(gate) * up)

    def __init__(self, gguf, dtype=np.float64):
        self.gguf, self.dtype = gguf, dtype
        self.arch = gguf.meta["general.architecture"]
        self.layers = self.key("block_count") - self.key("nextn_predict_layers", 0)
        self.dim = self.key("embedding_length")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.head_dim = self.key("attention.key_length", self.dim // self.heads)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.scale = 1.0 / np.sqrt(self.head_dim)
        self.window = self.key("attention.sliding_window", 0)
        self.experts, self.used = self.key("expert_count", 0), self.key("expert_used_count", 0)
        self.embedding = gguf.tensor("token_embd.weight", np.float32)
        self.head = gguf.tensor("output.weight", np.float32) if "output.weight" in gguf else self.embedding

    def key(self, name, default=None):
        return self.gguf.meta.get(f"{self.arch}.{name}", default)

    # --- what a subclass may change

    def is_window(self, layer):
        return False

    def frequencies_of(self, layer):
        """Radians per position of each pair, and the factor on cos and sin."""
        rotated = self.key("rope.dimension_count", self.head_dim)
        base = float(self.key("rope.freq_base", 10000.0))
        frequencies = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
        if "rope_freqs.weight" in self.gguf:
            frequencies = frequencies / self.weight("rope_freqs.weight")
        return frequencies, 1.0

    def layer(self, x, layer, prefix):
        x = x + self.attention_of(self.norm(x, prefix + "attn_norm.weight"), layer, prefix)
        return x + self.mlp(self.norm(x, prefix + "ffn_norm.weight"), prefix)

    # --- parts

    def turn(self, x, layer):
        """RoPE on [tokens, heads, head_dim]."""
        frequencies, magnitude = self.frequencies_of(layer)
        n = 2 * len(frequencies)
        angles = np.arange(len(x), dtype=np.float64)[:, None, None] * frequencies
        cos, sin = (magnitude * f(angles) for f in (np.cos, np.sin))
        first = slice(0, n // 2) if self.neox else slice(0, n, 2)
        second = slice(n // 2, n) if self.neox else slice(1, n, 2)
        a, b, out = x[..., first], x[..., second], x.copy()
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out

    def attention_of(self, x, layer, prefix):
        n, group = len(x), self.heads // self.kv_heads
        q = self.linear(x, prefix + "attn_q").reshape(n, self.heads, -1)
        gate, q = q[..., self.head_dim:], q[..., :self.head_dim]
        k = self.linear(x, prefix + "attn_k").reshape(n, self.kv_heads, -1)
        v = self.linear(x, prefix + "attn_v").reshape(n, self.kv_heads, -1)
        if prefix + "attn_q_norm.weight" in self.gguf:
            q, k = self.norm(q, prefix + "attn_q_norm.weight"), self.norm(k, prefix + "attn_k_norm.weight")
        q, k = self.turn(q, layer), self.turn(k, layer)
        sinks = prefix + "attn_sinks.weight"
        sinks = self.weight(sinks) if sinks in self.gguf else np.full(self.heads, -np.inf)
        window = self.window if self.is_window(layer) else n
        out = np.empty((n, self.heads, v.shape[-1]), self.dtype)
        for head in range(self.heads):
            keys, values = k[:, head // group], v[:, head // group]
            for begin in range(0, n, QUERY_ROWS):
                end = min(begin + QUERY_ROWS, n)
                scores = q[begin:end, head] @ keys[:end].T * self.scale
                distance = np.arange(begin, end)[:, None] - np.arange(end)[None, :]
                scores[(distance < 0) | (distance >= window)] = -np.inf
                top = np.maximum(scores.max(axis=1, keepdims=True), sinks[head])
                scores = np.exp(scores - top)
                total = scores.sum(axis=1, keepdims=True) + np.exp(sinks[head] - top)
                out[begin:end, head] = scores @ values[:end] / total
        if gate.shape[-1]:
            out = out * sigmoid(gate)
        return self.linear(out.reshape(n, -1), prefix + "attn_output")

    def gated(self, x, prefix, suffix=""):
        gate, up = (self.linear(x, f"{prefix}ffn_{name}{suffix}") for name in ("gate", "up"))
        return self.linear(self.activation(gate, up), f"{prefix}ffn_down{suffix}")

    def mlp(self, x, prefix):
        if not self.experts:
            return self.gated(x, prefix)
        logits = self.linear(x, prefix + "ffn_gate_inp")
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, :self.used]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights = np.take_along_axis(weights, chosen, 1)
        weights = weights / weights.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(self.experts):
            rows, place = np.nonzero(chosen == expert)
            if len(rows):
                out[rows] += weights[rows, place][:, None] * self.expert(x[rows], expert, prefix)
        if prefix + "ffn_gate_inp_shexp.weight" in self.gguf:
            share = sigmoid(x @ self.weight(prefix + "ffn_gate_inp_shexp.weight"))
            out += share[:, None] * self.gated(x, prefix, "_shexp")
        return out

    def expert(self, x, expert, prefix):
        def product(rows, name):
            y = rows @ self.weight(f"{prefix}ffn_{name}_exps.weight")[expert].T
            bias = f"{prefix}ffn_{name}_exps.bias"
            return y + self.weight(bias)[expert] if bias in self.gguf else y
        return product(self.activation(product(x, "gate"), product(x, "up")), "down")

    def rows(self, ids):
        x = self.embedding[np.asarray(ids)].astype(self.dtype) * self.embedding_scale()
        for layer in range(self.layers):
            x = self.layer(x, layer, f"blk.{layer}.")
        x = self.norm(x, "output_norm.weight")
        head = self.head.astype(self.dtype).T
        for begin in range(0, len(x), QUERY_ROWS):
            yield x[begin:begin + QUERY_ROWS] @ head

    def embedding_scale(self):
        return 1.0


class Llama(Model):
    neox = False


class Gemma3(Model):
    activation = staticmethod(lambda gate, up: gelu_tanh(gate) * up)

    def embedding_scale(self):
        return np.sqrt(self.dim)

    def is_window(self, layer):
        period = self.key("attention.sliding_window_pattern", 6)
        return self.window > 0 and layer % period < period - 1

    def frequencies_of(self, layer):
        rotated = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        if self.is_window(layer):
            return float(self.key("rope.freq_base_swa", 10000.0)) ** -rotated, 1.0
        return float(self.key("rope.freq_base")) ** -rotated / self.key("rope.scaling.factor", 1.0), 1.0

    def layer(self, x, layer, prefix):
        y = self.attention_of(self.norm(x, prefix + "attn_norm.weight"), layer, prefix)
        x = x + self.norm(y, prefix + "post_attention_norm.weight")
        y = self.mlp(self.norm(x, prefix + "ffn_norm.weight"), prefix)
        return x + self.norm(y, prefix + "post_ffw_norm.weight")


class GptOss(Model):
    activation = staticmethod(clamped_swiglu)

    def is_window(self, layer):
        return layer % 2 == 0

    def frequencies_of(self, layer):
        n, base = self.key("rope.dimension_count", self.head_dim), float(self.key("rope.freq_base"))
        factor, context = self.key("rope.scaling.factor"), self.key("rope.scaling.original_context_length")

        def dim(beta):
            return n * np.log(context / (2 * np.pi * beta)) / (2 * np.log(base))

        low, high = max(0, np.floor(dim(32.0))), min(n - 1, np.ceil(dim(1.0)))
        keep = 1 - np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0, 1)
        theta = base ** (-np.arange(0, n, 2, dtype=np.float64) / n)
        return theta * ((1 - keep) / factor + keep), 1 + 0.1 * np.log(factor)

    def layer(self, x, layer, prefix):
        x = x + self.attention_of(self.norm(x, prefix + "attn_norm.weight"), layer, prefix)
        return x + self.mlp(self.norm(x, prefix + "post_attention_norm.weight"), prefix)


class QwenHybrid(Model):
    def layer(self, x, layer, prefix):
        mixer = self.delta_net if prefix + "ssm_a" in self.gguf else lambda y, p: self.attention_of(y, layer, p)
        x = x + mixer(self.norm(x, prefix + "attn_norm.weight"), prefix)
        return x + self.mlp(self.norm(x, prefix + "post_attention_norm.weight"), prefix)

    def logits_of_state(self, x, prefix):
        """beta's and alpha's logits, [tokens, value_heads] each."""
        if prefix + "ssm_ba.weight" not in self.gguf:
            return self.linear(x, prefix + "ssm_beta"), self.linear(x, prefix + "ssm_alpha")
        key_heads, value_heads = self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        both = self.linear(x, prefix + "ssm_ba").reshape(len(x), key_heads, 2, value_heads // key_heads)
        return both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)

    def delta_net(self, x, prefix):
        n, d = len(x), self.key("ssm.state_size")
        key_heads, value_heads = self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        taps = self.key("ssm.conv_kernel")
        u, z = self.linear(x, prefix + "attn_qkv"), self.linear(x, prefix + "attn_gate")
        b, a = self.logits_of_state(x, prefix)
        kernel = self.weight(prefix + "ssm_conv1d.weight")  # [channels, taps]
        padded = np.concatenate([np.zeros((taps - 1, u.shape[1])), u])
        c = silu(sum(padded[t:t + n] * kernel[:, t] for t in range(taps)))
        q, k, v = np.split(c, [key_heads * d, 2 * key_heads * d], axis=1)
        q, k = (y.reshape(n, key_heads, d) for y in (q, k))
        q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        v = v.reshape(n, value_heads, d)
        heads = np.arange(value_heads)
        owner = heads // (value_heads // key_heads) if self.arch == "qwen3next" else heads % key_heads
        q, k = q[:, owner] / np.sqrt(d), k[:, owner]
        decay = np.exp(self.weight(prefix + "ssm_a") * np.logaddexp(0, a + self.weight(prefix + "ssm_dt.bias")))
        beta = sigmoid(b)
        state, out = np.zeros((value_heads, d, d)), np.empty((n, value_heads, d))  # state: [head, key, value]
        for t in range(n):
            state *= decay[t][:, None, None]
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = self.norm(out, prefix + "ssm_norm.weight").reshape(n, -1) * silu(z)
        return self.linear(out, prefix + "ssm_out")


ARCHITECTURES = {"llama": Llama, "qwen2": Model, "qwen3": Model, "qwen3moe": Model, "gemma3": Gemma3,
                 "qwen3next": QwenHybrid, "qwen35": QwenHybrid, "qwen35moe": QwenHybrid, "gpt-oss": GptOss}


def load(gguf, dtype=np.float64):
    arch = gguf.meta.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedModel(f"{gguf.path}: architecture {arch} is not known to the oracle")
    return ARCHITECTURES[arch](gguf, dtype)
