"""Invariant 1: the logits at a position depend on model, K/V type and tokens only.

Compared through HTTP on real processes by the digests of the logits rows (return_row_digests). The tiny model runs the
whole product of the settings when LAYOVER_FULL=1 (`cmake --build build --target invariance`), else pairs of them; the
demo model always runs pairs.
"""
import itertools
import os
import subprocess
import threading
import unittest

from harness import BIN, DEMO_MODEL, Case, Server, tiny_model, topology

LENGTHS = [1, 63, 64, 65, 127, 128, 129, 511, 512, 513]
STAGES = {"tiny": {1: [None], 2: ["0-2", "3-4"], 3: ["0-0", "1-2", "3-4"]},
          # Split so that a hybrid's stages have recurrent layers only, attention only, or both.
          "qwen3moe": {1: [None], 2: ["0-1", "2-2"], 3: ["0-0", "1-1", "2-2"]},
          "gemma3": {1: [None], 2: ["0-2", "3-4"], 3: ["0-1", "2-2", "3-4"]},
          "qwen35": {1: [None], 2: ["0-2", "3-4"], 3: ["0-2", "3-3", "4-4"]},
          "qwen35moe": {1: [None], 2: ["0-1", "2-5"], 3: ["0-2", "3-3", "4-5"]},
          "gpt-oss": {1: [None], 2: ["0-1", "2-2"], 3: ["0-0", "1-1", "2-2"]},
          "demo": {1: [None], 2: ["0-14", "15-29"], 3: ["0-4", "5-20", "21-29"]}}
OUTPUT = 6
TAIL = 9


def prompt(length, salt=0):
    """Deterministic ids, all different prompts for different salts from the first token on."""
    return [(7 * i + 13 * salt + i * i % 31) % 200 + 20 for i in range(length)]


class Setting:
    def __init__(self, n_stages=1, chunk=512, together=1, restored=None, threads=1):
        self.n_stages, self.chunk, self.together, self.restored, self.threads = n_stages, chunk, together, restored, threads

    def __repr__(self):
        return f"stages={self.n_stages} chunk={self.chunk} together={self.together} restored={self.restored} threads={self.threads}"


def product():
    for n_stages, chunk, together, restored, threads in itertools.product((1, 2, 3), (64, 192, 512), (1, 3, 8), (None, *LENGTHS), (1, 2)):
        yield Setting(n_stages, chunk, together, restored, threads)


def pairs(step):
    """A thinned product in which every value, and many pairs of values, occur."""
    return list(product())[::step]


def product_from(first, step):
    return list(product())[first::step]


