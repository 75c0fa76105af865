"""The oracle's own tests: its dequantisation against GGML's values, its forward pass against the golden, and that the
comparison refuses what it must. No process is started here. Needs numpy."""
import json
import math
import struct
import subprocess
import sys
import unittest

import numpy as np

from harness import DEMO_MODEL, SOURCE, Case

sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
import compare_logits  # noqa: E402
import gguf_weights  # noqa: E402
import logits_oracle  # noqa: E402
import quant_blocks  # noqa: E402

GOLDEN = SOURCE / "tests" / "golden"
BARS = {"mean_kl": 1e-4, "top1": 0.995}


class Dequantisation(unittest.TestCase):
    def test_equals_ggml_bit_for_bit(self):
        seen = set()
        for line in (GOLDEN / "quant_vectors.txt").read_text().splitlines():
            if line.startswith("#") or not line.strip():
                continue
            name, _, block, values = (field.strip() for field in line.split("|"))
            seen.add(name)
            got = gguf_weights.dequantise(name, np.frombuffer(bytes.fromhex(block), np.uint8))
            expected = np.frombuffer(bytes.fromhex(values), "<f4")
            self.assertTrue(np.array_equal(got, expected), name)
        self.assertEqual(set(gguf_weights.DEQUANTISE) - seen, {"F32", "F16", "BF16"})

    def test_equals_the_gguf_package_on_many_blocks(self):
        seen = set()
        for line in (GOLDEN / "quant_digests.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            name, kind, block_bytes, digest = (field.strip() for field in line.split("|"))
            with np.errstate(all="ignore"):
                values = gguf_weights.dequantise(name, quant_blocks.blocks_of(int(kind), int(block_bytes)).reshape(-1))
            self.assertEqual(quant_blocks.digest_of(values), digest, name)
            seen.add(name)
        self.assertEqual(seen, {name for name, _, _ in gguf_weights.TYPES.values()} - {"F32"})

    def test_floats(self):
        values = np.array([0, -1.5, 3.0, 2.0**-14], np.float32)
        for name, raw in (("F32", values.tobytes()), ("F16", values.astype("<f2").tobytes()),
                          ("BF16", b"".join(struct.pack("<f", v)[2:] for v in values))):
            got = gguf_weights.dequantise(name, np.frombuffer(raw, np.uint8))
            self.assertTrue(np.array_equal(got, values), name)


class Forward(unittest.TestCase):
    def test_the_demo_model_reproduces_the_golden(self):
        """The model is causal: the first positions of the golden are those of its first tokens alone."""
        golden = compare_logits.load_oracle(str(GOLDEN / "logits_demo.json.gz"))
        self.assertEqual(golden["ids"], json.loads((GOLDEN / "mixed_text_ids.json").read_text()))
        self.assertGreaterEqual(len(golden["ids"]), 2000)
        self.assertEqual(golden["model_sha256"], logits_oracle.digest(DEMO_MODEL))
        n = 24
        model = logits_oracle.Llama(gguf_weights.Gguf(str(DEMO_MODEL)))
        result = logits_oracle.summarise(model, golden["ids"][:n], 32)
        np.testing.assert_allclose(result["top_logprobs"], golden["top_logprobs"][:n], rtol=0, atol=2e-6)
        np.testing.assert_allclose(result["next_logprobs"], golden["next_logprobs"][:n - 1], rtol=0, atol=2e-6)
        self.assertEqual(result["top_ids"], golden["top_ids"][:n])


class Comparison(Case):
    """On made-up distributions, so that the right answer is known without any model."""

    def setUp(self):
        super().setUp()
        self.rows = np.random.default_rng(7).normal(0, 4, (300, 64)).astype("<f4")
        whole = self.rows.astype(np.float64)
        self.total = logits_oracle.log_sum_exp(whole)
        best = logits_oracle.top_entries(whole, 32)
        self.ids = list(range(300))
        self.oracle = {
            "ids": self.ids, "n_vocab": 64, "top_ids": [list(map(int, row)) for row in best],
            "top_logprobs": (np.take_along_axis(whole, best, 1) - self.total[:, None]).tolist(),
            "next_logprobs": [float(whole[i, (i + 1) % 64] - self.total[i]) for i in range(299)],
        }

    def write(self, name, rows):
        rows.astype("<f4").tofile(self.folder / name)
        return str(self.folder / name)

    def answer(self, rows):
        """What `layover logits --top 20` would print of these rows."""
        rows = rows.astype(np.float64)
        logprobs = rows - logits_oracle.log_sum_exp(rows)[:, None]
        positions = []
        for at, best in enumerate(logits_oracle.top_entries(rows, 20)):
            positions.append({"pos": at, "id": self.ids[at], "top": [[int(i), float(logprobs[at, i])] for i in best],
                              "logprob": float(logprobs[at - 1, at % 64]) if at else None})
        return {"positions": positions}

    def noisy(self, scale):
        return self.rows + np.random.default_rng(8).normal(0, scale, self.rows.shape)

    def test_equal_rows_pass_every_way(self):
        same = self.write("same", self.rows + 3)  # a constant changes no distribution
        oracle_rows = self.write("oracle", self.rows)
        for result in (compare_logits.compare_rows(self.oracle, same),
                       compare_logits.compare_rows(self.oracle, same, oracle_rows),
                       compare_logits.compare_json(self.oracle, self.answer(self.rows))):
            self.assertEqual(result.failures(**BARS, max_kl=1e-9, max_delta=1e-5), [], str(result))

    def test_the_numbers_are_right(self):
        noisy = self.noisy(0.3).astype("<f4")
        whole = compare_logits.compare_rows(self.oracle, self.write("n", noisy), self.write("o", self.rows))
        p = np.exp(self.rows.astype(np.float64) - self.total[:, None])
        wide = noisy.astype(np.float64)
        log_q = wide - logits_oracle.log_sum_exp(wide)[:, None]
        expected = (p * (np.log(p) - log_q)).sum(axis=1).mean()
        self.assertAlmostEqual(whole.mean_kl, expected, delta=1e-6 * expected)
        self.assertAlmostEqual(whole.top1, (noisy.argmax(1) == self.rows.argmax(1)).mean())
        # Merging outcomes never adds to a divergence, and here takes little of it away.
        for merged in (compare_logits.compare_rows(self.oracle, self.write("n", noisy)),
                       compare_logits.compare_json(self.oracle, self.answer(noisy))):
            self.assertLessEqual(merged.mean_kl, expected)
            self.assertGreater(merged.mean_kl, 0.5 * expected)

    def test_divergence_with_a_bucket_for_the_rest(self):
        p, q = [math.log(0.5), math.log(0.3)], [math.log(0.4), math.log(0.2)]
        expected = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.2) + 0.2 * math.log(0.2 / 0.4)
        self.assertAlmostEqual(compare_logits.bucketed_kl(p, q), expected, places=12)

    def test_noise_fails_every_way(self):
        noisy = self.noisy(0.3)
        raw = self.write("noisy", noisy)
        for result in (compare_logits.compare_rows(self.oracle, raw),
                       compare_logits.compare_rows(self.oracle, raw, self.write("oracle", self.rows)),
                       compare_logits.compare_json(self.oracle, self.answer(noisy))):
            self.assertEqual(len(result.failures(**BARS, max_kl=1e-3, max_delta=1e-3)), 4, str(result))

    def test_one_bad_row_fails(self):
        for value in (math.nan, math.inf):
            rows = self.rows.copy()
            rows[17, 5] = value
            with np.errstate(invalid="ignore"):
                result = compare_logits.compare_rows(self.oracle, self.write("bad", rows))
            self.assertIn("mean KL", " ".join(result.failures(**BARS)))

    def test_what_does_not_belong_together_is_refused(self):
        answer = self.answer(self.rows)
        answer["positions"][3]["id"] += 1
        with self.assertRaises(compare_logits.Mismatch):
            compare_logits.compare_json(self.oracle, answer)
        with self.assertRaises(compare_logits.Mismatch):
            compare_logits.compare_rows(self.oracle, self.write("short", self.rows[:-1]))

    def test_exit_codes(self):
        (self.folder / "oracle.json").write_text(json.dumps(self.oracle))
        script = SOURCE / "tests" / "oracle" / "compare_logits.py"
        for rows, code in ((self.rows, 0), (self.noisy(0.3), 1), (self.rows[:-1], 2)):
            done = subprocess.run([sys.executable, script, self.folder / "oracle.json", "--raw", self.write("r", rows),
                                   "--mean-kl", "1e-4", "--top1", "0.995"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)


class Refusals(Case):
    def test_a_file_that_is_no_gguf(self):
        path = self.folder / "x.gguf"
        path.write_bytes(b"GGML" + bytes(64))
        with self.assertRaisesRegex(gguf_weights.GgufError, "x.gguf: not a GGUF"):
            gguf_weights.Gguf(str(path))


if __name__ == "__main__":
    unittest.main()
