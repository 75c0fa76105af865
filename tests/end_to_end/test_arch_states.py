"""Every architecture through everything that moves a conversation's state: parked, forked, rewound, saved, restored on
other splits, compared by the digests of the logits rows with a server that holds nothing (invariant 1).

The K/V types take turns. A hybrid's first or last stage has recurrent layers only.
"""
import unittest

from harness import Case, Server, ids, tiny_model, topology

# Stages of the first server, of the second, of the third; and the K/V type.
SPLITS = {"llama": (("0-0", "1-2"), ("0-1", "2-2"), "f32"), "llama-moe": (("0-1", "2-2"), ("0-2",), "f16"),
          "qwen2": (("0-0", "1-2"), ("0-0", "1-1", "2-2"), "q8_0"), "qwen3": (("0-2",), ("0-0", "1-2"), "q4_0"),
          "qwen3moe": (("0-0", "1-1", "2-2"), ("0-1", "2-2"), "f16"), "gemma3": (("0-2", "3-4"), ("0-0", "1-3", "4-4"), "q8_0"),
          "qwen3next": (("0-2", "3-4"), ("0-3", "4-4"), "q4_0"), "qwen35": (("0-3", "4-4"), ("0-2", "3-3", "4-4"), "f16"),
          "qwen35moe": (("0-1", "2-5"), ("0-2", "3-3", "4-5"), "q8_0"), "gpt-oss": (("0-0", "1-2"), ("0-2",), "q4_0")}
OUTPUT = 5


class ArchStates(Case):
    def server(self, kind, stages, name, store=True):
        folder = self.folder / kind
        folder.mkdir(exist_ok=True)
        text = topology(tiny_model(folder, "--arch", kind), folder / "store" if store else None, [(1, layers) for layers in stages],
                        context=1024, sessions=3, kv_type=SPLITS[kind][2], chunk=64, store_keys={"save": "manual"})
        return Server(text + "park: {ram_budget: 64MiB}\n", self.folder, name=f"{kind}-{name}")

    def go_on(self, server, prompt, conversation, **expected):
        """One turn: its rows are those of a server that read the whole prompt afresh."""
        turn = {"max_tokens": OUTPUT, "ignore_eos": True, "return_row_digests": True}
        reply = server.complete(prompt, conversation, **turn)
        fresh = self.fresh.complete(prompt, cache_prompt=False, **turn)
        self.assertEqual(ids(reply), ids(fresh))
        self.assertEqual(reply["choices"][0]["row_xxh3"], fresh["choices"][0]["row_xxh3"])
        for name, value in expected.items():
            self.assertEqual(reply["timings"][name], value, f"{name} of {reply['timings']}")
        return prompt + ids(reply)

    def post(self, server, path, body=None):
        reply = server.post(f"/v1/kv/conversations/{path}", body or {})
        self.assertEqual(reply.status, 200, f"{path}: {reply.body}")
        return reply.json

    def through_everything(self, kind):
        first_split, second_split, _ = SPLITS[kind]
        prompt = [20 + (i * 7 + i * i % 13) % 270 for i in range(150)]
        with self.server(kind, (None,), "fresh", store=False) as self.fresh:
            with self.server(kind, first_split, "first") as server:
                held = self.go_on(server, prompt, "c")
                # The last token said is not yet fed, so a turn feeds one more than is new.
                self.assertGreater(self.post(server, "c/park")["bytes_host"], 0)
                self.assertEqual(server.get("/v1/kv/conversations/c").json["state"], "parked")
                held = self.go_on(server, held + [31, 32], "c", cache_n=len(held) - 1, recomputed_n=0)
                self.post(server, "c/fork", {"new_id": "f"})
                forked = self.go_on(server, held + [41], "f", cache_n=len(held) - 1, recomputed_n=0)
                # The fork has fed the token last said: that much is shared.
                held = self.go_on(server, held + [51, 52, 53], "c", cache_n=len(held), recomputed_n=0)
                # Back to within the second turn: what is fed again is counted.
                self.post(server, "c/rewind", {"to": len(prompt) + 6})
                held = self.go_on(server, held[:len(prompt) + 6] + [61], "c")
                # Parked, forked while away, and on.
                self.post(server, "f/park")
                self.post(server, "f/fork", {"new_id": "g"})
                side = self.go_on(server, forked + [71], "g", recomputed_n=0)
                for name, tokens in (("c", held), ("f", forked), ("g", side)):
                    self.assertEqual(self.post(server, f"{name}/save")["n_tokens"], len(tokens) - 1, name)
            with self.server(kind, second_split, "second") as server:
                for name in ("c", "f"):
                    self.assertEqual(self.post(server, f"{name}/restore", {"prove": True})["proof"], "bit-exact", name)
                held = self.go_on(server, held + [81, 82], "c", cache_n=len(held) - 1, recomputed_n=0)
                forked = self.go_on(server, forked + [83], "f", cache_n=len(forked), recomputed_n=0)  # g fed it
                self.go_on(server, side + [84], "g", restored_n=len(side) - 1, recomputed_n=0)
                self.post(server, "c/save")
                self.assertEqual(self.post(server, "c/verify")["problems"], [])
            with self.server(kind, (None,), "third") as server:
                self.go_on(server, held + [91], "c", restored_n=len(held) - 1, recomputed_n=0)
                # The same prompt again, and its answer regenerated: one token.
                self.go_on(server, held + [91], "c", recomputed_n=0, prompt_n=1)


def add(kind):
    setattr(ArchStates, "test_" + kind.replace("-", "_"), lambda self: self.through_everything(kind))


for architecture in SPLITS:
    add(architecture)


class Windows(Case):
    """Pages that no query can see any more come back: what a conversation holds grows by its full-attention layers alone."""

    # Layers that see everything and layers of a window of 40; a row of K and V of two heads of 64 in f16 takes 512 bytes.
    def check(self, kind, full_layers, window_layers, chunk=64):
        folder = self.folder / kind
        folder.mkdir()
        text = topology(tiny_model(folder, "--arch", kind), None, ((1, None),), context=4096, sessions=1, chunk=chunk)
        page = 64 * 512
        with Server(text, self.folder, name=kind) as server:
            prompt, held = [], []
            for length in (300, 1200, 3000):
                prompt += [20 + (i * 7) % 270 for i in range(length - len(prompt))]
                server.complete(prompt, "c", max_tokens=0)
                rows = -(-length // 64) * page * full_layers
                held.append(server.get("/v1/kv/conversations/c").json["bytes_device"] - rows)
                checkpoints = len(server.get("/v1/kv/conversations/c").json["branch_list"][0]["checkpoints"])
                # A window of 40 lies in two pages at most, the session's own and each checkpoint's; a step's stay until the next.
                most = (2 * (1 + checkpoints) + chunk // 64) * page * window_layers
                self.assertLessEqual(held[-1], most, f"{kind} at {length}")
                self.assertGreaterEqual(held[-1], page * window_layers, f"{kind} at {length}")
            self.assertLess(max(held), 3000 // 64 * page * window_layers / 2)

    def test_gemma3(self):
        self.check("gemma3", full_layers=1, window_layers=4)

    def test_gpt_oss(self):
        self.check("gpt-oss", full_layers=1, window_layers=2)


if __name__ == "__main__":
    unittest.main()
