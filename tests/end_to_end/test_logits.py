"""Layover's logits against float arithmetic on exactly dequantised weights.

The demo model is judged by a golden of 2,934 positions (tests/oracle/make_logits_golden.py), tiny models of every
weight type by the oracle itself, which runs here: float64, numpy alone, no code shared with Layover.
"""
import json
import sys
import unittest

from harness import BIN, DEMO_MODEL, SOURCE, Case, layover, subprocess, topology

sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
import compare_logits  # noqa: E402
import gguf_weights  # noqa: E402
import logits_oracle  # noqa: E402
import make_f32  # noqa: E402

GOLDEN = SOURCE / "tests" / "golden"


class LogitsCase(Case):
    def logits(self, model, ids_file, *flags, **keys):
        """Runs `layover logits` over one stage; its JSON answer."""
        path = self.folder / "logits.yaml"
        path.write_text(topology(model, context=4096, sessions=1, **keys))
        done = layover("logits", path, ids_file, *flags, timeout_s=800)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def judge(self, result, **bars):
        print(f"\n  {self.id().split('.')[-1]}: {result}", file=sys.stderr)
        self.assertEqual(result.failures(**bars), [], str(result))


class DemoModel(LogitsCase):
    def golden(self):
        return compare_logits.load_oracle(str(GOLDEN / "logits_demo.json.gz"))

    def test_quantised_weights_and_the_texts_tokens(self):
        golden = self.golden()
        raw = self.folder / "rows"
        answer = self.logits(DEMO_MODEL, GOLDEN / "mixed_text.txt", "--raw", raw)
        self.assertEqual([p["id"] for p in answer["positions"]], golden["ids"])
        # Merging outcomes hides up to a fifth of a KL: the bar is 1e-4 for the whole of it.
        self.judge(compare_logits.compare_rows(golden, str(raw)), mean_kl=0.8e-4, top1=0.995)
        self.judge(compare_logits.compare_json(golden, answer), mean_kl=0.8e-4, top1=0.995)

    def test_float_weights(self):
        """The same weights as an F32 file, so the golden is the same."""
        model = self.folder / "f32.gguf"
        make_f32.write_f32(gguf_weights.Gguf(str(DEMO_MODEL)), model)
        raw = self.folder / "rows"
        self.logits(model, GOLDEN / "mixed_text_ids.json", "--raw", raw, kv_type="f32")
        self.judge(compare_logits.compare_rows(self.golden(), str(raw)), mean_kl=1e-8, max_delta=1e-3, top1=0.995)


class TinyModels(LogitsCase):
    def judge_tiny(self, kv_type, flags, **bars):
        """Whole rows against whole rows: on flat distributions a few likeliest ids say little."""
        model = self.folder / "tiny.gguf"
        subprocess.run([BIN / "make_tiny_model", model, *flags], check=True, stdout=subprocess.DEVNULL)
        ids = [(37 * i * i + 11 * i) % 259 for i in range(300)]
        (self.folder / "ids.json").write_text(json.dumps(ids))
        with open(self.folder / "oracle_rows", "wb") as rows:
            oracle = logits_oracle.Llama(gguf_weights.Gguf(str(model)))
            expected = {"n_vocab": len(oracle.head)} | logits_oracle.summarise(oracle, ids, 20, rows)
        self.logits(model, self.folder / "ids.json", "--raw", self.folder / "rows", kv_type=kv_type)
        result = compare_logits.compare_rows(expected, str(self.folder / "rows"), str(self.folder / "oracle_rows"))
        self.judge(result, **bars)

    # K/V in f32 wherever the difference is judged sharply: f16 K/V alone moves log-probabilities by 1e-2.

    def test_f32(self):
        self.judge_tiny("f32", ["--type", "F32", "--untied"], mean_kl=1e-10, max_delta=1e-4, top1=0.995)

    def test_f32_with_frequency_factors(self):
        self.judge_tiny("f32", ["--rope-freqs", "--gain", "2"], mean_kl=1e-9, max_delta=1e-3, top1=0.995)

    def test_f16(self):
        self.judge_tiny("f32", ["--type", "F16", "--seed", "3"], mean_kl=1e-10, max_delta=1e-4, top1=0.995)

    def test_bf16(self):
        self.judge_tiny("f32", ["--type", "BF16", "--seed", "4"], mean_kl=1e-10, max_delta=1e-4, top1=0.995)

    def test_q8_0(self):
        self.judge_tiny("f32", ["--type", "Q8_0", "--untied"], mean_kl=1e-7, max_delta=3e-3, top1=0.99)

    def test_q4_0(self):
        self.judge_tiny("f32", ["--type", "Q4_0"], mean_kl=1e-7, max_delta=3e-3, top1=0.99)

    def test_q4_1(self):
        self.judge_tiny("f32", ["--type", "Q4_1"], mean_kl=1e-7, max_delta=3e-3, top1=0.99)

    def test_f16_keys_and_values(self):
        self.judge_tiny("f16", ["--type", "F32"], mean_kl=1e-6, top1=0.98)

    def test_q8_0_keys_and_values(self):
        self.judge_tiny("q8_0", ["--type", "F32", "--embd", "64", "--heads", "2", "--kv-heads", "1"],
                        mean_kl=3e-4, top1=0.95)


if __name__ == "__main__":
    unittest.main()
