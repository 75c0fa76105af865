"""Models whose state cannot be cut (recurrent layers, sliding windows): conversations survive restarts, parking and other
splits bit for bit, and whatever a client comes back to is served from a checkpoint, never by reading everything again.
The control is always a server that holds nothing."""
import shutil
import unittest

from harness import Case, Server, ids, tiny_model, topology

KINDS = ["qwen35", "qwen3next", "qwen35moe", "gemma3", "gpt-oss"]
TWO, ONE, THREE = ((1, None),) * 2, ((2, None),), ((1, None),) * 3


class Hybrid(Case):
    def text(self, kind, store=None, stages=TWO, park="64MiB", **keys):
        folder = self.folder / kind
        folder.mkdir(exist_ok=True)
        model = tiny_model(folder, "--arch", kind)
        keys = {"sessions": 3, "context": 4096, **keys}
        return topology(model, store, stages, **keys) + f"park: {{ram_budget: {park}}}\n"

    def control(self, kind, prompt, n):
        if getattr(self, "control_kind", None) != kind:
            self.control_kind = kind
            self.fresh = Server(self.text(kind), self.folder, name=f"control-{kind}").start()
            self.addCleanup(self.fresh.stop)
        return ids(self.fresh.complete(prompt, max_tokens=n, ignore_eos=True, cache_prompt=False))

    def go_on(self, server, kind, prompt, conversation="c", n=12, **expected):
        reply = server.complete(prompt, conversation, max_tokens=n, ignore_eos=True)
        self.assertEqual(ids(reply), self.control(kind, prompt, n))
        for name, value in expected.items():
            self.assertEqual(reply["timings"][name], value, f"{name} of {reply['timings']}")
        return ids(reply)

    def test_a_long_chat_survives_a_restart_on_another_split(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.a_long_chat_survives_a_restart_on_another_split(kind)

    def a_long_chat_survives_a_restart_on_another_split(self, kind):
        prompt = [20 + (i * 7) % 270 for i in range(3000)]
        store = self.folder / f"store-{kind}"
        with Server(self.text(kind, store), self.folder, name=f"{kind}-a") as server:
            said = self.go_on(server, kind, prompt)
        for number, stages in enumerate((ONE, THREE)):
            copy = self.folder / f"{store.name}-{number}"
            shutil.copytree(store, copy)
            with Server(self.text(kind, copy, stages), self.folder, name=f"{kind}-{number}") as server:
                reply = server.post("/v1/kv/conversations/c/restore", {"prove": True})
                self.assertEqual((reply.status, reply.json["proof"]), (200, "bit-exact"), reply.body)
                turn = prompt + said + [21, 22, 23]
                # The last token said was never fed: it comes with the three new ones.
                again = self.go_on(server, kind, turn, cache_n=len(prompt) + 11, recomputed_n=0, prompt_n=4)
                # Regenerate: one token.
                self.go_on(server, kind, turn, recomputed_n=0, prompt_n=1)
                # Another last turn: from the end of the one before. The token last said there is fed a second time.
                self.go_on(server, kind, prompt + said + [30, 31], cache_n=len(prompt) + 11, recomputed_n=1, prompt_n=2)
                self.assertEqual(len(again), 12)
                self.assertEqual(server.post("/v1/kv/conversations/c/verify").json["problems"], [])

    def test_after_a_restart_the_last_answer_is_regenerated_from_a_saved_checkpoint(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.after_a_restart_the_last_answer_is_regenerated_from_a_saved_checkpoint(kind)

    def after_a_restart_the_last_answer_is_regenerated_from_a_saved_checkpoint(self, kind):
        prompt = [20 + (i * 5) % 270 for i in range(700)]
        store = self.folder / f"store-{kind}"
        with Server(self.text(kind, store), self.folder, name=f"{kind}-a") as server:
            said = self.go_on(server, kind, prompt)
            said = self.go_on(server, kind, prompt + said + [5, 6, 7])
        turn = prompt + self.control(kind, prompt, 12) + [5, 6, 7]
        with Server(self.text(kind, store, ONE), self.folder, name=f"{kind}-b") as server:
            shown = server.get("/v1/kv/conversations/c").json
            self.assertEqual(shown["saved_n_tokens"], len(turn) + 11)
            self.go_on(server, kind, turn, restored_n=len(turn) - 1, recomputed_n=0, prompt_n=1)
        with Server(self.text(kind, store, ONE), self.folder, name=f"{kind}-c") as server:
            # An edited last turn goes back to the end of the turn before.
            self.go_on(server, kind, prompt + self.control(kind, prompt, 12) + [9], restored_n=len(prompt) + 11, recomputed_n=1)
            self.assertEqual(len(said), 12)

    def test_a_chat_of_messages_goes_on_after_a_restart(self):
        for kind in ("qwen35", "qwen3next", "qwen35moe"):
            with self.subTest(kind=kind):
                self.a_chat_of_messages_goes_on_after_a_restart(kind)

    def a_chat_of_messages_goes_on_after_a_restart(self, kind):
        words = ["the river", "a stone wall", "an old boat", "seven lanterns", "the far hill"]
        told = ["; ".join(f"{words[(i * j) % 5]} and {words[i % 5]}" for i in range(40)) + f". {j}?" for j in range(1, 5)]
        told.append("And then?")
        generation_prompt = 12  # at most: <|im_start|>, "assistant" and a line's end

        def say(server, messages, seed, conversation="c"):
            return server.chat(messages, conversation, max_tokens=3, ignore_eos=True, temperature=1, seed=seed)

        def with_answer(messages, reply):
            return messages + [{"role": "assistant", "content": reply["choices"][0]["message"]["content"]}]

        # Seeds with which it says text: half of the tokens are parts of characters, and what becomes of them a client
        # cannot give back.
        seeds, want, messages = [], [], []
        with Server(self.text(kind), self.folder, name=f"{kind}-never-interrupted") as server:
            for text in told:
                messages = messages + [{"role": "user", "content": text}]
                seeds.append(next(seed for seed in range(1000) if all(
                    " " <= c <= "~" for c in say(server, messages, seed, None)["choices"][0]["message"]["content"])))
                want.append(say(server, messages, seeds[-1]))
                messages = with_answer(messages, want[-1])
        store = self.folder / f"store-{kind}"
        with Server(self.text(kind, store), self.folder, name=f"{kind}-a") as server:
            for turn in range(4):
                self.assertSameIds(say(server, messages[:2 * turn + 1], seeds[turn]), want[turn])
        held = want[3]["usage"]["total_tokens"]
        self.assertGreater(held, 3000)
        with Server(self.text(kind, store, THREE), self.folder, name=f"{kind}-b") as server:
            reply = say(server, messages[:9], seeds[4])
            self.assertSameIds(reply, want[4])
            timings = reply["timings"]
            self.assertEqual((timings["recomputed_n"], timings["restored_n"]), (0, held - 1), timings)
            self.assertLessEqual(timings["prompt_n"], reply["usage"]["prompt_tokens"] - held + 1)
            self.regenerate(say, server, messages, seeds, want, {4: 1})
        with Server(self.text(kind, store, ONE), self.folder, name=f"{kind}-c") as server:
            # The last answer from one before its prompt's end; the one before, from before its generation prompt.
            self.regenerate(say, server, messages, seeds, want, {4: 1, 3: 1 + generation_prompt})

    def regenerate(self, say, server, messages, seeds, want, bounds):
        for turn, most in bounds.items():
            reply = say(server, messages[:2 * turn + 1], seeds[turn])
            self.assertSameIds(reply, want[turn])
            timings = reply["timings"]
            self.assertLessEqual(timings["prompt_n"] + timings["recomputed_n"], most, timings)

    def test_parking_and_eviction(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.parking_and_eviction(kind)

    def parking_and_eviction(self, kind):
        store = self.folder / f"store-{kind}"
        with Server(self.text(kind, store, sessions=1, park="2MiB"), self.folder, name=f"{kind}-a") as server:
            held = {}
            for i in range(5):
                prompt = [40 + i] + [20 + (i + j * 3) % 270 for j in range(300)]
                held[i] = prompt + self.go_on(server, kind, prompt, f"c{i}")
            for i in range(5):
                self.go_on(server, kind, held[i] + [9], f"c{i}", recomputed_n=0, prompt_n=2)
                # The same prompt again after it was away: one token.
                self.go_on(server, kind, [7] * 20, "other")
                self.go_on(server, kind, held[i] + [9], f"c{i}", recomputed_n=0, prompt_n=1)

    def test_forks_rewinds_and_deltas(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.forks_rewinds_and_deltas(kind)

    def forks_rewinds_and_deltas(self, kind):
        prompt = [20 + (i * 3) % 270 for i in range(400)]
        store = self.folder / f"store-{kind}"
        with Server(self.text(kind, store), self.folder, name=f"{kind}-a") as server:
            said = self.go_on(server, kind, prompt)
            first = server.post("/v1/kv/conversations/c/save").json["bytes_written"]
            self.go_on(server, kind, prompt + said + [5])
            second = server.post("/v1/kv/conversations/c/save").json
            self.assertLess(second["bytes_written"], first)
            self.assertEqual(server.post("/v1/kv/conversations/c/fork", {"new_id": "f"}).status, 200)
            self.go_on(server, kind, prompt + said + [6], "f", recomputed_n=0)
            shown = server.get("/v1/kv/conversations/c").json
            positions = shown["branch_list"][0]["checkpoints"]
            self.assertIn(len(prompt) - 1, positions)
            self.assertEqual(server.post("/v1/kv/conversations/c/rewind", {"to": 405}).status, 200)
            # Nothing between the checkpoint and there is held: what was fed again is counted.
            reply = server.complete((prompt + said)[:405] + [8], "c", max_tokens=12, ignore_eos=True)
            self.assertEqual(ids(reply), self.control(kind, (prompt + said)[:405] + [8], 12))
            self.assertEqual(reply["timings"]["cache_n"], 399)
            for turn in range(12):
                server.complete(prompt + [60 + turn] * 3, "c", max_tokens=4, ignore_eos=True)
                self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 200)
        with Server(self.text(kind, store, THREE), self.folder, name=f"{kind}-b") as server:
            # From one before the end of its last prompt.
            self.go_on(server, kind, prompt + said + [6, 7], "f", recomputed_n=1, restored_n=412)
            self.go_on(server, kind, prompt + [71] * 3, "c", recomputed_n=0, prompt_n=1)
            for name in ("c", "f"):
                self.assertEqual(server.post(f"/v1/kv/conversations/{name}/verify").json["problems"], [], name)


if __name__ == "__main__":
    unittest.main()
