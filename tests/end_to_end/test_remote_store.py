"""Save and restore where each machine keeps its own stage's segments: moments of death, what nothing needs any more,
other splits that read what other machines keep, and damage."""
import json
import os
import unittest
from http.client import HTTPException

from harness import Server, ids, layover
from remote_case import PROMPT, Listening, RemoteCase, until

FIELDS = {"max_tokens": 40, "ignore_eos": True, "return_row_digests": True}


class RemoteStore(RemoteCase):
    # --- tokens, save, restore

    def test_same_tokens_save_and_restore(self):
        control = self.control(**FIELDS)
        stage = self.keeping().start()
        text = self.topology("", stage.host, store=self.folder / "store")
        with Server(text, self.folder) as server:
            first = server.complete(PROMPT, "c", **FIELDS)
            self.assertSameIds(first, control)
            self.assertEqual(first["choices"][0]["row_xxh3"], control["choices"][0]["row_xxh3"])
            saved = server.post("/v1/kv/conversations/c/save").json
            self.assertEqual(len(saved["stages"]), 2)
        # Each machine keeps its own stage's segment, for its owner alone.
        (segment,) = stage.segments()
        self.assertEqual(segment.name, "s01-g000001.seg")
        self.assertEqual(segment.stat().st_mode & 0o777, 0o600)
        for folder in (segment.parent, *list(segment.parents)[1:4]):
            self.assertEqual(folder.stat().st_mode & 0o777, 0o700, folder)
        self.assertEqual([p.name for p in (self.folder / "store").rglob("*.seg")], ["s00-g000001.seg"])
        manifest = json.loads(next((self.folder / "store").rglob("manifest.json")).read_text())
        self.assertEqual([s["host"] for s in manifest["segments"]], [None, stage.host])
        # All of it stops and starts again.
        stage.kill()
        stage.start()
        with Server(text, self.folder) as server:
            restored = server.post("/v1/kv/conversations/c/restore", {"prove": True}).json
            self.assertEqual(restored["n_tokens"], saved["n_tokens"])
            self.assertEqual(restored["proof"], "bit-exact")
            self.assertTrue(all(s["bytes_read"] > 0 for s in restored["stages"]))
            again = server.complete(PROMPT, "c", **FIELDS)
            self.assertSameIds(again, control)
            self.assertEqual(again["choices"][0]["row_xxh3"], control["choices"][0]["row_xxh3"])
            self.assertEqual(again["timings"]["recomputed_n"], 0)
        plan = layover("plan", self.folder / "server.yaml", "--json")
        self.assertEqual([s.get("host") for s in json.loads(plan.stdout)["stages"]], [None, stage.host])
        self.assertIn(stage.host, layover("plan", self.folder / "server.yaml").stdout)

    def test_a_request_restores_by_itself_and_deltas_go_on(self):
        stage = self.keeping().start()
        text = self.topology("", stage.host, store=self.folder / "store")
        long = {"max_tokens": 90, "ignore_eos": True}
        with Server(self.topology("", ""), self.folder, name="control") as server:
            one = server.complete(PROMPT, "c", **long)
            two = server.complete(PROMPT + ids(one) + [7], "c", **long)
        with Server(text, self.folder) as server:
            server.complete(PROMPT, "c", **long)
            server.post("/v1/kv/conversations/c/save")
        with Server(text, self.folder) as server:
            reply = server.complete(PROMPT + ids(one) + [7], "c", **long)
            self.assertSameIds(reply, two)
            self.assertEqual(reply["timings"]["recomputed_n"], 0)
            self.assertGreater(reply["timings"]["restored_n"], 150)
            saved = server.post("/v1/kv/conversations/c/save").json
            self.assertGreater(saved["bytes_kept"], 0)
        self.assertEqual([p.name for p in stage.segments()], ["s01-g000001.seg", "s01-g000002.seg"])

    def test_what_nothing_needs_goes(self):
        stage = self.keeping().start()
        store = self.folder / "store"
        text = self.topology("", stage.host, store=store)
        with Server(text, self.folder) as server:
            for i, name in enumerate("abc"):
                server.complete([50 + i, *PROMPT], name, max_tokens=4)  # nothing of it is shared
                server.post(f"/v1/kv/conversations/{name}/save")
            self.assertEqual(len(stage.segments()), 3)
            # Deleted while the machine is there.
            self.assertEqual(server.request("DELETE", "/v1/kv/conversations/a").status, 200)
            until(lambda: len(stage.segments()) == 2)
        # Removed without a server, and left by a save that never became one.
        self.assertEqual(layover("rm", "b", "--store", store).returncode, 0)
        (kept,) = [p for p in stage.segments() if p.parent.name in os.listdir(store / "c")]
        stray = kept.with_name("s01-g000009.seg")
        stray.write_bytes(b"of a save that came to nothing")
        before = kept.read_bytes()
        with Server(text, self.folder) as server:
            until(lambda: stage.segments() == [kept])
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)
        # Another store's coordinator sees nothing of it, and harms nothing.
        with Server(self.topology("", stage.host, store=self.folder / "other"), self.folder, name="other") as server:
            server.complete(PROMPT, "c", max_tokens=4)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 200)
            self.assertEqual(len(stage.segments()), 2)
        self.assertEqual(kept.read_bytes(), before)

    def turn_and_save(self, server, history, tokens=70):
        """The history after one more turn, and the save's reply."""
        reply = server.complete(history, "c", max_tokens=tokens, ignore_eos=True)
        return history + ids(reply) + [5], server.post("/v1/kv/conversations/c/save")

    def assert_only_named(self, stage, store):
        """What lies on the machine is what the one manifest names."""
        manifest = json.loads(next(store.rglob("manifest.json")).read_text())
        named = sorted(s["file"] for s in manifest["segments"] if s["host"] == stage.host)
        until(lambda: [p.name for p in stage.segments()] == named)

    def test_a_save_that_fails_there_fails_everywhere(self):
        stage = self.keeping().start(LAYOVER_FAULT="enospc:1", LAYOVER_FAULT_MATCH=".seg", LAYOVER_FAULT_PROGRAM="stage-1")
        store = self.folder / "store"
        with Server(self.topology("", stage.host, store=store), self.folder) as server:
            _, saved = self.turn_and_save(server, PROMPT)
            self.assertEqual(saved.status, 507)
            self.assertEqual(server.get("/v1/kv/conversations/c").json["generation"], 0)
            until(lambda: not list(store.rglob("*.seg")) and not stage.segments())
            self.assertEqual(list(store.rglob("manifest.json")), [])

    def test_its_worker_is_killed_while_it_saves(self):
        store = self.folder / "store"
        stage = self.keeping()
        text = self.topology("", stage.host, store=store)
        history, generation, killed = PROMPT, 0, 0
        for moment in (1, 2, 3):
            with self.subTest(moment=moment):
                stage.start(LAYOVER_FAULT=f"kill:{moment}", LAYOVER_FAULT_MATCH=f"g{generation + 2:06}.seg",
                            LAYOVER_FAULT_PROGRAM="stage-1")
                with Server(text, self.folder) as server:
                    history, saved = self.turn_and_save(server, history)
                    self.assertEqual(saved.json["generation"], generation + 1)
                    history, saved = self.turn_and_save(server, history)
                    killed += saved.status != 200
                    generation += 2 if saved.status == 200 else 1
                    if saved.status != 200:
                        self.restart_and_wait(stage, server)  # without the fault
                    # The old generation or the new one, and its bytes are good.
                    restored = server.post("/v1/kv/conversations/c/restore", {"prove": True}).json
                    self.assertEqual(restored["generation"], generation)
                    self.assertEqual(restored["proof"], "bit-exact")
                    self.assert_only_named(stage, store)
                stage.kill()
        self.assertGreaterEqual(killed, 2)

    def test_the_coordinator_is_killed_while_it_commits(self):
        store = self.folder / "store"
        stage = self.keeping().start()
        text = self.topology("", stage.host, store=store)
        with Server(text, self.folder) as server:
            history, saved = self.turn_and_save(server, PROMPT)
        held, kept_old, took_new = saved.json["n_tokens"], 0, 0
        for moment in (1, 2, 3, 4):
            with self.subTest(moment=moment):
                fault = {"LAYOVER_FAULT": f"kill:{moment}", "LAYOVER_FAULT_MATCH": "manifest.json", "LAYOVER_FAULT_PROGRAM": "layover"}
                server = Server(text, self.folder, env=fault, name=f"killed-{moment}").start()
                with self.assertRaises((OSError, HTTPException)):
                    history, _ = self.turn_and_save(server, history)
                server.kill()
                with Server(text, self.folder) as server:
                    restored = server.post("/v1/kv/conversations/c/restore", {"prove": True}).json
                    self.assertEqual(restored["proof"], "bit-exact")
                    kept_old += restored["n_tokens"] == held
                    took_new += restored["n_tokens"] > held
                    held = restored["n_tokens"]
                    self.assert_only_named(stage, store)
        self.assertGreater(kept_old, 0)
        self.assertGreater(took_new, 0)

    # --- other splits

    def make_ends(self):
        """Flags of a listening machine, and what the topology says of it: with keys."""
        own_public, own_secret = self.make_keys("here")
        public, secret = self.make_keys("there")
        return (["--secret-key-file", secret, "--public-key-file", own_public],
                f", public_key_file: {public}, secret_key_file: {own_secret}")

    def test_other_splits_read_what_other_machines_keep(self):
        flags, keys = self.make_ends()
        a, b = (Listening(self, flags, store=self.folder / name).start() for name in "ab")
        store = self.folder / "store"
        with Server(self.topology("", ""), self.folder, name="control") as server:
            one = server.complete(PROMPT, "c", max_tokens=90, ignore_eos=True)
            history = PROMPT + ids(one) + [5]
            two = server.complete(history, "c", **FIELDS)
        with Server(self.topology("", a.host, store=store, keys=keys), self.folder, name="saves") as server:
            server.complete(PROMPT, "c", max_tokens=90, ignore_eos=True)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").json["generation"], 1)
        # From here to there, from there to here, a third machine, and several stages of this one.
        for hosts in ((a.host, ""), ("", "", "", a.host), (b.host, a.host, "", "")):
            with self.subTest(hosts=hosts), Server(self.topology(*hosts, store=store, keys=keys), self.folder) as server:
                restored = server.post("/v1/kv/conversations/c/restore", {"prove": True}).json
                self.assertEqual(restored["proof"], "bit-exact")
                self.assertTrue(all(s["bytes_read"] > 0 for s in restored["stages"]))
                reply = server.complete(history, "c", **FIELDS)
                self.assertEqual(reply["choices"][0]["row_xxh3"], two["choices"][0]["row_xxh3"])
                self.assertLessEqual(reply["timings"]["recomputed_n"], 1)  # the 5, which the split before has journalled
        with Server(self.topology(a.host, b.host, store=store, keys=keys), self.folder, name="without") as server:
            refused = server.post("/v1/kv/conversations/c/restore")  # nobody can read this machine's own files
            self.assertEqual(refused.status, 409)
            self.assertIn("the coordinator's machine", refused.json["error"]["message"])
            self.assertEqual(refused.json["error"]["file"], "s00-g000001.seg")

    def test_two_machines_change_places(self):
        a, b = self.keeping("a").start(), self.keeping("b").start()
        store = self.folder / "store"
        with Server(self.topology(a.host, b.host, store=store), self.folder) as server:
            one = server.complete(PROMPT, "c", max_tokens=90, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
            control = server.complete(PROMPT + ids(one) + [5], "c", **FIELDS)
        self.assertEqual(list(store.rglob("*.seg")), [])
        with Server(self.topology(b.host, a.host, store=store), self.folder) as server:
            reply = server.complete(PROMPT + ids(one) + [5], "c", **FIELDS)
            self.assertEqual(reply["choices"][0]["row_xxh3"], control["choices"][0]["row_xxh3"])
            self.assertGreater(reply["timings"]["restored_n"], 150)

    def test_a_machine_that_is_gone_is_named_and_the_chat_goes_on(self):
        stage = self.keeping().start()
        store = self.folder / "store"
        with Server(self.topology("", ""), self.folder, name="control") as server:
            one = server.complete(PROMPT, "c", max_tokens=40, ignore_eos=True)
            history = PROMPT + ids(one) + [5]
            two = server.complete(history, "c", **FIELDS)
        with Server(self.topology("", stage.host, store=store), self.folder) as server:
            server.complete(PROMPT, "c", max_tokens=40, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
        stage.kill()
        text = self.topology("", "", store=store)
        with Server(text, self.folder, name="without") as server:
            refused = server.post("/v1/kv/conversations/c/restore")
            self.assertEqual(refused.status, 409)
            self.assertIn(stage.host, refused.json["error"]["message"])
            self.assertEqual(refused.json["error"]["file"], "s01-g000001.seg")
            reply = server.complete(history, "c", **FIELDS)
            self.assertSameIds(reply, two)
            self.assertGreater(reply["timings"]["recomputed_n"], 100)
            # What is saved now does not stand on what cannot be read.
            self.assertEqual(server.post("/v1/kv/conversations/c/save").json["bytes_kept"], 0)
            self.assertTrue(server.post("/v1/kv/conversations/c/verify").json["ok"])
        with Server(text, self.folder, name="without") as server:
            self.assertEqual(server.post("/v1/kv/conversations/c/restore", {"prove": True}).json["proof"], "bit-exact")
        stage.start()
        with Server(self.topology("", stage.host, store=store), self.folder) as server:
            until(lambda: not stage.segments())

    def test_verify_and_damage(self):
        stage = self.keeping().start()
        store = self.folder / "store"
        with Server(self.topology("", stage.host, store=store), self.folder) as server:
            server.complete(PROMPT, "c", max_tokens=40, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
            good = server.post("/v1/kv/conversations/c/verify").json
            self.assertTrue(good["ok"], good)
            (segment,) = stage.segments()
            self.assertGreater(good["bytes"], segment.stat().st_size)
            offline = json.loads(layover("verify", "c", "--store", store, "--json").stdout)
            self.assertIn(stage.host, json.dumps(offline["conversations"][0]["problems"]))
            exported = layover("export", "c", self.folder / "c.layover", "--store", store)
            self.assertNotEqual(exported.returncode, 0)
            self.assertIn(stage.host, exported.stderr)
            data = bytearray(segment.read_bytes())
            data[5000] ^= 1
            segment.write_bytes(data)
            bad = server.post("/v1/kv/conversations/c/verify").json
            self.assertEqual((bad["ok"], bad["problems"][0]["file"], bad["problems"][0]["stage"]), (False, segment.name, 1))
            refused = server.post("/v1/kv/conversations/c/restore")
            self.assertEqual((refused.status, refused.json["error"]["file"]), (422, segment.name))
            segment.unlink()
            missing = server.post("/v1/kv/conversations/c/restore")
            self.assertIn(segment.name, missing.json["error"]["message"])
            self.assertEqual(server.complete(PROMPT, "c", max_tokens=2)["timings"]["recomputed_n"], 0)  # it is live


if __name__ == "__main__":
    unittest.main()
