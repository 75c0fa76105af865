"""Every architecture against independent oracles, through the real programs.

Tiny models of all architectures (make_tiny_model --arch) are judged by goldens that transformers made in float32
(tests/oracle/make_model_goldens.py) and llama.cpp (make_llama_cpp_goldens.py), their quantised forms by the double-precision
oracle on exactly dequantised weights, which runs here and is itself judged by the same goldens. Then the control: a model
with something wrong must fail.
"""
import json
import os
import sys
import unittest

from harness import BIN, SOURCE, Case, Server, layover, subprocess, topology

sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
import compare_logits  # noqa: E402
import gguf_weights  # noqa: E402
import logits_oracle  # noqa: E402
import model_oracle  # noqa: E402

GOLDEN = SOURCE / "tests" / "golden"
ARCHITECTURES = ["llama", "llama-moe", "qwen2", "qwen3", "qwen3moe", "gemma3", "qwen3next", "qwen35", "qwen35moe", "gpt-oss"]
FAULTS = {"qwen3next": ["attention-gate", "value-heads", "taps", "shared-gate"], "qwen35": ["attention-gate", "value-heads", "taps"],
          "qwen35moe": ["attention-gate", "value-heads", "taps", "shared-gate"], "gemma3": ["window", "local-rope"],
          "gpt-oss": ["window"]}
WEIGHT_TYPES = [name for name, _, _ in gguf_weights.TYPES.values()]
MAX_DELTA = 1e-3          # of log-probabilities over the oracle's top 20, F32 files
END = 2                   # the tiny models' end token
CLEAR_MARGIN = 1e-3       # a choice by less than this may go either way


def golden_of(name):
    return compare_logits.load_oracle(str(GOLDEN / f"model_{name}.json.gz"))


class ModelCase(Case):
    def model(self, name, *flags):
        path = self.folder / ("-".join([name, *flags]).replace("--", "") + ".gguf")
        if not path.exists():
            subprocess.run([BIN / "make_tiny_model", path, "--arch", name, *flags], check=True, stdout=subprocess.DEVNULL)
        return path

    def rows(self, model, ids, **keys):
        """`layover logits`: its rows in a file, and its JSON answer."""
        (self.folder / "ids.json").write_text(json.dumps(ids))
        (self.folder / "logits.yaml").write_text(topology(model, context=1024, sessions=1, **{"kv_type": "f32", **keys}))
        done = layover("logits", self.folder / "logits.yaml", self.folder / "ids.json", "--raw", self.folder / "rows")
        self.assertEqual(done.returncode, 0, done.stderr)
        return str(self.folder / "rows"), json.loads(done.stdout)

    def compare_with_golden(self, name, *flags, **keys):
        golden = golden_of(name)
        rows, answer = self.rows(self.model(name, *flags), golden["ids"], **keys)
        return compare_logits.compare_rows(golden, rows), answer, golden


class FloatModels(ModelCase):
    def test_log_probabilities_are_those_of_transformers(self):
        for name in ARCHITECTURES:
            with self.subTest(name):
                result, answer, golden = self.compare_with_golden(name)
                print(f"\n  {name}: {result}", file=sys.stderr)
                self.assertEqual(result.failures(max_delta=MAX_DELTA), [])
                self.check_greedy(answer, golden)

    def check_greedy(self, answer, golden):
        """The golden's last ids are what its model finds likeliest: so must Layover, unless it is a close call."""
        self.assertGreaterEqual(len(golden["ids"]) - golden["greedy_from"], 48)
        for at in range(golden["greedy_from"], len(golden["ids"])):
            first, second = golden["top_logprobs"][at - 1][:2]
            if first - second >= CLEAR_MARGIN:
                self.assertEqual(answer["positions"][at - 1]["top"][0][0], golden["ids"][at], f"position {at}")

    def test_greedy_answers_are_those_of_transformers(self):
        """Said by a server, token by token, over two stages. Where the golden has the end token, a new answer begins."""
        for name in ARCHITECTURES:
            golden, last = golden_of(name), self.layers(name) - 1
            ids, begin = golden["ids"], golden["greedy_from"]
            self.assertEqual(len(ids) - begin, 48)
            close = [at for at in range(begin, len(ids))
                     if golden["top_logprobs"][at - 1][0] - golden["top_logprobs"][at - 1][1] < CLEAR_MARGIN]
            ends = sorted({at for at in range(begin, len(ids)) if ids[at] == END} | set(close) | {len(ids)})
            self.assertLess(len(ends), 8, "few tokens are compared")
            text = topology(self.model(name), None, ((1, "0-0"), (1, f"1-{last}")), context=512, sessions=1, kv_type="f32")
            with self.subTest(name), Server(text, self.folder, name=name) as server:
                for end in ends:
                    if end > begin:
                        reply = server.complete(ids[:begin], max_tokens=end - begin, ignore_eos=True)
                        self.assertEqual(reply["choices"][0]["token_ids"], ids[begin:end])
                    begin = end + 1

    def test_log_probabilities_are_those_of_llama_cpp(self):
        """Of the same file, read by somebody else. Its GELU is a table of f16 values."""
        theirs = compare_logits.load_oracle(str(GOLDEN / "llama_cpp.json.gz"))
        self.assertEqual(sorted(theirs["models"]), sorted(ARCHITECTURES))
        for name in ARCHITECTURES:
            with self.subTest(name):
                ids = golden_of(name)["ids"]
                _, answer = self.rows(self.model(name), ids)
                deltas = []
                for row, position in enumerate(range(0, len(ids), theirs["step"])):
                    ours = dict(map(tuple, answer["positions"][position]["top"]))
                    expected = [theirs["models"][name][key][row] for key in ("top_ids", "top_logprobs")]
                    deltas += [abs(ours[id] - logprob) for id, logprob in zip(*expected) if id in ours]
                self.assertGreater(len(deltas), 0.99 * 20 * len(ids) / theirs["step"])
                print(f"\n  {name}: max |difference of log-probability| {max(deltas):.3e}", file=sys.stderr)
                self.assertLessEqual(max(deltas), 5e-3 if name == "gemma3" else MAX_DELTA)

    def test_several_stages_give_the_same_rows(self):
        for i, name in enumerate(ARCHITECTURES):
            with self.subTest(name):
                golden = golden_of(name)
                digests = []
                for stages in ([(1, None)], [(1, "0-1"), (2, "2-%d" % (self.layers(name) - 1))]):
                    _, answer = self.rows(self.model(name), golden["ids"][:200], stages=stages, kv_type=("q8_0", "q4_0")[i % 2], chunk=64)
                    digests.append([position["row_xxh3"] for position in answer["positions"]])
                self.assertEqual(digests[0], digests[1])

    def layers(self, name):
        meta = gguf_weights.Gguf(str(self.model(name))).meta
        arch = meta["general.architecture"]
        return meta[f"{arch}.block_count"] - meta.get(f"{arch}.nextn_predict_layers", 0)

    def test_what_is_wrong_shows(self):
        for name in ARCHITECTURES:
            for fault in ("rope", "heads", "gate", *FAULTS.get(name, [])):
                with self.subTest(name, fault=fault):
                    result, _, _ = self.compare_with_golden(name, "--fault", fault)
                    print(f"\n  {name} {fault}: {result}", file=sys.stderr)
                    self.assertNotEqual(result.failures(max_delta=MAX_DELTA), [], str(result))


