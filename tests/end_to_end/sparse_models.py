"""Files of real models' shapes: true headers and true length, all weights holes. A 50 GB model takes a few megabytes of disk.

The shapes are those of Qwen3.5-27B (qwen35: dense, with one next-token-prediction block), Qwen3-Next-80B-A3B (qwen3next:
experts) and Qwen3.5-35B-A3B (qwen35moe), the types a mix as Q4_K_M files have it.
"""
import math
import struct

# type: (id, elements of a block, bytes of a block)
TYPES = {"F32": (0, 1, 4), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210)}
ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5


class Tensor:
    def __init__(self, name, kind, *dims):
        self.name, self.kind, self.dims = name, kind, dims
        _, block, block_bytes = TYPES[kind]
        assert dims[0] % block == 0, name
        self.elements = math.prod(dims)
        self.bytes = self.elements // block * block_bytes

    @property
    def layer(self):
        return int(self.name.split(".")[1]) if self.name.startswith("blk.") else None


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, item):
    if kind == STRING:
        return string(item)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}[kind], item)


def entry(key, kind, item):
    if isinstance(item, list):
        return string(key) + struct.pack("<IIQ", ARRAY, kind, len(item)) + b"".join(value(kind, one) for one in item)
    return string(key) + struct.pack("<I", kind) + value(kind, item)


class Model:
    def __init__(self, architecture, keys, tensors, n_vocab):
        p = architecture + "."
        tokens = [f"t{i}" for i in range(n_vocab)]
        self.entries = [entry("general.architecture", STRING, architecture), entry("tokenizer.ggml.model", STRING, "gpt2"),
                        entry("tokenizer.ggml.pre", STRING, "qwen2"), entry("tokenizer.ggml.tokens", STRING, tokens),
                        entry("tokenizer.ggml.token_type", I32, [1] * n_vocab), entry("tokenizer.ggml.merges", STRING, ["t 1"])]
        for name, kind, item in keys:
            self.entries.append(entry(p + name, kind, item))
        self.tensors = tensors

    @property
    def parameters(self):
        return sum(t.elements for t in self.tensors)

    def bytes_of(self, begin, end, last):
        """Weights of the layers [begin, end), with the embedding on the first stage and the head on the last."""
        total = sum(t.bytes for t in self.tensors if t.layer is not None and begin <= t.layer < end)
        for t in self.tensors:
            if (t.name == "token_embd.weight" and begin == 0) or (t.name.startswith("output") and last):
                total += t.bytes
        return total

    def types(self):
        counts = {}
        for t in self.tensors:
            counts[t.kind] = counts.get(t.kind, 0) + 1
        return counts

    def write(self, path):
        infos, offset = [], 0
        for t in self.tensors:
            infos.append(string(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, TYPES[t.kind][0], offset))
            offset += -(-t.bytes // ALIGNMENT) * ALIGNMENT
        header = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.entries)) + b"".join(self.entries) + b"".join(infos)
        with open(path, "wb") as file:
            file.write(header + bytes(-len(header) % ALIGNMENT))
            file.truncate(file.tell() + offset)
        return path


def hybrid_keys(embd, layers, heads, kv_heads, key_heads, value_heads):
    return [("block_count", U32, layers), ("context_length", U32, 262144), ("embedding_length", U32, embd),
            ("attention.head_count", U32, heads), ("attention.head_count_kv", U32, kv_heads), ("attention.key_length", U32, 256),
            ("attention.value_length", U32, 256), ("attention.layer_norm_rms_epsilon", F32, 1e-6), ("rope.dimension_count", U32, 64),
            ("rope.freq_base", F32, 1e7), ("full_attention_interval", U32, 4), ("ssm.conv_kernel", U32, 4), ("ssm.state_size", U32, 128),
            ("ssm.group_count", U32, key_heads), ("ssm.time_step_rank", U32, value_heads), ("ssm.inner_size", U32, 128 * value_heads)]


def attention(i, embd, heads, kv_heads):
    p = f"blk.{i}."
    return [Tensor(p + "attn_q.weight", "Q4_K", embd, 2 * heads * 256), Tensor(p + "attn_k.weight", "Q4_K", embd, kv_heads * 256),
            Tensor(p + "attn_v.weight", "Q6_K", embd, kv_heads * 256), Tensor(p + "attn_output.weight", "Q4_K", heads * 256, embd),
            Tensor(p + "attn_q_norm.weight", "F32", 256), Tensor(p + "attn_k_norm.weight", "F32", 256)]


