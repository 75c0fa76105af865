"""kill -9 at every moment of a save: after a restart the old generation or the new one restores, verify passes, and no
stray file is left.

The moments are enumerated, not slept for: every write, sync, rename and removal of the storage code passes a fault
point (common/storage/fault_point.h); a traced save counts them, then one run per point kills the process there.
"""
import json
import os
import unittest

from harness import Case, Server, layover, tiny_model, topology

PROMPT = list(range(20, 170))
PROGRAMS = ["layover", "stage-0", "stage-1"]


class Crash(Case):
    def text(self, store):
        return topology(tiny_model(self.folder, "--layers", "4"), store, ((1, "0-1"), (1, "2-3")), context=512,
                        store_keys={"save": "manual"})

    def first_generation(self, name):
        """A store with generation 1 of a conversation of 150 tokens, made by a server that was not disturbed."""
        store = self.folder / name
        with Server(self.text(store), self.folder, name=name) as server:
            server.complete(PROMPT, "c", max_tokens=0)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").json["generation"], 1)
        return store

    def second_save(self, store, name, fault, program):
        """Restores, adds 40 tokens, saves again with the fault armed. The server may die on the way."""
        # Counted from the first operation of the process; the points of the restore and the prompt come first.
        server = Server(self.text(store), self.folder, name=name, env={"LAYOVER_FAULT": fault, "LAYOVER_FAULT_PROGRAM": program})
        try:
            server.start()
            server.complete(PROMPT + list(range(200, 240)), "c", max_tokens=0)
            server.post("/v1/kv/conversations/c/save")
        except (OSError, AssertionError, json.JSONDecodeError):
            pass  # the coordinator was killed
        finally:
            server.kill()

    def count_points(self, program):
        store = self.first_generation(f"trace-{program}")
        trace = self.folder / f"{program}.trace"
        self.second_save(store, f"trace-{program}", f"trace:{trace}", program)
        return [line.split()[1] for line in trace.read_text().splitlines()]

    def check_after_crash(self, store, where):
        with Server(self.text(store), self.folder, name=store.name) as server:
            restored = server.post("/v1/kv/conversations/c/restore")
            self.assertEqual(restored.status, 200, f"{where}: {restored.body}")
            self.assertIn((restored.json["generation"], restored.json["n_tokens"]), [(1, 150), (2, 190), (3, 190)], where)
            verified = server.post("/v1/kv/conversations/c/verify").json
            self.assertTrue(verified["ok"], f"{where}: {verified}")
            generation = restored.json["generation"]
            # A save after it must work, and take a number that was never used.
            server.complete(PROMPT + list(range(200, 245)), "c", max_tokens=0)
            saved = server.post("/v1/kv/conversations/c/save")
            self.assertEqual(saved.status, 200, f"{where}: {saved.body}")
            self.assertGreater(saved.json["generation"], generation)
            names = {segment["file"] for segment in server.get("/v1/kv/conversations/c").json["segments"]}
        folder = next(store.glob("c/*"))
        self.assertEqual({p.name for p in folder.iterdir()}, names | {"manifest.json", "journal"}, where)
        self.assertEqual(layover("verify", "--store", store).returncode, 0, where)
        return generation

    def kill_everywhere(self, program, mode):
        kinds = self.count_points(program)
        self.assertGreaterEqual(len(kinds), 4, f"{program}: {kinds}")
        generations = set()
        for k in range(1, len(kinds) + 1):
            name = f"{mode}-{program}-{k}"
            store = self.first_generation(name)
            self.second_save(store, name, f"{mode}:{k}", program)
            generations.add(self.check_after_crash(store, f"{program} {mode} at {k} ({kinds[k - 1]})"))
        return kinds, generations

    def test_kill_of_the_coordinator_after_every_operation(self):
        kinds, generations = self.kill_everywhere("layover", "kill")
        self.assertIn("rename", kinds)
        # Both sides of the commit were seen: the test does not only ever find one of them.
        self.assertEqual(min(generations), 1)
        self.assertGreaterEqual(max(generations), 2)

    def test_kill_of_a_stage_after_every_operation(self):
        for program in ("stage-0", "stage-1"):
            kinds, generations = self.kill_everywhere(program, "kill")
            self.assertIn("sync", kinds)
            self.assertIn(1, generations)

    def test_kill_in_the_middle_of_every_write_of_the_coordinator(self):
        self.kill_everywhere("layover", "torn")


if __name__ == "__main__":
    unittest.main()
