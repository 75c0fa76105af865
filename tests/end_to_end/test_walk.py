"""The walking product: chat over two stages, save, everything gone, start, restore, go on with the same tokens."""
import os
import stat
import unittest

from harness import DEMO_MODEL, Case, Server, layover, process_io, tiny_model, topology

QUESTIONS = ["Tell me about the river Rhine.", "Where does it end?"]
TWO_STAGES = ((1, "0-14"), (1, "15-29"))


def play(server, messages, question, conversation="rhine"):
    messages.append({"role": "user", "content": question})
    reply = server.chat(messages, conversation, max_tokens=24, return_row_digests=True)
    messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    return reply


class WalkingProduct(Case):
    def test_a_restored_conversation_goes_on_as_if_never_interrupted(self):
        def serve(name):
            return Server(topology(DEMO_MODEL, self.folder / name, TWO_STAGES, context=2048, store_keys={"save": "manual"}),
                          self.folder, name=name)

        with serve("control") as server:
            messages = []
            control = [play(server, messages, question) for question in QUESTIONS]

        messages = []
        with serve("walk") as server:
            first = play(server, messages, QUESTIONS[0])
            saved = server.post("/v1/kv/conversations/rhine/save").json
            self.assertEqual(saved["n_tokens"], server.get("/v1/kv/conversations/rhine").json["n_tokens"] - 1)
            self.assertEqual([s["layers"] for s in saved["stages"]], [[0, 15], [15, 30]])
            self.assertEqual(sum(s["bytes_written"] for s in saved["stages"]), saved["bytes_written"])
        self.check_modes(self.folder / "walk")

        with serve("walk") as server:
            before = [process_io(stage["pid"])["rchar"] for stage in server.stages()]
            restored = server.post("/v1/kv/conversations/rhine/restore").json
            self.assertEqual(restored["n_tokens"], saved["n_tokens"])
            # Reading again gives the same bits, so equal tokens prove nothing alone: the bytes must have been read.
            on_disk = sum(p.stat().st_size for p in (self.folder / "walk").rglob("*.seg"))
            self.assertEqual(on_disk, saved["bytes_written"])
            self.assertGreaterEqual(restored["bytes_read"], saved["bytes_written"] * 0.98)
            self.assertGreaterEqual(server.metric("layover_stage_store_read_bytes_total"), restored["bytes_read"])
            second = play(server, messages, QUESTIONS[1])
            self.assertEqual(second["timings"]["recomputed_n"], 0)
            self.assertGreaterEqual(second["timings"]["cache_n"], saved["n_tokens"])
            self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], second["timings"]["cache_n"])
            del before

        for got, want in zip([first, second], control):
            self.assertSameIds(got, want)
            self.assertEqual(got["choices"][0]["row_xxh3"], want["choices"][0]["row_xxh3"])

    def check_modes(self, store):
        for path in [store, *store.rglob("*")]:
            mode = stat.S_IMODE(path.lstat().st_mode)
            self.assertEqual(mode, 0o700 if path.is_dir() else 0o600, path)

    def test_a_request_restores_by_itself(self):
        text = topology(tiny_model(self.folder), self.folder / "store", context=512)
        with Server(text, self.folder) as server:
            first = server.complete(list(range(10, 110)), "c", max_tokens=10, ignore_eos=True)
        with Server(text, self.folder) as server:  # SIGTERM saved it (save: shutdown)
            history = list(range(10, 110)) + first["choices"][0]["token_ids"]
            second = server.complete(history + [7, 8, 9], "c", max_tokens=5, ignore_eos=True)
            timings = second["timings"]
            self.assertEqual(timings["restored_n"], 109)
            self.assertEqual((timings["cache_n"], timings["recomputed_n"], timings["prompt_n"]), (109, 0, 4))
            self.assertGreater(timings["restore_ms"], 0)
        with Server(topology(tiny_model(self.folder), None, context=512), self.folder, name="control") as server:
            self.assertSameIds(second, server.complete(history + [7, 8, 9], max_tokens=5, ignore_eos=True))

    def test_the_same_prompt_again_costs_one_token(self):
        with Server(topology(tiny_model(self.folder), self.folder / "store", context=512), self.folder) as server:
            first = server.complete(list(range(50, 150)), "c", max_tokens=8, ignore_eos=True)
            again = server.complete(list(range(50, 150)), "c", max_tokens=8, ignore_eos=True)
            self.assertSameIds(first, again)
            self.assertEqual(again["timings"]["cache_n"], 99)
            self.assertEqual(again["timings"]["prompt_n"], 1)
            self.assertEqual(again["timings"]["recomputed_n"], 0)

    def test_an_edited_turn_keeps_what_is_before_it(self):
        with Server(topology(tiny_model(self.folder), self.folder / "store", context=512), self.folder) as server:
            server.complete(list(range(50, 250)), "c", max_tokens=4, ignore_eos=True)
            edited = list(range(50, 180)) + [9, 9, 9]
            reply = server.complete(edited, "c", max_tokens=4, ignore_eos=True)
            self.assertEqual(reply["timings"]["cache_n"], 130)
            show = server.get("/v1/kv/conversations/c").json
            self.assertEqual(show["divergence"]["position"], 130)
            self.assertIn("diverges at 130", server.log_text())
            self.assertSameIds(reply, server.complete(edited, cache_prompt=False, max_tokens=4, ignore_eos=True))

    def test_a_side_request_does_not_push_the_main_line_out(self):
        with Server(topology(tiny_model(self.folder), self.folder / "store", context=512), self.folder) as server:
            main = list(range(50, 250))
            first = server.complete(main, "c", max_tokens=4, ignore_eos=True)
            server.complete(main[:20] + list(range(30, 60)), "c", max_tokens=4, ignore_eos=True)
            reply = server.complete(main + first["choices"][0]["token_ids"] + [5], "c", max_tokens=4, ignore_eos=True)
            self.assertEqual(reply["timings"]["cache_n"], 203)

    def test_a_second_server_on_the_same_store_is_refused(self):
        text = topology(tiny_model(self.folder), self.folder / "store", context=256)
        with Server(text, self.folder) as server:
            second = Server(text, self.folder, name="second").start(expect_ready=False)
            self.assertEqual(second.process.wait(timeout=30), 1)
            self.assertIn(str(server.process.pid), second.log_text())

    def test_without_a_store_nothing_is_written(self):
        with Server(topology(tiny_model(self.folder), None, context=256), self.folder) as server:
            server.complete([5, 6, 7], "c", max_tokens=3, ignore_eos=True)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 501)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.is_dir()], [])

    def test_offline_verbs_see_what_the_server_left(self):
        store = self.folder / "store"
        with Server(topology(tiny_model(self.folder), store, context=256), self.folder) as server:
            server.complete([5, 6, 7, 8], "a/b", max_tokens=3, ignore_eos=True)
            self.assertEqual(layover("rm", "a/b", "--store", store).returncode, 1)  # the server holds the lock
        listed = layover("ls", "--store", store, "--json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn('"a/b"', listed.stdout)
        self.assertEqual(layover("show", "a/b", "--store", store, "--json").returncode, 0)
        self.assertEqual(layover("verify", "--store", store, "--json").returncode, 0)
        self.assertEqual(layover("show", "nobody", "--store", store).returncode, 3)
        self.assertEqual(layover("rm", "a/b", "--store", store).returncode, 0)
        self.assertEqual(layover("show", "a/b", "--store", store).returncode, 3)
        self.assertEqual(list(store.glob("c/*/*.seg")), [])


if __name__ == "__main__":
    os.umask(0)  # modes must not depend on it
    unittest.main()