def recurrent(i, embd, key_heads, value_heads, fused):
    p, inner = f"blk.{i}.", 128 * value_heads
    channels = 2 * 128 * key_heads + inner
    tensors = [Tensor(p + "attn_qkv.weight", "Q5_K", embd, channels), Tensor(p + "attn_gate.weight", "Q4_K", embd, inner),
               Tensor(p + "ssm_conv1d.weight", "F32", 4, channels), Tensor(p + "ssm_a", "F32", value_heads),
               Tensor(p + "ssm_dt.bias", "F32", value_heads), Tensor(p + "ssm_norm.weight", "F32", 128),
               Tensor(p + "ssm_out.weight", "Q5_K", inner, embd)]
    if fused:
        return tensors + [Tensor(p + "ssm_ba.weight", "F32", embd, 2 * value_heads)]
    return tensors + [Tensor(p + name, "F32", embd, value_heads) for name in ("ssm_alpha.weight", "ssm_beta.weight")]


def norms(i, embd):
    return [Tensor(f"blk.{i}.{name}.weight", "F32", embd) for name in ("attn_norm", "post_attention_norm")]


def ends(embd, n_vocab):
    return [Tensor("token_embd.weight", "Q4_K", embd, n_vocab), Tensor("output_norm.weight", "F32", embd),
            Tensor("output.weight", "Q6_K", embd, n_vocab)]


def qwen35_27b():
    embd, layers, ff, vocab = 5120, 64, 17408, 248320
    keys = hybrid_keys(embd, layers + 1, 24, 4, 16, 48) + [
        ("feed_forward_length", U32, ff), ("rope.dimension_sections", I32, [11, 11, 10, 0]), ("nextn_predict_layers", U32, 1)]
    tensors = ends(embd, vocab)
    for i in range(layers + 1):
        p = f"blk.{i}."
        full = i % 4 == 3 or i == layers
        tensors += norms(i, embd) + (attention(i, embd, 24, 4) if full else recurrent(i, embd, 16, 48, fused=False))
        tensors += [Tensor(p + "ffn_gate.weight", "Q4_K", embd, ff), Tensor(p + "ffn_up.weight", "Q4_K", embd, ff),
                    Tensor(p + "ffn_down.weight", "Q6_K", ff, embd)]
    p = f"blk.{layers}.nextn."
    tensors += [Tensor(p + "eh_proj.weight", "Q4_K", 2 * embd, embd), Tensor(p + "enorm.weight", "F32", embd),
                Tensor(p + "hnorm.weight", "F32", embd), Tensor(p + "shared_head_norm.weight", "F32", embd)]
    return Model("qwen35", keys, tensors, vocab)


def with_experts(architecture, layers, experts, used, vocab, more_keys):
    embd, width = 2048, 512
    fused = architecture == "qwen3next"
    keys = hybrid_keys(embd, layers, 16, 2, 16, 32) + more_keys + [
        ("feed_forward_length", U32, 5120), ("expert_count", U32, experts), ("expert_used_count", U32, used),
        ("expert_feed_forward_length", U32, width), ("expert_shared_feed_forward_length", U32, width)]
    tensors = ends(embd, vocab)
    for i in range(layers):
        p = f"blk.{i}."
        tensors += norms(i, embd) + (attention(i, embd, 16, 2) if i % 4 == 3 else recurrent(i, embd, 16, 32, fused))
        tensors += [Tensor(p + "ffn_gate_inp.weight", "F32", embd, experts), Tensor(p + "ffn_gate_exps.weight", "Q4_K", embd, width, experts),
                    Tensor(p + "ffn_up_exps.weight", "Q4_K", embd, width, experts), Tensor(p + "ffn_down_exps.weight", "Q6_K", width, embd, experts),
                    Tensor(p + "ffn_gate_inp_shexp.weight", "F32", embd), Tensor(p + "ffn_gate_shexp.weight", "Q5_K", embd, width),
                    Tensor(p + "ffn_up_shexp.weight", "Q5_K", embd, width), Tensor(p + "ffn_down_shexp.weight", "Q6_K", width, embd)]
    return Model(architecture, keys, tensors, vocab)


def qwen3next_80b():
    return with_experts("qwen3next", 48, 512, 10, 151936, [])


def qwen35moe_35b():
    return with_experts("qwen35moe", 40, 256, 8, 248320, [("rope.dimension_sections", I32, [11, 11, 10, 0])])
