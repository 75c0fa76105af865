"""Lines of a conversation: branches, forks, rewinds, parked images, proofs. The control is always the same requests,
greedy, on a server that was never interrupted and read everything afresh."""
import shutil
import unittest

import rewrite_store
from harness import Case, Server, ids, process_io, tiny_model, topology

PROMPT = [20 + i % 290 for i in range(200)]
STAGES = ((1, "0-1"), (1, "2-3"))


class Lines(Case):
    def text(self, store=None, park="64MiB", sessions=8, stages=STAGES, **keys):
        model = tiny_model(self.folder, "--layers", "4", "--context", "4096")
        return topology(model, store, stages, context=2048, sessions=sessions, **keys) + f"park: {{ram_budget: {park}}}\n"

    def control(self, prompt, n=16):
        """What a server that holds nothing says to this prompt."""
        if not hasattr(self, "fresh"):
            self.fresh = Server(self.text(), self.folder, name="control").start()
            self.addCleanup(self.fresh.stop)
        return ids(self.fresh.complete(prompt, max_tokens=n, ignore_eos=True, cache_prompt=False))

    def go_on(self, server, prompt, conversation, n=16, **expected):
        reply = server.complete(prompt, conversation, max_tokens=n, ignore_eos=True)
        self.assertEqual(ids(reply), self.control(prompt, n))
        for name, value in expected.items():
            self.assertEqual(reply["timings"][name], value, f"{name} of {reply['timings']}")
        return ids(reply)

    def test_parked_conversations_come_back_bit_for_bit(self):
        with Server(self.text(), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            reply = server.post("/v1/kv/conversations/a/park")
            self.assertEqual(reply.status, 200, reply.body)
            self.assertGreater(reply.json["bytes_host"], 0)
            shown = server.get("/v1/kv/conversations/a").json
            self.assertEqual((shown["state"], shown["bytes_host"], shown["bytes_device"]), ("parked", reply.json["bytes_host"], 0))
            # 215 tokens are held: the last one said was never fed.
            self.go_on(server, PROMPT + said + [7, 8], "a", cache_n=215, restored_n=0, recomputed_n=0, prompt_n=3)
            self.assertEqual(server.get("/v1/kv/conversations/a").json["bytes_host"], 0)

    def test_more_conversations_than_sessions_take_turns_through_memory(self):
        with Server(self.text(sessions=2), self.folder) as server:
            held = {}
            for i in range(6):
                prompt = [50 + i] + PROMPT
                held[i] = prompt + self.go_on(server, prompt, f"c{i}")
            for i in range(6):
                self.go_on(server, held[i] + [9], f"c{i}", recomputed_n=0, restored_n=0, cache_n=len(held[i]) - 1)

    def test_beyond_the_ram_budget_the_store_takes_over(self):
        with Server(self.text(self.folder / "store", park="400KiB", sessions=2), self.folder) as server:
            held = {}
            for i in range(8):
                prompt = [50 + i] + PROMPT
                held[i] = prompt + self.go_on(server, prompt, f"c{i}")
            restored = 0
            for i in range(8):
                reply = server.complete(held[i] + [9], f"c{i}", max_tokens=8, ignore_eos=True)
                self.assertEqual(ids(reply), self.control(held[i] + [9], 8))
                self.assertEqual((reply["timings"]["recomputed_n"], reply["timings"]["cache_n"]), (0, len(held[i]) - 1))
                restored += reply["timings"]["restored_n"] > 0
            self.assertGreater(restored, 3)
            self.assertLessEqual(server.metric('layover_conversation_bytes{tier="host"}'), 400 * 1024)

    def test_with_manual_saves_what_finds_no_room_is_read_again(self):
        keys = {"store_keys": {"save": "manual"}}
        with Server(self.text(self.folder / "store", park="0", sessions=1, **keys), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            self.go_on(server, [9] + PROMPT, "b")
            self.go_on(server, PROMPT + said + [9], "a", cache_n=0, recomputed_n=215, prompt_n=2)

    def test_a_fork_shares_everything_and_goes_its_own_way(self):
        store = self.folder / "store"
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "main")
            server.post("/v1/kv/conversations/main/save")
            forked = server.post("/v1/kv/conversations/main/fork", {"new_id": "side"})
            self.assertEqual(forked.status, 200, forked.body)
            self.assertEqual((forked.json["id"], forked.json["n_tokens"]), ("side", 216))
            self.assertEqual(server.post("/v1/kv/conversations/main/fork", {"new_id": "side"}).status, 409)
            self.assertEqual(server.post("/v1/kv/conversations/none/fork", {"new_id": "x"}).status, 404)
            # On disk nothing was copied: the fork's manifest names the other folder's segments.
            shown = server.get("/v1/kv/conversations/side").json
            self.assertEqual((shown["saved_n_tokens"], shown["bytes_disk"]), (215, 0))
            self.assertTrue(all("/" in segment["file"] for segment in shown["segments"]), shown["segments"])
            a = self.go_on(server, PROMPT + said + [7], "main", cache_n=215, recomputed_n=0)
            # The source has fed its last token meanwhile: that serves the fork too.
            b = self.go_on(server, PROMPT + said + [8], "side", cache_n=216, recomputed_n=0)
            self.assertNotEqual(a, b)
        with Server(self.text(store), self.folder, name="again") as server:
            # The source may go: what the fork shares stays.
            self.assertEqual(server.request("DELETE", "/v1/kv/conversations/main").status, 200)
            self.go_on(server, PROMPT + said + [8] + b + [3], "side", recomputed_n=0, restored_n=232)
            report = server.post("/v1/kv/conversations/side/verify").json
            self.assertEqual(report["problems"], [])

    def test_a_fork_of_what_was_never_saved_survives_a_kill(self):
        store = self.folder / "store"
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "main")
            self.assertEqual(server.post("/v1/kv/conversations/main/fork", {"new_id": "side"}).status, 200)
            server.kill()
        with Server(self.text(store), self.folder, name="again") as server:
            self.go_on(server, PROMPT + said + [8], "side", cache_n=0, recomputed_n=215, prompt_n=2)

    def test_rewind(self):
        store = self.folder / "store"
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            server.post("/v1/kv/conversations/a/save")
            reply = server.post("/v1/kv/conversations/a/rewind", {"to": 100})
            self.assertEqual((reply.status, reply.json), (200, {"id": "a", "n_tokens": 100}))
            self.assertEqual(server.get("/v1/kv/conversations/a").json["n_tokens"], 100)
            for beyond in (101, -1):
                self.assertEqual(server.post("/v1/kv/conversations/a/rewind", {"to": beyond}).status, 400, beyond)
            self.assertEqual(server.post("/v1/kv/conversations/none/rewind", {"to": 1}).status, 404)
            self.go_on(server, PROMPT[:100] + [5, 6], "a", cache_n=100, recomputed_n=0, prompt_n=2)
            server.post("/v1/kv/conversations/a/save")
            server.post("/v1/kv/conversations/a/rewind", {"to": 90})
            server.kill()
        with Server(self.text(store), self.folder, name="again") as server:
            self.assertEqual(server.get("/v1/kv/conversations/a").json["n_tokens"], 90)
            self.go_on(server, PROMPT[:90] + [3], "a", cache_n=90, restored_n=90, recomputed_n=0)
            self.assertNotEqual(said, [])

    def test_side_requests_keep_their_own_branch_through_a_restart(self):
        store = self.folder / "store"
        title = PROMPT[:30] + [310 - i for i in range(100)]
        agent = [315 - i for i in range(150)]
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            titled = self.go_on(server, title, "a")
            worked = self.go_on(server, agent, "a")
            shown = server.get("/v1/kv/conversations/a").json
            self.assertEqual(shown["branches"], 3)
            self.go_on(server, PROMPT + said + [4], "a", cache_n=215, recomputed_n=0)
            self.assertEqual(server.post("/v1/kv/conversations/a/save").status, 200)
        with Server(self.text(store), self.folder, name="again") as server:
            self.go_on(server, title + titled + [4], "a", restored_n=145, recomputed_n=0)
            self.go_on(server, agent + worked + [4], "a", restored_n=165, recomputed_n=0)
            self.go_on(server, PROMPT + said + [4, 5], "a", restored_n=217, recomputed_n=0)
            self.assertEqual(server.get("/v1/kv/conversations/a").json["branches"], 3)

    def test_a_line_that_leaves_the_oldest_of_many_keeps_what_it_shares(self):
        lines = [[20 + 30 * i + j % 30 for j in range(80)] for i in range(8)]
        for park in ("64MiB", "0"):
            with self.subTest(park=park), Server(self.text(self.folder / f"store{park}", sessions=12, park=park), self.folder) as server:
                for line in lines:
                    self.go_on(server, line, "a", n=2)
                # Of the side branches the first was used least recently, and is the one left here.
                self.go_on(server, lines[0][:30] + lines[1][:60], "a", n=2, cache_n=30, recomputed_n=0)
                self.assertEqual(server.get("/v1/kv/conversations/a").json["branches"], 8)

    def test_requests_without_an_id_find_their_prefix_and_push_nobody_out(self):
        store = self.folder / "store"
        with Server(self.text(store, sessions=2), self.folder) as server:
            said = self.go_on(server, PROMPT, "keyed")
            for i in range(5):
                self.go_on(server, [60 + i] + PROMPT, None)
            shown = server.get("/v1/kv/conversations/keyed").json
            self.assertEqual(shown["state"], "idle")
            # The head of a keyed conversation serves a request without an id, live ...
            self.go_on(server, PROMPT[:150] + [3], None, cache_n=150, recomputed_n=0)
            server.post("/v1/kv/conversations/keyed/save")
        with Server(self.text(store, sessions=2), self.folder, name="again") as server:
            # ... and from the disk.
            self.go_on(server, PROMPT[:150] + [3], None, cache_n=150, restored_n=150, recomputed_n=0)
            self.go_on(server, PROMPT + said + [3], "keyed", restored_n=215, recomputed_n=0)

    def test_proofs(self):
        store = self.folder / "store"
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            server.post("/v1/kv/conversations/a/save")
        for stages in (STAGES, ((1, None),), ((1, "0-0"), (1, "1-1"), (1, "2-3"))):
            with self.subTest(stages=len(stages)), Server(self.text(store, stages=stages), self.folder, name=f"s{len(stages)}") as server:
                reply = server.post("/v1/kv/conversations/a/restore", {"prove": True})
                self.assertEqual((reply.status, reply.json["proof"]), (200, "bit-exact"), reply.body)
                self.go_on(server, PROMPT + said + [3], "a", recomputed_n=0)
        # A parked state that is saved keeps the proof of when it was live.
        with Server(self.text(self.folder / "parked"), self.folder, name="p") as server:
            self.go_on(server, PROMPT, "a")
            server.post("/v1/kv/conversations/a/park")
            self.assertEqual(server.post("/v1/kv/conversations/a/save").json["n_tokens"], 215)
        with Server(self.text(self.folder / "parked"), self.folder, name="p2") as server:
            self.assertEqual(server.post("/v1/kv/conversations/a/restore", {"prove": True}).json["proof"], "bit-exact")

    def test_a_wrong_proof_is_refused(self):
        store, changed = self.folder / "store", self.folder / "changed"
        with Server(self.text(store), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            server.post("/v1/kv/conversations/a/save")
        shutil.copytree(store, changed)
        # One value is another, and every digest is right again: only the arithmetic can tell.
        rewrite_store.change_one_value(changed)
        with Server(self.text(changed), self.folder, name="changed") as server:
            self.assertEqual(server.post("/v1/kv/conversations/a/restore").status, 200)
            live = server.get("/v1/kv/conversations/a").json["bytes_device"]
            reply = server.post("/v1/kv/conversations/a/restore", {"prove": True})
            self.assertEqual((reply.status, reply.json["error"]["field"]), (422, "proof"), reply.body)
            # What was live is live still, and nobody else is touched.
            shown = server.get("/v1/kv/conversations/a").json
            self.assertEqual((shown["state"], shown["bytes_device"]), ("idle", live))
            self.assertIn("proof", shown["last_error"])
            self.go_on(server, [9] + PROMPT, "b")
        with Server(self.text(changed).replace("min_free: 0", "min_free: 0, prove: true"), self.folder, name="always") as server:
            # A request that would begin there reads its tokens again.
            self.go_on(server, PROMPT + said + [3], "a", restored_n=0, cache_n=0, recomputed_n=215)

    def test_a_save_that_only_names_other_rows_is_proved_too(self):
        store = self.folder / "store"
        with Server(self.text(store), self.folder) as server:
            self.go_on(server, PROMPT, "a")
            server.post("/v1/kv/conversations/a/save")
            server.post("/v1/kv/conversations/a/rewind", {"to": 128})
            saved = server.post("/v1/kv/conversations/a/save").json
            self.assertEqual((saved["n_tokens"], saved["bytes_written"]), (128, 0))
        with Server(self.text(store), self.folder, name="again") as server:
            self.assertEqual(server.post("/v1/kv/conversations/a/restore", {"prove": True}).json["proof"], "bit-exact")

    def test_a_park_that_always_fails_is_not_tried_for_ever(self):
        env = {"LAYOVER_FAULT": "enospc:1+", "LAYOVER_FAULT_PROGRAM": "stage-1", "LAYOVER_FAULT_MATCH": "host memory"}
        with Server(self.text(self.folder / "store", sessions=1), self.folder, env=env) as server:
            said = self.go_on(server, PROMPT, "a")
            self.assertEqual(server.post("/v1/kv/conversations/a/park").status, 507)
            self.assertEqual(server.get("/v1/kv/conversations/a").json["state"], "idle")
            # Who needs its place saves it instead; nobody tries to park it again as it is.
            self.go_on(server, [9] + PROMPT, "b")
            self.assertEqual(server.log_text().count("not parked"), 1)
            self.go_on(server, PROMPT + said + [9], "a", restored_n=215, recomputed_n=0)
            self.assertEqual(server.log_text().count("not parked"), 2)

    def test_a_restore_reads_the_journal_once(self):
        store = self.folder / "store"
        lines = [[20 + i] + [20 + (i + j) % 290 for j in range(1900)] for i in range(16)]
        with Server(self.text(store), self.folder) as server:
            for line in lines:
                server.complete(line, "a", max_tokens=0)
        journal = next(store.glob("c/*/journal")).stat().st_size
        with Server(self.text(store), self.folder, name="again") as server:
            before = process_io(server.process.pid)["rchar"]
            reply = server.complete(lines[-1] + [7], "a", max_tokens=1)
            self.assertEqual(reply["timings"]["restored_n"], 1901)
            read = process_io(server.process.pid)["rchar"] - before
            # The request and what the stages say are in it as well.
            self.assertGreater(read, journal)
            self.assertLess(read, 1.7 * journal)

    def test_one_larger_than_the_ram_budget_stays_live(self):
        with Server(self.text(park="100KiB"), self.folder) as server:
            said = self.go_on(server, PROMPT, "a")
            reply = server.post("/v1/kv/conversations/a/park")
            self.assertEqual((reply.status, "ram_budget" in reply.body.decode()), (507, True), reply.body)
            self.go_on(server, PROMPT + said + [9], "a", cache_n=215)

    def test_a_divergence_is_told(self):
        with Server(self.text(self.folder / "store"), self.folder) as server:
            self.go_on(server, PROMPT, "a")
            self.go_on(server, PROMPT[:190] + [3, 4, 5], "a", cache_n=190)
            shown = server.get("/v1/kv/conversations/a").json["divergence"]
            self.assertEqual(shown["position"], 190)
            self.assertIn(PROMPT[190], shown["had"])
            self.assertIn(3, shown["got"])
            self.assertIn("diverges at 190", server.log_text())


if __name__ == "__main__":
    unittest.main()
