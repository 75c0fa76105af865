"""kill -9 of a stage worker, and one that hangs, while it decodes, reads a prompt, saves, restores, parks, is idle: the
server serves on, no other stage is restarted, every conversation comes back, and the interrupted stream goes on with the
same tokens."""
import os
import re
import signal
import threading
import time
import unittest

from harness import DEMO_MODEL, Case, Hold, Server, tiny_model, topology, wait_until

PROMPT = list(range(20, 120))
STAGES = ((1, "0-1"), (1, "2-3"))


class StageDeath(Case):
    def tiny(self, store=None, **keys):
        model = tiny_model(self.folder, "--layers", "4", "--context", "4096")
        return topology(model, store, STAGES, context=4096, store_keys={"save": "manual"}, **keys)

    def kill_stage(self, server, stage, how=signal.SIGKILL):
        pids = [s["pid"] for s in server.stages()]
        os.kill(pids[stage], how)
        return pids

    def start(self, call):
        """Runs the call in a thread. The thread, whose `result` it will be."""
        thread = threading.Thread(target=lambda: setattr(thread, "result", call()))
        thread.result = None
        thread.start()
        return thread

    def check_others_lived(self, server, pids, killed):
        while server.metric("layover_stage_restarts_total") == 0:
            time.sleep(0.01)
        server.wait_ok()
        now = [s["pid"] for s in server.stages()]
        for stage, (old, new) in enumerate(zip(pids, now)):
            (self.assertNotEqual if stage == killed else self.assertEqual)(old, new, f"stage {stage}")
        self.assertEqual(server.metric("layover_stage_restarts_total"), 1)

    def test_idle(self):
        with Server(self.tiny(self.folder / "store"), self.folder) as server:
            first = server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
            server.complete(list(range(200, 250)), "unsaved", max_tokens=5, ignore_eos=True)
            pids = self.kill_stage(server, 1)
            self.check_others_lived(server, pids, 1)
            # One comes back from the store, the other by reading again; both say the same as before.
            again = server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)
            self.assertSameIds(first, again)
            self.assertEqual((again["timings"]["restored_n"], again["timings"]["recomputed_n"]), (99, 0))
            again = server.complete(list(range(200, 250)), "unsaved", max_tokens=5, ignore_eos=True)
            self.assertEqual((again["timings"]["cache_n"], again["timings"]["recomputed_n"]), (0, 49))

    def test_a_stage_that_cannot_come_back_leaves_nobody_waiting(self):
        with Server(self.tiny(self.folder / "store"), self.folder) as server:
            server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)
            (self.folder / "tiny.gguf").unlink()
            self.kill_stage(server, 1)
            while server.get("/health").status == 200:
                time.sleep(0.01)
            body = {"prompt": PROMPT, "max_tokens": 5, "conversation_id": "c"}
            # One may wait while it is tried again; the other comes when it is given up.
            self.assertEqual(server.post("/v1/completions", body, timeout_s=60).status, 503)
            while server.stages()[1]["state"] != "down":
                time.sleep(0.01)
            reply = server.post("/v1/completions", body, timeout_s=60)
            self.assertEqual(reply.status, 503)
            self.assertIn("stage 1 is down", reply.body.decode())
            # The one that was killed, and twenty that could not load.
            self.assertEqual(len(set(re.findall(r"stage 1 \(pid (\d+)\)", server.log_text()))), 21)
            self.assertEqual(server.stop(), 0)

    def test_decoding_streams_pause_and_go_on(self):
        prompts = [[30 + i, 40, 50 + i, 60] * 5 for i in range(4)]
        with Server(self.tiny(), self.folder, name="control") as server:
            control = [server.complete(p, max_tokens=400, ignore_eos=True)["choices"][0]["token_ids"] for p in prompts]
        for victim in (0, 1):
            with self.subTest(stage=victim), Server(self.tiny(), self.folder) as server:
                results, killed, pids = {}, threading.Event(), []

                def kill_once(ids):
                    if len(ids) >= 40 and not killed.is_set():
                        killed.set()
                        pids.extend(self.kill_stage(server, victim))

                def run(i):
                    results[i] = self.stream_ids(server, {"prompt": prompts[i], "max_tokens": 400}, kill_once)

                threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertTrue(killed.is_set())
                self.check_others_lived(server, pids, victim)
                for i in range(4):
                    ids, error = results[i]
                    self.assertIsNone(error)
                    self.assertEqual(ids, control[i], f"stream {i}")

    def test_sampled_with_a_seed_goes_on_as_drawn(self):
        body = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0.9, "top_k": 40, "seed": 7, "repeat_penalty": 1.1}
        with Server(self.tiny(), self.folder) as server:
            control, _ = self.stream_ids(server, body)
            killed = threading.Event()

            def kill_once(ids):
                if len(ids) >= 50 and not killed.is_set():
                    killed.set()
                    self.kill_stage(server, 0)

            got, error = self.stream_ids(server, body, kill_once)
            self.assertIsNone(error)
            self.assertTrue(killed.is_set())
            self.assertEqual(got, control)

    def test_while_reading_a_prompt(self):
        text = topology(DEMO_MODEL, None, ((1, "0-14"), (1, "15-29")), context=4096, chunk=64)
        prompt = [(i * 37) % 20000 + 100 for i in range(1500)]
        with Server(text, self.folder) as server:
            want = server.complete(prompt[:1400], cache_prompt=False, max_tokens=4)
            results = {}
            worker = threading.Thread(target=lambda: results.update(reply=server.complete(prompt[:1400], "c", max_tokens=4)))
            worker.start()
            before = server.stages()[0]["last_step"]
            while server.stages()[0]["last_step"] < before + 5:
                time.sleep(0.01)
            pids = self.kill_stage(server, 0)
            worker.join()
            self.assertSameIds(results["reply"], want)
            self.check_others_lived(server, pids, 0)

    def test_while_saving_and_restoring(self):
        prompt = [(i * 37) % 200 + 20 for i in range(3800)]
        with Server(self.tiny(self.folder / "store"), self.folder) as server:
            server.complete(prompt, "c", max_tokens=0)
            replies = []
            for verb in ("save", "restore"):
                if verb == "restore":
                    server.complete(prompt, "c", max_tokens=0)
                    self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 200)
                worker = threading.Thread(target=lambda v=verb: replies.append((v, server.post(f"/v1/kv/conversations/c/{v}").status)))
                worker.start()
                self.kill_stage(server, 1)
                worker.join()
                server.wait_ok()
            for verb, status in replies:
                self.assertIn(status, (200, 503), verb)
            self.assertTrue(server.post("/v1/kv/conversations/c/verify").json["ok"])
            reply = server.complete(prompt, "c", max_tokens=2, ignore_eos=True)
            self.assertSameIds(reply, server.complete(prompt, cache_prompt=False, max_tokens=2, ignore_eos=True))
            self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 200)
            names = {s["file"] for s in server.get("/v1/kv/conversations/c").json["segments"]}
        folder = next((self.folder / "store").glob("c/*"))
        self.assertEqual({p.name for p in folder.glob("*.seg")}, names)

    def test_once_all_segments_are_there_the_save_goes_on_without_the_stages(self):
        hold = Hold(self.folder, "layover", "manifest.json")
        with Server(self.tiny(self.folder / "store"), self.folder, env=hold.env) as server:
            server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)
            save = self.start(lambda: server.post("/v1/kv/conversations/c/save"))
            hold.wait()
            pids = self.kill_stage(server, 1)
            self.check_others_lived(server, pids, 1)
            hold.release()
            save.join()
            self.assertEqual((save.result.status, save.result.json["generation"], save.result.json["n_tokens"]), (200, 1, 104))
            self.assertTrue(server.post("/v1/kv/conversations/c/verify").json["ok"])
            again = server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)
            self.assertEqual((again["timings"]["restored_n"], again["timings"]["recomputed_n"]), (99, 0))

    def test_while_a_request_restores(self):
        store = self.folder / "store"
        with Server(self.tiny(store), self.folder) as server:
            said = server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)["choices"][0]["token_ids"]
            want = server.complete(PROMPT + said + [7], cache_prompt=False, max_tokens=8, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
        with Server(self.tiny(store), self.folder, name="again") as server:
            pids = self.kill_stage(server, 1, signal.SIGSTOP)
            turn = self.start(lambda: server.complete(PROMPT + said + [7], "c", max_tokens=8, ignore_eos=True))
            wait_until(lambda: server.get("/v1/kv/conversations/c").json["state"] == "restoring", "it does not restore")
            self.kill_stage(server, 1)
            turn.join()
            self.assertSameIds(turn.result, want)
            self.assertEqual((turn.result["timings"]["restored_n"], turn.result["timings"]["recomputed_n"]), (104, 0))
            self.check_others_lived(server, pids, 1)

    def test_while_parking_and_while_parked(self):
        text = self.tiny(self.folder / "store") + "park: {ram_budget: 64MiB}\n"
        with Server(text, self.folder) as server:
            said = server.complete(PROMPT, "c", max_tokens=5, ignore_eos=True)["choices"][0]["token_ids"]
            want = server.complete(PROMPT + said + [7], cache_prompt=False, max_tokens=8, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
            pids = self.kill_stage(server, 1, signal.SIGSTOP)
            parks = [self.start(lambda: server.post("/v1/kv/conversations/c/park").status) for _ in range(2)]
            # One of them is under way when the other hears that.
            wait_until(lambda: 409 in [park.result for park in parks], "nothing is parked")
            self.kill_stage(server, 1)
            for park in parks:
                park.join()
            self.assertEqual(sorted(park.result for park in parks), [409, 503])
            self.check_others_lived(server, pids, 1)
            reply = server.complete(PROMPT + said + [7], "c", max_tokens=8, ignore_eos=True)
            self.assertSameIds(reply, want)
            self.assertEqual((reply["timings"]["restored_n"], reply["timings"]["recomputed_n"]), (104, 0))
            # 113 tokens are held, 104 of them saved.
            self.assertEqual(server.post("/v1/kv/conversations/c/park").status, 200)
            self.kill_stage(server, 0)
            wait_until(lambda: server.metric("layover_stage_restarts_total") == 2, "no stage was lost")
            server.wait_ok()
            self.assertEqual(server.get("/v1/kv/conversations/c").json["bytes_host"], 0)
            more = PROMPT + said + [7] + reply["choices"][0]["token_ids"]
            reply = server.complete(more, "c", max_tokens=8, ignore_eos=True)
            self.assertEqual((reply["timings"]["restored_n"], reply["timings"]["recomputed_n"]), (104, 9))
            self.assertSameIds(reply, server.complete(more, cache_prompt=False, max_tokens=8, ignore_eos=True))

    def test_a_hung_stage_is_a_dead_one(self):
        with Server(self.tiny(), self.folder, env={"LAYOVER_SILENT_MS": "3000"}) as server:
            control, _ = self.stream_ids(server, {"prompt": PROMPT, "max_tokens": 300})
            # While nothing is due, it is missed as well.
            pids = self.kill_stage(server, 0, signal.SIGSTOP)
            self.check_others_lived(server, pids, 0)
            stopped = threading.Event()

            def stop_once(ids):
                if len(ids) >= 40 and not stopped.is_set():
                    stopped.set()
                    self.kill_stage(server, 1, signal.SIGSTOP)

            got, error = self.stream_ids(server, {"prompt": PROMPT, "max_tokens": 300}, stop_once)
            self.assertIsNone(error)
            self.assertTrue(stopped.is_set())
            self.assertEqual(got, control)
            self.assertEqual(server.metric("layover_stage_restarts_total"), 2)

    def test_a_save_that_hangs_is_aborted(self):
        store = self.folder / "store"
        with Server(self.tiny(store), self.folder) as server:
            server.complete(PROMPT, "c", max_tokens=0)
            server.post("/v1/kv/conversations/c/save")
        hold = Hold(self.folder, "stage-1", ".seg")
        with Server(self.tiny(store), self.folder, env={**hold.env, "LAYOVER_SILENT_MS": "3000"}, name="hang") as server:
            server.complete(PROMPT + [7] * 50, "c", max_tokens=0)
            save = self.start(lambda: server.post("/v1/kv/conversations/c/save"))
            hold.wait()
            wait_until(lambda: "made no progress" in server.log_text(), "the save goes on")
            self.assertIsNone(save.result)
            hold.release()
            save.join()
            self.assertEqual((save.result.status, save.result.json["error"]["type"]), (504, "timeout_error"))
            shown = server.get("/v1/kv/conversations/c").json
            self.assertEqual((shown["generation"], shown["saved_n_tokens"]), (1, 100))
            self.assertEqual(server.metric("layover_stage_restarts_total"), 0)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").json["n_tokens"], 150)
            names = {s["file"] for s in server.get("/v1/kv/conversations/c").json["segments"]}
        self.assertEqual({p.name for p in next(store.glob("c/*")).glob("*.seg")}, names)

    def test_a_stage_that_cannot_load_is_an_error_with_its_reason(self):
        model = self.folder / "short.gguf"
        model.write_bytes(tiny_model(self.folder).read_bytes()[:1000])
        server = Server(topology(model, None), self.folder).start(expect_ready=False)
        self.assertEqual(server.process.wait(timeout=30), 1)
        self.assertIn("short.gguf", server.log_text())

    def test_workers_die_with_the_coordinator(self):
        server = Server(self.tiny(), self.folder).start()
        pids = [s["pid"] for s in server.stages()]
        server.kill()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(0.02)
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))


if __name__ == "__main__":
    unittest.main()
