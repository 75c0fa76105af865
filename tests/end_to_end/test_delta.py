"""A save writes what is new and nothing else: bytes per save on the demo model, and what compaction leaves."""
import unittest

from harness import DEMO_MODEL, Case, Server, layover, tiny_model, topology

ROW_BYTES = 2 * 3 * 64 * 2 * 30  # K and V, heads, head_dim, f16, layers of the demo model
SLACK = 64 * 1024


class Delta(Case):
    def ten_turns(self, server, name, size, first):
        """Bytes that each of ten saves wrote, `size` tokens apart; and those of one save of everything."""
        ids = [first] + [300 + (7 * i) % 1000 for i in range(10 * size - 1)]
        written = []
        for turn in range(1, 11):
            server.complete(ids[: turn * size], name, max_tokens=0)
            reply = server.post(f"/v1/kv/conversations/{name}/save").json
            self.assertEqual(reply["n_tokens"], turn * size)
            self.assertEqual(reply["bytes_written"], sum(stage["bytes_written"] for stage in reply["stages"]))
            written.append(reply["bytes_written"])
        whole = [first + 1] + ids[1:]  # shares nothing with the other
        server.complete(whole, name + "-whole", max_tokens=0)
        return written, server.post(f"/v1/kv/conversations/{name}-whole/save").json["bytes_written"]

    def test_each_save_writes_its_rows_only(self):
        store = self.folder / "store"
        text = topology(DEMO_MODEL, store, ((1, "0-14"), (1, "15-29")), context=8192)
        with Server(text, self.folder) as server:
            for size in (50, 500):
                written, whole = self.ten_turns(server, f"c{size}", size, 200 + size)
                for turn, bytes_written in enumerate(written):
                    self.assertLessEqual(bytes_written, 1.05 * size * (ROW_BYTES + 4) + SLACK, f"{size} tokens, save {turn + 1}")
                self.assertLessEqual(sum(written), 1.1 * whole, f"{size} tokens: ten saves against one")
                # Nothing new: the same generation, nothing written.
                same = server.post(f"/v1/kv/conversations/c{size}/save").json
                self.assertEqual((same["generation"], same["bytes_written"]), (10, 0))
                shown = server.get(f"/v1/kv/conversations/c{size}").json
                self.assertEqual(shown["last_save"]["bytes_written"], written[-1])
                self.assertEqual(shown["last_save"]["bytes_kept"], sum(written[:-1]))
        self.assertEqual(layover("verify", "--store", store).returncode, 0)
        with Server(text, self.folder, name="again") as server:
            reply = server.post("/v1/kv/conversations/c50/restore", {"prove": True}).json
            self.assertEqual((reply["n_tokens"], reply["proof"]), (500, "bit-exact"))

    def test_compaction_bounds_dead_bytes_and_pieces(self):
        store = self.folder / "store"
        model = tiny_model(self.folder, "--layers", "4", "--context", "8192")
        with Server(topology(model, store, ((1, "0-1"), (1, "2-3")), context=8192), self.folder) as server:
            ids = [20 + (7 * i) % 280 for i in range(6000)]
            server.complete(ids, "c", max_tokens=0)
            first = server.post("/v1/kv/conversations/c/save").json["bytes_written"]
            # Cut to a third and saved: two thirds of each segment are dead, and are written away.
            server.post("/v1/kv/conversations/c/rewind", {"to": 2000})
            server.complete(ids[:2000] + [3], "c", max_tokens=0)
            server.post("/v1/kv/conversations/c/save")
            shown = self.settled(server)
            self.assertLess(shown["bytes_disk"], 0.4 * first)
            # Many small saves: never more than 64 pieces a stage stay.
            for turn in range(70):
                server.complete(ids[:2000] + [3] + ids[2000 : 2000 + turn + 1], "c", max_tokens=0)
                self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 200)
                shown = self.settled(server)
                self.assertLessEqual(len(shown["segments"]), 2 * 65)
            self.assertLess(len(shown["segments"]), 2 * 20)
        self.assertEqual(layover("verify", "--store", store).returncode, 0)
        with Server(topology(model, store, context=8192), self.folder, name="again") as server:
            self.assertEqual(server.post("/v1/kv/conversations/c/restore", {"prove": True}).json["proof"], "bit-exact")

    def settled(self, server):
        """What `show` says once no compaction is under way."""
        while True:
            shown = server.get("/v1/kv/conversations/c").json
            if shown["state"] != "saving":
                return shown


if __name__ == "__main__":
    unittest.main()
