"""Hugging Face transformers' models with the weights of a GGUF file, in float32: the independent judge of every
architecture. Undoes what the GGUF converter did to the weights (facts of the format, not of Layover's code): rows of
llama's queries and keys reordered, 1 added to some norms, value heads dealt out in turn, -exp(A_log).
"""

import numpy as np
import torch
import transformers


class Source:
    """A gguf_weights.Gguf with shorter names."""

    def __init__(self, gguf):
        self.gguf, self.arch = gguf, gguf.meta["general.architecture"]

    def key(self, name, default=None):
        return self.gguf.meta.get(f"{self.arch}.{name}", default)

    def get(self, name):
        return torch.from_numpy(np.array(self.gguf.tensor(name, np.float32)))

    def has(self, name):
        return name in self.gguf


def common_config(s):
    layers = s.key("block_count") - s.key("nextn_predict_layers", 0)
    return {"vocab_size": s.gguf.tensors["token_embd.weight"][0][1], "hidden_size": s.key("embedding_length"),
            "intermediate_size": s.key("feed_forward_length", 1), "num_hidden_layers": layers,
            "num_attention_heads": s.key("attention.head_count"),
            "num_key_value_heads": s.key("attention.head_count_kv"), "head_dim": s.key("attention.key_length"),
            "rms_norm_eps": s.key("attention.layer_norm_rms_epsilon"), "max_position_embeddings": 4096,
            "tie_word_embeddings": not s.has("output.weight"), "attn_implementation": "eager",
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def plain_rope(s, **more):
    return {"rope_type": "default", "rope_theta": s.key("rope.freq_base"), **more}


def experts_config(s):
    return {"num_experts": s.key("expert_count"), "num_experts_per_tok": s.key("expert_used_count"),
            "moe_intermediate_size": s.key("expert_feed_forward_length"), "norm_topk_prob": True}


def hybrid_config(s, rope):
    n = s.key("block_count") - s.key("nextn_predict_layers", 0)
    interval, dim = s.key("full_attention_interval", 4), s.key("ssm.state_size")
    kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)]
    return {"layer_types": kinds, "linear_num_key_heads": s.key("ssm.group_count"),
            "linear_num_value_heads": s.key("ssm.time_step_rank"), "linear_key_head_dim": dim,
            "linear_value_head_dim": dim, "linear_conv_kernel_dim": s.key("ssm.conv_kernel"),
            "rope_parameters": rope | {"partial_rotary_factor": s.key("rope.dimension_count") / s.key("attention.key_length")}}


def shared_config(s):
    return experts_config(s) | {"shared_expert_intermediate_size": s.key("expert_shared_feed_forward_length")}


def build(s):
    """The model, weights not yet set."""
    base = common_config(s)
    if s.arch == "llama" and not s.key("expert_count"):
        # The file holds the factors that come of these numbers (tests/gguf/tiny_models.cc).
        rope = plain_rope(s, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**base, rope_parameters=rope | {"rope_type": "llama3"}))
    if s.arch == "llama":
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **base | {"intermediate_size": s.key("feed_forward_length")}, num_local_experts=s.key("expert_count"),
            num_experts_per_tok=s.key("expert_used_count"), rope_parameters=plain_rope(s)))
    if s.arch == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**base, rope_parameters=plain_rope(s)))
    if s.arch == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**base, rope_parameters=plain_rope(s)))
    if s.arch == "qwen3moe":
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **base, **experts_config(s), rope_parameters=plain_rope(s)))
    if s.arch == "gemma3":
        period = s.key("attention.sliding_window_pattern")
        kinds = ["sliding_attention" if i % period < period - 1 else "full_attention"
                 for i in range(base["num_hidden_layers"])]
        rope = {"full_attention": plain_rope(s) | {"rope_type": "linear", "factor": s.key("rope.scaling.factor")},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
            **base, layer_types=kinds, sliding_window=s.key("attention.sliding_window"), rope_parameters=rope,
            query_pre_attn_scalar=base["head_dim"]))
    if s.arch == "qwen3next":
        return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
            **base, **shared_config(s), **hybrid_config(s, plain_rope(s))))
    if s.arch in ("qwen35", "qwen35moe"):
        rope = plain_rope(s) | {"mrope_section": s.key("rope.dimension_sections")[:3], "mrope_interleaved": True}
        if s.arch == "qwen35":
            return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**base, **hybrid_config(s, rope)))
        return transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(
            **base, **shared_config(s), **hybrid_config(s, rope)))
    if s.arch == "gpt-oss":
        rope = plain_rope(s) | {"rope_type": "yarn", "factor": s.key("rope.scaling.factor"), "beta_fast": 32.0,
                                "beta_slow": 1.0, "truncate": True, "original_max_position_embeddings":
                                s.key("rope.scaling.original_context_length")}
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(base["num_hidden_layers"])]
        return transformers.GptOssForCausalLM(transformers.GptOssConfig(
            **base | {"intermediate_size": s.key("expert_feed_forward_length")}, num_local_experts=s.key("expert_count"),
            num_experts_per_tok=s.key("expert_used_count"), sliding_window=s.key("attention.sliding_window"),
            rope_parameters=rope, layer_types=kinds))
    raise ValueError(f"{s.arch}: no transformers model is known for it")


