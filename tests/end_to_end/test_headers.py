"""What is known before anything is loaded: inspect and plan of real models' shapes from headers alone, and the exit codes of
what is wrong with a topology, a model file or a device."""
import json
import unittest

import sparse_models
from harness import BIN, Case, layover, tiny_model, topology

MIB, GIB = 1 << 20, 1 << 30


class RealShapes(Case):
    def answer(self, *args):
        done = layover(*args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def plan(self, model, kv_type="f16", sessions=1, stages=((1, None),)):
        path = self.folder / "plan.yaml"
        path.write_text(topology(model, None, stages, context=262144, sessions=sessions, kv_type=kv_type))
        return self.answer("plan", path)["stages"]

    def check(self, model, shown, n_parameters, state_bytes, kv_gib, layers, split):
        """`kv_gib`: by K/V type, at 262,144 tokens. `split`: the last layer of the first of two stages."""
        self.assertAlmostEqual(model.parameters / 1e9, n_parameters, delta=0.5)
        path = model.write(self.folder / "model.gguf")
        self.assertLess(path.stat().st_blocks * 512, 64 * MIB, "the weights are holes")
        inspected = self.answer("inspect", path)
        self.assertEqual({key: inspected[key] for key in shown}, shown)
        self.assertEqual(inspected["bytes"], path.stat().st_size)
        self.assertEqual(inspected["types"], model.types())

        for kv_type, gib in kv_gib.items():
            (stage,) = self.plan(path, kv_type)
            self.assertEqual(stage["kv_bytes"], gib * GIB, kv_type)
            self.assertEqual(stage["state_bytes"], state_bytes)
            self.assertEqual(stage["weight_bytes"], model.bytes_of(0, layers, last=True))
        first, second = self.plan(path, sessions=3, stages=((1, f"0-{split}"), (1, f"{split + 1}-{layers - 1}")))
        self.assertEqual(first["state_bytes"] + second["state_bytes"], 3 * state_bytes)
        self.assertEqual(first["kv_bytes"] + second["kv_bytes"], 3 * kv_gib["f16"] * GIB)
        self.assertEqual(first["weight_bytes"], model.bytes_of(0, split + 1, last=False))
        self.assertEqual(second["weight_bytes"], model.bytes_of(split + 1, layers, last=True))
        for stage in (first, second):
            parts = [stage[key] for key in ("weight_bytes", "kv_bytes", "state_bytes", "checkpoint_bytes", "scratch_bytes")]
            self.assertEqual(stage["total_bytes"], sum(parts))
        automatic = self.plan(path, stages=((1, None), (1, None)))
        self.assertEqual(automatic[0]["layers"][1], automatic[1]["layers"][0])
        sizes = [stage["total_bytes"] for stage in automatic]
        self.assertLess(max(sizes), 1.1 * min(sizes))

    def test_27b_dense_hybrid(self):
        shown = {"architecture": "qwen35", "n_layers": 64, "n_embd": 5120, "n_head": 24, "n_head_kv": 4, "n_vocab": 248320,
                 "context_train": 262144}
        self.check(sparse_models.qwen35_27b(), shown, n_parameters=27.3, state_bytes=156_893_184,
                   kv_gib={"f16": 16, "q8_0": 8.5, "q4_0": 4.5}, layers=64, split=30)

    def test_80b_hybrid_of_experts(self):
        shown = {"architecture": "qwen3next", "n_layers": 48, "n_embd": 2048, "n_head": 16, "n_head_kv": 2, "n_vocab": 151936,
                 "context_train": 262144}
        self.check(sparse_models.qwen3next_80b(), shown, n_parameters=79.7, state_bytes=79_036_416,
                   kv_gib={"f16": 6, "q8_0": 3.1875, "q4_0": 1.6875}, layers=48, split=23)

    def test_35b_hybrid_of_experts(self):
        shown = {"architecture": "qwen35moe", "n_layers": 40, "n_embd": 2048, "n_head": 16, "n_head_kv": 2, "n_vocab": 248320,
                 "context_train": 262144}
        self.check(sparse_models.qwen35moe_35b(), shown, n_parameters=34.7, state_bytes=65_863_680,
                   kv_gib={"f16": 5, "q8_0": 2.65625, "q4_0": 1.40625}, layers=40, split=19)


class WhatIsWrong(Case):
    """Exit 2 for what is wrong with the topology, 1 for all else, and the message names it."""

    def expect(self, text, code, *words, verbs=("plan", "serve", "logits", "bench")):
        path = self.folder / "t.yaml"
        path.write_text(text)
        (self.folder / "text.txt").write_text("a")
        for verb in verbs:
            done = layover(verb, path, *([self.folder / "text.txt"] if verb == "logits" else []), timeout_s=60)
            self.assertEqual(done.returncode, code, (verb, done.stderr))
            self.assertEqual(done.stdout, "", verb)
            for word in words:
                self.assertIn(word, done.stderr, verb)

    def test_topology(self):
        self.expect("model: x\nnonsense: 1\n", 2, "t.yaml:2", "nonsense")
        self.expect(topology(tiny_model(self.folder), None, ((1, "0-90"),)), 2, "t.yaml", "layers")
        for verb in ("plan", "serve"):
            done = layover(verb, self.folder / "none.yaml")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("none.yaml", done.stderr)

    def test_model_file(self):
        whole = tiny_model(self.folder)
        missing = self.folder / "missing.gguf"
        self.expect(topology(missing), 1, "missing.gguf")
        damaged = self.folder / "damaged.gguf"
        for name, data in (("cut in the weights", whole.read_bytes()[:-4096]), ("cut in the header", whole.read_bytes()[:200]),
                           ("another kind of file", b"not a model" * 100), ("empty", b"")):
            with self.subTest(name):
                damaged.write_bytes(data)
                self.expect(topology(damaged), 1, "damaged.gguf")
                done = layover("inspect", damaged)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)

    def test_a_device_that_is_not_there(self):
        """Also where there is a GPU: it has no number 63."""
        text = topology(tiny_model(self.folder), self.folder / "store").replace("device: cpu", 'device: "cuda:63"')
        plugin = BIN / "liblayover_cuda.so"
        self.expect(text, 1, "t.yaml:", "cuda" if plugin.exists() else "liblayover_cuda.so")
        self.assertFalse((self.folder / "store").exists(), "nothing is made before the devices are known")

    def test_other_stages_do_not_hide_it(self):
        text = topology(tiny_model(self.folder), None, ((1, "0-0"), (1, "1-1")))
        where = text.rindex("device: cpu")
        self.expect(text[:where] + 'device: "cuda:63"' + text[where + len("device: cpu"):], 1, "t.yaml:", "cuda", verbs=("plan",))


if __name__ == "__main__":
    unittest.main()
