"""Makes smollm2_tokenizer.jsonl and smollm2_chat.jsonl with libraries that share no code with this project.

Refresh, from the project's root (any virtual environment; nothing here is needed to build or to test):
  pip install tokenizers==0.23.3 transformers==5.24.0 gguf numpy
  python tests/golden/make_text_goldens.py models/SmolLM2-135M-Instruct.Q4_1.gguf tests/golden

Ids come from Hugging Face's `tokenizers`: its BPE over the file's tokens and merges, its digit splitter and its own
byte-level pre-tokenizer, which are what SmolLM2 was trained with. Chats are rendered by `transformers`.
"""

import json
import pathlib
import random
import sys
import unicodedata

import gguf
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n", " \n ", "Hello", " Hello", "Hello world",
    "Hello, world!", " Hello  world ", "hello\nworld", "hello\r\nworld\r\n", "    def f(x):\n        return x ** 2\n",
    "a\u00a0b\u3000c\u2028d", "I'm you're he's we'll they'd I've can't", "I'M YOU'RE HE'S", "'s 't 'foo ''s",
    "it\u2019s", "0", "1234567890", "3.14159", "12 345", "\u0663\u0664", "\u00bd \u2167 \u00b2", "v1.2.3-rc4",
    "0xDEADbeef", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155\ud558\uc138\uc694", "\u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0928\u092e\u0938\u094d\u0924\u0947", "caf\u00e9 cafe\u0301 na\u00efve",
    "\U0001f680", "\U0001f44d\U0001f3fd \U0001f636\u200d\U0001f32b\ufe0f \U0001f1e9\U0001f1ea", "\u180e\u200b\ufeff",
    "\x00\x01\x07\x1b\x1c\x1f\x7f\x85", "!@#$%^&*()_+-=[]{}|;:'\",.<>/?`~", "<<>><<", "...!!!???", "====----____",
    "http://example.org/a?b=c&d=%20#e", "<|im_start|>user\nhi<|im_end|>", "<|im_start|", "<|endoftext|",
    "<filename>a.py<gh_stars>5", "The quick brown fox jumps over the lazy dog. " * 3, "a" * 300, " " * 65, "\n" * 33,
    "ab" * 77, "=" * 100, "SELECT name, COUNT(*) FROM t WHERE x >= 10 GROUP BY name;",
    "{\"a\": [1, 2.5, null, true], \"b\": \"\\u00e9\"}", "\u212bngstr\u00f6m \ufb01x \u01c5 \u1e9e \u0130",
    "x\u0332y\u20dd", "\U0001d518\U0001d52b\U0001d526", "\U00040000", "\U0010fffd\ue000",
]

CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c\n\nd "}],
    [{"role": "system", "content": ""}, {"role": "user", "content": " \u4f60\u597d \U0001f680 "}],
    [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "It's 3.14.\n```py\nprint(1)\n```"}],
]


def random_texts(n):
    """Assigned characters only: libraries differ in the version of Unicode they know (Python 3.11's is 14)."""
    generator = random.Random(20240611)
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    common = "abcdefghij ABC 0123456789 .,'!?<>|_\n\t\u00e9\u4e2d\u0416"
    for i in range(n):
        length = generator.randint(1, 60)
        share = (0.0, 0.1, 0.5, 1.0)[i % 4]
        yield "".join(generator.choice(assigned if generator.random() < share else common) for _ in range(length))


def make_tokenizer(fields):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = tokenizers.Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer, [text for text, kind in zip(tokens, types) if kind == 3]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows))


def main():
    model, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    fields = gguf.GGUFReader(model).fields
    tokenizer, control = make_tokenizer(fields)
    texts = TEXTS + list(random_texts(400))
    write_lines(folder / "smollm2_tokenizer.jsonl", [{"text": t, "ids": tokenizer.encode(t).ids} for t in texts])

    # From here on spellings of control tokens are those tokens.
    tokenizer.add_special_tokens(control)
    chat = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    chat.chat_template = fields["tokenizer.chat_template"].contents()
    rows = []
    for messages in CHATS:
        for prompt in (False, True):
            text = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            ids = tokenizer.encode(text).ids
            rows.append({"messages": messages, "add_generation_prompt": prompt, "text": text, "ids": ids})
    write_lines(folder / "smollm2_chat.jsonl", rows)


if __name__ == "__main__":
    main()