def halves(weight, heads):
    """Rows of neighbouring pairs to rows of halves, within each head."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).transpose(1, 2).reshape(rows, cols)


class Converter:
    """GGUF's tensors under transformers' names."""

    def __init__(self, s):
        self.s, self.state = s, {}
        self.shift = 1.0 if s.arch == "gemma3" or s.arch.startswith(("qwen3next", "qwen35")) else 0.0

    def norm(self, theirs, ours):
        self.state[theirs] = self.s.get(ours) - self.shift

    def run(self):
        s = self.s
        self.state["model.embed_tokens.weight"] = s.get("token_embd.weight")
        self.state["lm_head.weight"] = s.get("output.weight" if s.has("output.weight") else "token_embd.weight")
        self.norm("model.norm.weight", "output_norm.weight")
        for i in range(s.key("block_count") - s.key("nextn_predict_layers", 0)):
            ours, theirs = f"blk.{i}.", f"model.layers.{i}."
            self.norm(theirs + "input_layernorm.weight", ours + "attn_norm.weight")
            if s.has(ours + "ssm_a"):
                self.delta_net(ours, theirs + "linear_attn.")
            else:
                self.attention(ours, theirs + "self_attn.")
            self.feed_forward_norms(ours, theirs)
            if s.has(ours + "ffn_gate_inp.weight"):
                self.experts(ours, theirs + "mlp.")
            else:
                for name in ("gate", "up", "down"):
                    self.state[f"{theirs}mlp.{name}_proj.weight"] = s.get(f"{ours}ffn_{name}.weight")
        return self.state

    def feed_forward_norms(self, ours, theirs):
        if self.s.arch == "gemma3":
            self.norm(theirs + "post_attention_layernorm.weight", ours + "post_attention_norm.weight")
            self.norm(theirs + "pre_feedforward_layernorm.weight", ours + "ffn_norm.weight")
            self.norm(theirs + "post_feedforward_layernorm.weight", ours + "post_ffw_norm.weight")
            return
        own = "ffn_norm" if self.s.has(ours + "ffn_norm.weight") else "post_attention_norm"
        self.norm(theirs + "post_attention_layernorm.weight", f"{ours}{own}.weight")

    def attention(self, ours, theirs):
        s = self.s
        for name, other in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj")):
            weight = s.get(f"{ours}attn_{name}.weight")
            if s.arch == "llama" and name in "qk":
                weight = halves(weight, s.key("attention.head_count" if name == "q" else "attention.head_count_kv"))
            self.state[f"{theirs}{other}.weight"] = weight
            if s.has(f"{ours}attn_{name}.bias"):
                self.state[f"{theirs}{other}.bias"] = s.get(f"{ours}attn_{name}.bias")
        for name in ("q_norm", "k_norm"):
            if s.has(f"{ours}attn_{name}.weight"):
                self.norm(f"{theirs}{name}.weight", f"{ours}attn_{name}.weight")
        if s.has(ours + "attn_sinks.weight"):
            self.state[theirs + "sinks"] = s.get(ours + "attn_sinks.weight")

    def delta_net(self, ours, theirs):
        s = self.s
        key_heads, value_heads, d = s.key("ssm.group_count"), s.key("ssm.time_step_rank"), s.key("ssm.state_size")
        r, k = value_heads // key_heads, key_heads * d
        fused = s.arch == "qwen3next"
        # Theirs: head kappa * r + j; ours in qwen35 and qwen35moe: head j * key_heads + kappa.
        order = torch.arange(value_heads) if fused else torch.arange(value_heads).reshape(r, key_heads).T.flatten()

        def heads(x):  # [value_heads * n, ...] into their order
            return x.reshape(value_heads, -1, *x.shape[1:])[order].reshape(x.shape)

        qkv, z = s.get(ours + "attn_qkv.weight"), heads(s.get(ours + "attn_gate.weight"))
        q, key, v = qkv[:k], qkv[k:2 * k], heads(qkv[2 * k:])
        if fused:
            parts = [x.reshape(key_heads, -1, x.shape[-1]) for x in (q, key, v, z)]
            self.state[theirs + "in_proj_qkvz.weight"] = torch.cat(parts, 1).reshape(-1, q.shape[-1])
            self.state[theirs + "in_proj_ba.weight"] = s.get(ours + "ssm_ba.weight")
        else:
            self.state[theirs + "in_proj_qkv.weight"] = torch.cat([q, key, v])
            self.state[theirs + "in_proj_z.weight"] = z
            self.state[theirs + "in_proj_b.weight"] = heads(s.get(ours + "ssm_beta.weight"))
            self.state[theirs + "in_proj_a.weight"] = heads(s.get(ours + "ssm_alpha.weight"))
        conv = s.get(ours + "ssm_conv1d.weight")
        self.state[theirs + "conv1d.weight"] = torch.cat([conv[:2 * k], heads(conv[2 * k:])])[:, None, :]
        self.state[theirs + "A_log"] = torch.log(-heads(s.get(ours + "ssm_a")))
        self.state[theirs + "dt_bias"] = heads(s.get(ours + "ssm_dt.bias"))
        self.state[theirs + "norm.weight"] = s.get(ours + "ssm_norm.weight")
        self.state[theirs + "out_proj.weight"] = heads(s.get(ours + "ssm_out.weight").T.contiguous()).T.contiguous()

    def experts(self, ours, theirs):
        s = self.s
        gate, up, down = (s.get(f"{ours}ffn_{name}_exps.weight") for name in ("gate", "up", "down"))
        router = "router" if s.arch == "gpt-oss" else "gate"
        self.state[f"{theirs}{router}.weight"] = s.get(ours + "ffn_gate_inp.weight")
        if s.arch == "gpt-oss":
            # Rows of gate and up take turns, and the matrices stand the other way round.
            self.state[theirs + "router.bias"] = s.get(ours + "ffn_gate_inp.bias")
            both = torch.stack([gate, up], 2).reshape(len(gate), -1, gate.shape[-1])
            self.state[theirs + "experts.gate_up_proj"] = both.transpose(1, 2).contiguous()
            biases = [s.get(f"{ours}ffn_{name}_exps.bias") for name in ("gate", "up")]
            self.state[theirs + "experts.gate_up_proj_bias"] = torch.stack(biases, 2).reshape(len(gate), -1)
            self.state[theirs + "experts.down_proj"] = down.transpose(1, 2).contiguous()
            self.state[theirs + "experts.down_proj_bias"] = s.get(ours + "ffn_down_exps.bias")
            return
        self.state[theirs + "experts.gate_up_proj"] = torch.cat([gate, up], 1)
        self.state[theirs + "experts.down_proj"] = down
        if s.has(ours + "ffn_gate_inp_shexp.weight"):
            self.state[theirs + "shared_expert_gate.weight"] = s.get(ours + "ffn_gate_inp_shexp.weight")[None]
            for name in ("gate", "up", "down"):
                self.state[f"{theirs}shared_expert.{name}_proj.weight"] = s.get(f"{ours}ffn_{name}_shexp.weight")


def load(gguf):
    """A transformers model in float32, ready to run."""
    torch.manual_seed(0)
    s = Source(gguf)
    model = build(s).float().eval()
    missing, unexpected = model.load_state_dict(Converter(s).run(), strict=False)
    if missing or unexpected:
        raise ValueError(f"{s.arch}: missing {missing}, unexpected {unexpected}")
    return model


@torch.no_grad()
def rows(model, ids):
    """Logits [positions, vocabulary] as float64."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()
