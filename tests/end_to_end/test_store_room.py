"""The store's room: budgets over many chats, images that are too large, pins, time to live; and saves that fail: the old
generation stays, the chat goes on."""
import os
import pathlib
import time
import unittest

from harness import Case, Server, layover, tiny_model, topology

STAGES = ((1, "0-1"), (1, "2-3"))


def bytes_on_disk(store):
    total = 0
    for root, _, files in os.walk(store):
        for name in [".", *files]:
            try:
                total += (pathlib.Path(root) / name).lstat().st_blocks * 512
            except FileNotFoundError:
                pass  # it was just removed
    return total


class StoreRoom(Case):
    def text(self, sessions=4, park="0", **store_keys):
        model = tiny_model(self.folder, "--layers", "4", "--context", "4096")
        return topology(model, self.folder / "store", STAGES, context=2048, sessions=sessions,
                        store_keys={"save": "turn", **store_keys}) + f"park: {{ram_budget: {park}}}\n"

    def prompt(self, i, n=200):
        return [20 + i % 250, 20 + i // 250] + [20 + (j * 7) % 280 for j in range(n - 2)]

    def wait_saved(self, server, name):
        while True:
            shown = server.get(f"/v1/kv/conversations/{name}").json
            if shown["state"] not in ("saving", "active") and (shown["saved_n_tokens"] > 0 or shown["last_error"]):
                return shown

    def test_the_budget_holds_over_200_chats(self):
        budget = 8 << 20
        most = 0
        with Server(self.text(budget=budget, pin="[c0]"), self.folder) as server:
            for i in range(200):
                server.complete(self.prompt(i), f"c{i}", max_tokens=2, ignore_eos=True)
                self.wait_saved(server, f"c{i}")
                most = max(most, bytes_on_disk(self.folder / "store"))
            self.assertLessEqual(most, budget)
            used = bytes_on_disk(self.folder / "store")
            self.assertGreaterEqual(used, 0.8 * budget)
            self.assertAlmostEqual(server.metric("layover_store_bytes"), used, delta=0.1 * budget)
            self.assertGreater(server.metric('layover_evictions_total{tier="disk"}'), 100)
            # The pinned one and the newest are there; an old one comes back from its journal.
            self.assertGreater(server.get("/v1/kv/conversations/c0").json["saved_n_tokens"], 0)
            self.assertGreater(server.get("/v1/kv/conversations/c199").json["saved_n_tokens"], 0)
            self.assertEqual(server.get("/v1/kv/conversations/c5").json["saved_n_tokens"], 0)
            again = server.complete(self.prompt(5), "c5", max_tokens=2, ignore_eos=True)
            self.assertEqual(again["timings"]["recomputed_n"], 199)
        self.assertEqual(layover("verify", "--store", self.folder / "store").returncode, 0)

    def test_larger_than_the_budget_is_refused_with_a_message(self):
        with Server(self.text(budget=1 << 20), self.folder) as server:
            server.complete(self.prompt(1, 300), "small", max_tokens=0)
            self.wait_saved(server, "small")
            server.complete(self.prompt(2, 2000), "large", max_tokens=0)
            shown = self.wait_saved(server, "large")
            self.assertIn("budget", shown["last_error"])
            reply = server.post("/v1/kv/conversations/large/save")
            self.assertEqual(reply.status, 507, reply.body)
            # It pushed nobody out.
            self.assertEqual(server.get("/v1/kv/conversations/small").json["saved_n_tokens"], 300)

    def test_an_image_that_cannot_be_given_up_keeps_no_save_waiting(self):
        with Server(self.text(save="manual"), self.folder) as server:
            server.complete(self.prompt(1, 2000), "damaged", max_tokens=0)
            image = server.post("/v1/kv/conversations/damaged/save").json["bytes_written"]
        journal = next((self.folder / "store").glob("c/*/journal"))
        # Room for one such image and what a save may need beside its rows.
        with Server(self.text(save="manual", budget=image + (600 << 10)), self.folder, name="again") as server:
            data = bytearray(journal.read_bytes())
            data[len(data) // 2] ^= 1
            journal.write_bytes(data)
            # Read, and found damaged: it goes on without its past, and its image stays for whoever mends it.
            server.complete(self.prompt(1, 100), "damaged", max_tokens=0)
            self.assertGreater(server.get("/v1/kv/conversations/damaged").json["saved_n_tokens"], 0)
            server.complete(self.prompt(2, 2000), "other", max_tokens=0)
            reply = server.post("/v1/kv/conversations/other/save", timeout_s=60)
            self.assertEqual((reply.status, "budget" in reply.body.decode()), (507, True), reply.body)

    def test_images_that_nobody_comes_back_to_expire(self):
        with Server(self.text(ttl="1s"), self.folder) as server:
            server.complete(self.prompt(1), "c", max_tokens=0)
            self.assertEqual(self.wait_saved(server, "c")["saved_n_tokens"], 200)
        deadline = time.monotonic() + 60
        while time.time() < os.stat(next((self.folder / "store").glob("c/*/manifest.json"))).st_mtime + 3:
            time.sleep(0.1)
        with Server(self.text(ttl="1s"), self.folder, name="again") as server:
            while server.get("/v1/kv/conversations/c").json["saved_n_tokens"] > 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            # The journal stays.
            self.assertEqual(server.complete(self.prompt(1), "c", max_tokens=0)["timings"]["recomputed_n"], 199)

    def test_min_free_refuses_a_save_and_evicts_nothing(self):
        with Server(self.text(save="manual"), self.folder) as server:
            server.complete(self.prompt(1), "old", max_tokens=0)
            self.assertEqual(server.post("/v1/kv/conversations/old/save").status, 200)
        with Server(self.text(save="manual", min_free="64TiB"), self.folder, name="full") as server:
            server.complete(self.prompt(2), "new", max_tokens=0)
            reply = server.post("/v1/kv/conversations/new/save")
            self.assertEqual((reply.status, "min_free" in reply.body.decode()), (507, True), reply.body)
            self.assertEqual(server.get("/v1/kv/conversations/old").json["saved_n_tokens"], 200)

    def test_a_failed_save_keeps_the_old_generation_and_the_chat(self):
        prompt = self.prompt(3)
        with Server(self.text(save="manual"), self.folder) as server:
            control = server.complete(prompt + [30, 31], max_tokens=8, ignore_eos=True)
            server.complete(prompt, "c", max_tokens=0)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").json["generation"], 1)
        faults = [("stage-0", "eio:2+", ".seg"), ("stage-1", "enospc:1+", ".seg"), ("layover", "eio:1+", "manifest"),
                  ("layover", "enospc:1+", "manifest")]
        for number, (program, fault, match) in enumerate(faults):
            env = {"LAYOVER_FAULT": fault, "LAYOVER_FAULT_PROGRAM": program, "LAYOVER_FAULT_MATCH": match}
            with self.subTest(program=program, fault=fault), Server(self.text(save="manual"), self.folder, env=env, name=f"f{number}") as server:
                reply = server.complete(prompt + [30, 31], "c", max_tokens=8, ignore_eos=True)
                self.assertSameIds(control, reply)
                self.assertLessEqual(reply["timings"]["recomputed_n"], 1)  # what was said after the save
                failed = server.post("/v1/kv/conversations/c/save")
                self.assertEqual(failed.status, 507 if fault.startswith("enospc") else 500, failed.body)
                shown = server.get("/v1/kv/conversations/c").json
                self.assertEqual((shown["generation"], shown["saved_n_tokens"]), (1, 200))
                self.assertNotEqual(shown["last_error"], "")
                # The chat goes on, and so does the other request's control.
                self.assertSameIds(control, server.complete(prompt + [30, 31], "c", max_tokens=8, ignore_eos=True))
                server.kill()
            self.assertEqual(layover("verify", "--store", self.folder / "store").returncode, 0)
        with Server(self.text(save="manual"), self.folder, name="last") as server:
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").json["n_tokens"], 200)

    def test_what_cannot_be_saved_when_it_must_leave_is_read_again(self):
        env = {"LAYOVER_FAULT": "eio:1+", "LAYOVER_FAULT_PROGRAM": "stage-1", "LAYOVER_FAULT_MATCH": ".seg"}
        with Server(self.text(save="evict", sessions=1), self.folder, env=env) as server:
            control = server.complete(self.prompt(5), cache_prompt=False, max_tokens=8, ignore_eos=True)
            server.complete(self.prompt(5), "a", max_tokens=0)
            server.complete(self.prompt(6), "b", max_tokens=0)
            self.assertEqual(server.log_text().count("leaves unsaved"), 1)
            again = server.complete(self.prompt(5), "a", max_tokens=8, ignore_eos=True)
            self.assertSameIds(control, again)
            self.assertEqual((again["timings"]["cache_n"], again["timings"]["recomputed_n"]), (0, 199))
            self.assertEqual(server.stop(), 1)  # and it says so at the end

    def test_a_read_only_store_does_not_stop_the_chat(self):
        prompt = self.prompt(4)
        env = {"LAYOVER_FAULT": "eio:1+", "LAYOVER_FAULT_PROGRAM": "layover", "LAYOVER_FAULT_MATCH": "/journal"}
        with Server(self.text(save="manual"), self.folder) as server:
            control = server.complete(prompt, max_tokens=8, ignore_eos=True)
        with Server(self.text(save="manual"), self.folder, env=env, name="ro") as server:
            self.assertSameIds(control, server.complete(prompt, "c", max_tokens=8, ignore_eos=True))
            self.assertGreater(server.metric("layover_journal_errors_total"), 0)
            self.assertGreaterEqual(server.post("/v1/kv/conversations/c/save").status, 500)
            said = control["choices"][0]["token_ids"]
            server.complete(prompt + said + [5], "c", max_tokens=2)


if __name__ == "__main__":
    unittest.main()
