"""Many conversations at once: no answer from another one's state, other splits, every length, names that try to escape."""
import concurrent.futures
import signal
import unittest
import urllib.parse

from harness import Case, DEMO_MODEL, Server, ids, process_io, tiny_model, topology

STAGES = ((1, "0-1"), (1, "2-3"))


class Many(Case):
    def text(self, store=None, stages=STAGES, sessions=8, park="64MiB", **keys):
        model = tiny_model(self.folder, "--layers", "4", "--context", "4096")
        return topology(model, store, stages, context=2048, sessions=sessions, **keys) + f"park: {{ram_budget: {park}}}\n"

    def test_twenty_chats_with_a_shared_head_and_a_secret_each(self):
        head = [20 + (i * 11) % 290 for i in range(600)]
        secrets = [[30 + i, 60 + i, 100 + i] * 4 for i in range(20)]
        turns = [[15, 16, 17], [18], [19, 15]]

        def chat(server, i, keyed):
            """All turns of one chat; the ids said, and the timings."""
            tokens, said, timings = head + secrets[i], [], []
            for turn in turns:
                tokens = tokens + turn
                fields = {"conversation": f"chat-{i}"} if keyed else {"cache_prompt": False}
                reply = server.complete(tokens, fields.pop("conversation", None), max_tokens=6, ignore_eos=True, **fields)
                said.append(ids(reply))
                timings.append(reply["timings"])
                tokens = tokens + ids(reply)
            return said, timings

        with Server(self.text(), self.folder, name="control") as server:
            control = [chat(server, i, False)[0] for i in range(20)]
        self.assertEqual(len({str(said) for said in control}), 20, "the secrets do not matter")
        store = self.folder / "store"
        keys = {"store_keys": {"save": "evict"}, "sessions": 4, "park": "1MiB"}
        with Server(self.text(store, **keys), self.folder) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda i: chat(server, i, True), range(20)))
            for i, (said, timings) in enumerate(results):
                self.assertEqual(said, control[i], f"chat {i}")
                self.assertEqual([t["recomputed_n"] for t in timings], [0, 0, 0], f"chat {i}")
            shared = sum(timings[0]["cache_n"] >= len(head) for _, timings in results)
            self.assertGreaterEqual(shared, 12)  # the first eight come at once: some find nothing to share yet
            # Another round, from wherever they are now: everything is reused.
            again = list(pool.map(lambda i: chat(server, i, True), range(20)))
            for i, (said, timings) in enumerate(again):
                self.assertEqual(said, control[i], f"chat {i}, second round")
                self.assertEqual([t["recomputed_n"] for t in timings], [0, 0, 0], f"chat {i}, second round")
            self.assertGreaterEqual(sum(t[0]["cache_n"] >= len(head) for _, t in again), 19)
            disk = [server.get(f"/v1/kv/conversations/chat-{i}").json for i in range(20)]
        with Server(self.text(store, **keys), self.folder, name="again") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda i: chat(server, i, True), range(20)))
            for i, (said, timings) in enumerate(results):
                self.assertEqual(said, control[i], f"chat {i} after the restart")
                self.assertEqual([t["recomputed_n"] for t in timings], [0, 0, 0], f"chat {i} after the restart")
            # Most of them keep the head once for all.
            disk = [server.get(f"/v1/kv/conversations/chat-{i}").json for i in range(20)]
            foreign = sum(any("/" in s["file"] for s in shown["segments"]) for shown in disk)
            self.assertGreaterEqual(foreign, 10)

    def test_other_splits_read_their_own_layers(self):
        store = self.folder / "store"
        prompt = [300 + (i * 7) % 1000 for i in range(600)]

        def text(stages):
            return topology(DEMO_MODEL, store, stages, context=2048, store_keys={"save": "manual"})

        with Server(text(((1, "0-14"), (1, "15-29"))), self.folder, name="two") as server:
            said = ids(server.complete(prompt, "c", max_tokens=8, ignore_eos=True))
            image = server.post("/v1/kv/conversations/c/save").json["bytes_written"]
            goes_on = ids(server.complete(prompt + said + [7], max_tokens=8, ignore_eos=True, cache_prompt=False))
        splits = {1: ((1, None),), 3: ((1, "0-9"), (1, "10-11"), (1, "12-29")), 4: ((1, "0-6"), (1, "7-14"), (1, "15-15"), (1, "16-29"))}
        for count, stages in splits.items():
            with self.subTest(stages=count), Server(text(stages), self.folder, name=f"split{count}") as server:
                before = process_io(server.process.pid)["rchar"]
                reply = server.post("/v1/kv/conversations/c/restore").json
                coordinator = process_io(server.process.pid)["rchar"] - before
                read = sum(stage["bytes_read"] for stage in reply["stages"])
                self.assertLessEqual(read, 1.05 * image)
                self.assertLess(coordinator, 0.05 * image + 64 * 1024)
                self.assertEqual(server.metric("layover_stage_store_read_bytes_total"), read)
                reply = server.complete(prompt + said + [7], "c", max_tokens=8, ignore_eos=True)
                self.assertEqual(ids(reply), goes_on)
                # 607 are held; what another split went on to say is in the journal only.
                self.assertEqual(reply["timings"]["cache_n"], 607)

    def test_idle_chats_of_every_length_survive_sigterm(self):
        lengths = [1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513]
        prompts = {n: [20 + (i + n) % 290 for i in range(n)] for n in lengths}
        store = self.folder / "store"
        said = {}
        with Server(self.text(store, sessions=4), self.folder) as server:
            for n in lengths:
                said[n] = ids(server.complete(prompts[n], f"len {n}", max_tokens=4, ignore_eos=True))
            control = {n: ids(server.complete(prompts[n] + said[n] + [9], max_tokens=6, ignore_eos=True, cache_prompt=False)) for n in lengths}
            self.assertEqual(server.stop(signal.SIGTERM), 0)
        with Server(self.text(store, sessions=4), self.folder, name="again") as server:
            for n in lengths:
                reply = server.complete(prompts[n] + said[n] + [9], f"len {n}", max_tokens=6, ignore_eos=True)
                self.assertEqual(ids(reply), control[n], n)
                timings = reply["timings"]
                self.assertEqual((timings["recomputed_n"], timings["restored_n"], timings["prompt_n"]), (0, n + 3, 2), n)

    def test_after_a_restart_regenerate_edit_and_drop(self):
        store = self.folder / "store"
        system, user, think = [20 + i for i in range(80)], [120 + i for i in range(60)], [200 + i for i in range(30)]
        first = system + user
        with Server(self.text(store), self.folder) as server:
            answer = ids(server.complete(first, "c", max_tokens=20, ignore_eos=True))
            second = first + think + answer + [5, 6, 7]
            server.complete(second, "c", max_tokens=10, ignore_eos=True)

            def control(prompt):
                return ids(server.complete(prompt, max_tokens=12, ignore_eos=True, cache_prompt=False))

            cases = {"the same prompt": second, "dropped reasoning": first + answer + [5, 6, 7, 8],
                     "edited last turn": first + think + answer + [9, 9], "edited first turn": system + user[:30] + [9]}
            wanted = {name: control(prompt) for name, prompt in cases.items()}
        for name, prompt in cases.items():
            with self.subTest(case=name), Server(self.text(store, store_keys={"save": "manual"}), self.folder, name=f"s{len(prompt)}") as server:
                shared = next((i for i, (a, b) in enumerate(zip(prompt, second)) if a != b), len(prompt))
                reply = server.complete(prompt, "c", max_tokens=12, ignore_eos=True)
                self.assertEqual(ids(reply), wanted[name])
                timings = reply["timings"]
                self.assertEqual(timings["recomputed_n"], 0)
                self.assertEqual(timings["prompt_n"], max(1, len(prompt) - shared))

    def test_names_never_escape_the_store(self):
        store = self.folder / "store"
        outside = self.folder / "outside"
        outside.mkdir()
        prompt = [20 + i for i in range(70)]
        with Server(self.text(store), self.folder) as server:
            live = ids(server.complete(prompt, "live", max_tokens=4, ignore_eos=True))
            names = ["../x", "/etc/passwd", "../../outside/x", str(outside / "x"), "a/b", "..", "x" * 256]
            for name in names:
                quoted = urllib.parse.quote(name, safe="")
                self.assertEqual(server.post(f"/v1/kv/conversations/{quoted}/restore").status, 404, name)
                server.complete(prompt[:20], name, max_tokens=1, ignore_eos=True)
                self.assertEqual(server.post(f"/v1/kv/conversations/{quoted}/save").status, 200, name)
                self.assertEqual(server.get(f"/v1/kv/conversations/{quoted}").json["id"], name)
            for bad in ("%ff%fe", "a%00b", urllib.parse.quote("x" * 300), "%0a"):
                self.assertEqual(server.post(f"/v1/kv/conversations/{bad}/restore").status, 400, bad)
            self.assertEqual(list(outside.iterdir()), [])
            self.assertEqual(sorted(p.name for p in store.iterdir()), ["c", "catalog.db", "lock"])
            self.assertTrue(all(len(p.name) == 64 for p in (store / "c").iterdir()))
            # Restoring what is not there leaves the live chat as it is.
            reply = server.complete(prompt + live + [3], "live", max_tokens=4, ignore_eos=True)
            self.assertEqual(reply["timings"]["cache_n"], 73)


if __name__ == "__main__":
    unittest.main()