class Invariance(Case):
    def server(self, kind, model, setting, kv_type, store):
        stages = [(setting.threads, layers) for layers in STAGES[kind][setting.n_stages]]
        return Server(topology(model, store, stages, context=1024, chunk=setting.chunk, kv_type=kv_type,
                               store_keys={"save": "manual"}), self.folder, name=store.name)

    def rows(self, server, ids, conversation, **fields):
        reply = server.complete(ids, conversation, max_tokens=OUTPUT, ignore_eos=True, return_row_digests=True, **fields)
        return reply["choices"][0]["row_xxh3"], reply

    def run_setting(self, kind, model, setting, kv_type, want):
        """Rows of the prompts of all lengths under one setting against those of a plain run."""
        store = self.folder / f"{kind}-{kv_type}-{abs(hash(repr(setting)))}"
        if setting.restored is None:
            with self.server(kind, model, setting, kv_type, store) as server:
                self.together(server, setting, want, [None] * setting.together)
            return
        # Saved at a length, the processes gone, restored, and only the tail is read.
        n = setting.restored
        names = [f"c{i}" for i in range(setting.together)]
        with self.server(kind, model, setting, kv_type, store) as server:
            for i, name in enumerate(names):
                server.complete(prompt(n, i), name, max_tokens=0)
                saved = server.post(f"/v1/kv/conversations/{name}/save").json
                self.assertEqual(saved["n_tokens"], n)
        with self.server(kind, model, setting, kv_type, store) as server:
            for name in names:
                restored = server.post(f"/v1/kv/conversations/{name}/restore").json
                self.assertEqual(restored["n_tokens"], n)
            self.together(server, setting, want, names, restored=n)

    def together(self, server, setting, want, names, restored=None):
        failures = []

        def one(i, name):
            for length in [restored] if restored else LENGTHS[-3:]:
                ids = prompt(length, i) + prompt(TAIL, i + 100)
                rows, reply = self.rows(server, ids, name)
                if rows != want(i, length):
                    failures.append(f"{setting}: conversation {i}, length {length}")
                timings = reply["timings"]
                if restored and (timings["cache_n"], timings["recomputed_n"]) != (restored, 0):
                    failures.append(f"{setting}: not served from the restored state: {timings}")

        threads = [threading.Thread(target=one, args=(i, name)) for i, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def check(self, kind, model, settings, kv_type):
        cache = {}
        plain = Setting()
        with self.server(kind, model, plain, kv_type, self.folder / f"{kind}-{kv_type}-plain") as server:
            needed = {(i, length) for setting in settings for i in range(setting.together)
                      for length in ([setting.restored] if setting.restored else LENGTHS[-3:])}
            for i, length in sorted(needed):
                cache[i, length], _ = self.rows(server, prompt(length, i) + prompt(TAIL, i + 100), None, cache_prompt=False)
        for setting in settings:
            with self.subTest(setting=setting):
                self.run_setting(kind, model, setting, kv_type, lambda i, length: cache[i, length])

    def tiny(self):
        return tiny_model(self.folder, "--layers", "5", "--heads", "4", "--kv-heads", "2", "--embd", "128", "--ff", "96",
                          "--context", "1024", "--type", "Q4_1")

    def test_tiny_model(self):
        settings = list(product()) if os.environ.get("LAYOVER_FULL") == "1" else pairs(37)
        for kv_type in ("f16", "q8_0"):
            self.check("tiny", self.tiny(), settings, kv_type)

    def test_every_kind_of_model(self):
        """Experts, sliding windows, recurrent layers, both with experts: the tiny models of these architectures."""
        for i, kind in enumerate(("qwen3moe", "gemma3", "qwen35", "qwen35moe", "gpt-oss")):
            model = self.folder / f"{kind}.gguf"
            subprocess.run([BIN / "make_tiny_model", model, "--arch", kind, "--type", "Q8_0"], check=True,
                           stdout=subprocess.DEVNULL)
            settings = list(product()) if os.environ.get("LAYOVER_FULL") == "1" else product_from(17 * i, 139)
            self.check(kind, model, settings, ("f16", "q8_0")[i % 2])

    def test_demo_model(self):
        for kv_type, step in (("f16", 149), ("q8_0", 211)):
            self.check("demo", DEMO_MODEL, pairs(step), kv_type)

    def test_generated_tokens_equal_the_same_tokens_as_prompt(self):
        for kind, model in (("tiny", self.tiny()), ("demo", DEMO_MODEL)):
            with self.server(kind, model, Setting(n_stages=2), "f16", self.folder / f"{kind}-generated") as server:
                rows, reply = self.rows(server, prompt(70), None)
                output = reply["choices"][0]["token_ids"]
                for k in range(1, OUTPUT):
                    again, _ = self.rows(server, prompt(70) + output[:k], None, cache_prompt=False)
                    self.assertEqual(again[: OUTPUT - k], rows[k:])

    def test_one_changed_value_on_disk_changes_a_row(self):
        """The control: were restored state not used, none of the above would notice."""
        # A damaged record is refused, so the change must carry fresh digests: rewrite_store does that.
        import rewrite_store
        model = self.tiny()
        store = self.folder / "changed"
        ids = prompt(128) + prompt(TAIL, 100)
        with self.server("tiny", model, Setting(), "f16", store) as server:
            server.complete(prompt(128), "c", max_tokens=0)
            server.post("/v1/kv/conversations/c/save")
        rewrite_store.change_one_value(store)
        with self.server("tiny", model, Setting(), "f16", store) as server:
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)
            changed, reply = self.rows(server, ids, "c")
            self.assertEqual(reply["timings"]["recomputed_n"], 0)
            plain, _ = self.rows(server, ids, None, cache_prompt=False)
        self.assertNotEqual(changed, plain)


if __name__ == "__main__":
    unittest.main()
