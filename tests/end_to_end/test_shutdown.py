"""SIGTERM at bad moments: what was asked for before ends first and nothing is lost; a second signal waits for nothing."""
import hashlib
import os
import signal
import threading
import unittest

from harness import Case, Hold, Server, tiny_model, topology, wait_until

PROMPT = [20 + i % 290 for i in range(200)]


class Shutdown(Case):
    def text(self):
        model = tiny_model(self.folder, "--layers", "4", "--context", "4096")
        return topology(model, self.folder / "store", ((1, "0-1"), (1, "2-3")), context=2048)

    def drain(self, server):
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/health").json["status"] == "draining", "SIGTERM changes nothing")

    def in_background(self, server, method, path, body=None):
        def call():
            try:
                server.request(method, path, body)
            except OSError:
                pass  # the server went before it answered

        thread = threading.Thread(target=call)
        thread.start()
        self.addCleanup(thread.join)

    def test_a_rewind_and_a_restore_end_first(self):
        with Server(self.text(), self.folder) as server:
            server.complete(PROMPT, "a", max_tokens=0)
            server.complete([9] + PROMPT, "b", max_tokens=0)
        # The store thread stands still in the rewind of b, with the restore of a behind it.
        hold = Hold(self.folder, "layover", hashlib.sha256(b"\0b").hexdigest() + "/journal", operation=2)
        with Server(self.text(), self.folder, env=hold.env, name="again") as server:
            server.complete(PROMPT + [7, 8], "a", max_tokens=0)
            self.in_background(server, "POST", "/v1/kv/conversations/b/rewind", {"to": 100})
            hold.wait()
            self.in_background(server, "POST", "/v1/kv/conversations/a/restore")
            wait_until(lambda: server.get("/v1/kv/conversations/a").json["state"] == "restoring", "it does not restore")
            self.drain(server)
            hold.release()
            self.assertEqual(server.process.wait(timeout=60), 0, server.log_tail())
            self.assertNotIn("was not saved", server.log_text())
        with Server(self.text(), self.folder, name="last") as server:
            self.assertEqual(server.get("/v1/kv/conversations/b").json["n_tokens"], 100)
            again = server.complete(PROMPT + [7, 8], "a", max_tokens=0)
            self.assertEqual((again["timings"]["restored_n"], again["timings"]["recomputed_n"]), (200, 1))

    def test_a_second_signal_waits_for_nothing(self):
        with Server(self.text(), self.folder) as server:
            want = server.complete(PROMPT, "a", max_tokens=8, ignore_eos=True)
            pids = [stage["pid"] for stage in server.stages()]
            os.kill(pids[1], signal.SIGSTOP)  # so the save of a cannot end
            self.drain(server)
            self.assertIsNone(server.process.poll())
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=10), 1)
            wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "a worker outlives the coordinator", 10)
        with Server(self.text(), self.folder, name="again") as server:
            # As after kill -9: every turn is in the journal.
            shown = server.get("/v1/kv/conversations/a").json
            self.assertEqual((shown["n_tokens"], shown["saved_n_tokens"]), (208, 0))
            again = server.complete(PROMPT, "a", max_tokens=8, ignore_eos=True)
            self.assertSameIds(again, want)
            self.assertEqual(again["timings"]["recomputed_n"], 199)


if __name__ == "__main__":
    unittest.main()
