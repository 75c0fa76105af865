"""A second real model, Gemma 3 270M Q4_K_M: sliding window, SentencePiece, K-quants, a vocabulary of 262,144.

`./check --gemma` gets the model and runs this; the plain check does not (label gemma). The golden is transformers' in
float32 over exactly dequantised weights, the ids sentencepiece's (tests/oracle/make_gemma_golden.py).
"""
import json
import pathlib
import re
import sys
import unittest

from harness import SOURCE, Case, Server, layover, topology

sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
import compare_logits  # noqa: E402

MODEL = SOURCE / "models" / "gemma-3-270m-q4_k_m.gguf"
GOLDEN = SOURCE / "tests" / "golden"
LAYERS = 18
WINDOW = 512
TWO_STAGES = ((1, "0-8"), (1, "9-17"))
THREE_STAGES = ((1, "0-4"), (1, "5-10"), (1, "11-17"))


class GemmaCase(Case):
    @classmethod
    def setUpClass(cls):
        cls.golden = compare_logits.load_oracle(str(GOLDEN / "logits_gemma.json.gz"))

    def setUp(self):
        super().setUp()
        self.assertTrue(MODEL.exists(), f"{MODEL} is missing: ./check --gemma gets it")

    def serve(self, store, stages, **keys):
        text = topology(MODEL, self.folder / store, stages, context=2048, sessions=3, store_keys={"save": "manual"}, **keys)
        return Server(text, self.folder, name=f"{store}-{len(stages)}")


class Headers(GemmaCase):
    def test_inspect_and_plan(self):
        done = layover("inspect", MODEL, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = json.loads(done.stdout)
        self.assertEqual({k: shown[k] for k in ("architecture", "n_layers", "n_embd", "n_head", "n_head_kv", "n_vocab", "context_train")},
                         {"architecture": "gemma3", "n_layers": LAYERS, "n_embd": 640, "n_head": 4, "n_head_kv": 1, "n_vocab": 262144,
                          "context_train": 32768})
        self.assertEqual(shown["bytes"], MODEL.stat().st_size)
        self.assertEqual(shown["types"], {"F32": 109, "Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9})
        path = self.folder / "plan.yaml"
        path.write_text(topology(MODEL, None, TWO_STAGES, context=4096, sessions=1))
        done = layover("plan", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = json.loads(done.stdout)["stages"]
        self.assertEqual([first["layers"], second["layers"]], [[0, 9], [9, 18]])
        # Three layers of 18 see everything (5, 11, 17); K and V of one head of 256 in f16 are 1,024 bytes a token.
        self.assertGreaterEqual(first["kv_bytes"], 1 * 4096 * 1024 + 8 * WINDOW * 1024)
        self.assertLess(first["kv_bytes"], 1 * 4096 * 1024 + 8 * (4 * WINDOW + 512) * 1024, "windows do not take the whole context")


    def test_a_stage_takes_the_memory_that_the_plan_says(self):
        """The embedding is two thirds of the model, and the head as well: it is held once."""
        text = topology(MODEL, None, ((1, None),), context=2048, sessions=1)
        with Server(text, self.folder) as server:
            done = layover("plan", server.topology, "--json")
            (planned,) = json.loads(done.stdout)["stages"]
            (stage,) = server.stages()
            status = pathlib.Path(f"/proc/{stage['pid']}/status").read_text()
            held = int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10
            print(f"\n  gemma: {held >> 20} MiB held, {planned['total_bytes'] >> 20} MiB planned", file=sys.stderr)
            self.assertLess(held, planned["total_bytes"] + (48 << 20))
            self.assertGreater(held, planned["weight_bytes"])


class Logits(GemmaCase):
    def judge(self, source, **bars):
        path = self.folder / "logits.yaml"
        path.write_text(topology(MODEL, None, ((2, None),), context=4096, sessions=1, kv_type="f32"))
        done = layover("logits", path, source, "--top", "32", timeout_s=800)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = compare_logits.compare_json(self.golden, json.loads(done.stdout))
        print(f"\n  gemma: {result}", file=sys.stderr)
        self.assertEqual(result.failures(**bars), [], str(result))

    def test_against_transformers(self):
        """More than twice the window, so what is outside of it must not be seen."""
        self.assertGreater(len(self.golden["ids"]), 2 * WINDOW)
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps(self.golden["ids"]))
        self.judge(ids, mean_kl=1e-4, max_delta=1e-2, top1=0.995)


class Conversations(GemmaCase):
    def test_text_to_ids_and_back(self):
        text = (GOLDEN / "mixed_text.txt").read_bytes().decode()
        with self.serve("store", TWO_STAGES) as server:
            ids = server.post("/tokenize", {"content": text, "add_special": True}).json["tokens"]
            self.assertEqual(ids, self.golden["all_ids"])
            self.assertEqual(server.post("/detokenize", {"tokens": ids[1:]}).json["content"], text)
            # A base model: it has no template, and says so.
            refused = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
            self.assertEqual(refused.status, 400)
            self.assertIn("template", refused.json["error"]["message"])

    def test_saved_on_two_stages_and_continued_on_three(self):
        prompt = self.golden["ids"][:WINDOW + 150]
        turn = {"max_tokens": 12, "ignore_eos": True, "return_row_digests": True}
        with self.serve("control", ((1, None),)) as server:
            first = server.complete(prompt, "c", **turn)
            longer = prompt + first["choices"][0]["token_ids"] + self.golden["all_ids"][700:720]
            second = server.complete(longer, "c", **turn)
        with self.serve("store", TWO_STAGES) as server:
            self.assertSameRows(server.complete(prompt, "c", **turn), first)
            saved = server.post("/v1/kv/conversations/c/save").json
            self.assertEqual(saved["n_tokens"], len(prompt) + turn["max_tokens"] - 1)
        with self.serve("store", THREE_STAGES) as server:
            reply = server.complete(longer, "c", **turn)
            self.assertEqual(reply["timings"]["recomputed_n"], 0)
            self.assertEqual(reply["timings"]["restored_n"], saved["n_tokens"])
            self.assertSameRows(reply, second)

    def assertSameRows(self, got, want):
        self.assertSameIds(got, want)
        self.assertEqual(got["choices"][0]["row_xxh3"], want["choices"][0]["row_xxh3"])


if __name__ == "__main__":
    unittest.main()