class KvTypes(ModelCase):
    """Against the same model with K/V as they are: what rounding K and V costs, and not more. The median, since in these
    models of experts a router near a tie goes the other way now and then."""

    MEDIAN_KL = {"f16": 1e-5, "q8_0": 1e-3, "q4_0": 0.1}

    def test_every_architecture(self):
        for name in ARCHITECTURES:
            golden = golden_of(name)
            exact, _ = self.rows(self.model(name), golden["ids"])
            os.rename(exact, self.folder / "exact")
            last = 0.0
            for kv_type, most in self.MEDIAN_KL.items():
                with self.subTest(name, kv_type=kv_type):
                    rows, _ = self.rows(self.model(name), golden["ids"], kv_type=kv_type)
                    result = compare_logits.compare_rows(golden, rows, str(self.folder / "exact"))
                    print(f"\n  {name} {kv_type}: {result}", file=sys.stderr)
                    self.assertLessEqual(result.quantile(0.5), most)
                    self.assertGreater(result.quantile(0.5), last, "coarser rows cost more")
                    last = result.quantile(0.5)


class Oracle(ModelCase):
    def test_the_double_precision_oracle_agrees_with_transformers(self):
        for name in ARCHITECTURES:
            with self.subTest(name):
                golden = golden_of(name)
                model = model_oracle.load(gguf_weights.Gguf(str(self.model(name))))
                with open(self.folder / "oracle_rows", "wb") as rows:
                    logits_oracle.summarise(model, golden["ids"], 20, rows)
                result = compare_logits.compare_rows(golden, str(self.folder / "oracle_rows"))
                print(f"\n  {name}: {result}", file=sys.stderr)
                self.assertEqual(result.failures(max_delta=MAX_DELTA), [])


class QuantisedModels(ModelCase):
    def judge(self, name, weight_type):
        """Whole rows against whole rows: on flat distributions a few likeliest ids say little."""
        path = self.model(name, "--type", weight_type)
        ids = golden_of(name)["ids"][:200]
        model = model_oracle.load(gguf_weights.Gguf(str(path)))
        expected = {"n_vocab": len(model.head)}
        with open(self.folder / "oracle_rows", "wb") as rows:
            expected |= logits_oracle.summarise(model, ids, 20, rows)
        measured, _ = self.rows(path, ids)
        result = compare_logits.compare_rows(expected, measured, str(self.folder / "oracle_rows"))
        print(f"\n  {name} {weight_type}: {result}", file=sys.stderr)
        self.assertEqual(result.failures(mean_kl=1e-4, max_delta=0.01), [])

    def test_every_architecture(self):
        for name in ARCHITECTURES:
            for weight_type in ("Q8_0", "Q4_K"):
                with self.subTest(name, weight_type=weight_type):
                    self.judge(name, weight_type)

    def test_every_weight_type(self):
        self.assertEqual(len(WEIGHT_TYPES), 23)
        for weight_type in WEIGHT_TYPES:
            with self.subTest(weight_type):
                self.judge("qwen35", weight_type)

    def test_experts_in_their_usual_type(self):
        self.judge("gpt-oss", "MXFP4")


if __name__ == "__main__":
    unittest.main()
