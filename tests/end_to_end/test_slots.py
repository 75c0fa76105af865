"""llama-server's slots over the real engine: save, erase, restore across a restart; names and strangers do no harm."""
import unittest

from harness import DEMO_MODEL, Case, Server, topology

TWO_STAGES = ((1, "0-14"), (1, "15-29"))


class Slots(Case):
    def serve(self, **keys):
        return Server(topology(DEMO_MODEL, self.folder / "store", TWO_STAGES, context=1024, sessions=2, **keys), self.folder)

    def act(self, server, slot, action, filename=None, status=200):
        reply = server.post(f"/slots/{slot}?action={action}", {} if filename is None else {"filename": filename})
        self.assertEqual(reply.status, status, reply.body)
        return reply.json

    def test_a_slot_file_outlives_the_server(self):
        prompt = [(i * 37) % 20000 + 100 for i in range(200)]
        with self.serve() as server:
            first = server.complete(prompt, id_slot=1, max_tokens=8, ignore_eos=True)
            ids = prompt + first["choices"][0]["token_ids"]
            longer = ids + [500, 501]
            control = server.complete(longer, cache_prompt=False, max_tokens=8, ignore_eos=True)
            self.assertEqual(server.get("/slots").json[1]["n_tokens"], len(ids) - 1, "the last sampled token is not fed")
            saved = self.act(server, 1, "save", "slot1.bin")
            self.assertEqual((saved["id_slot"], saved["filename"], saved["n_saved"]), (1, "slot1.bin", len(ids) - 1))
            self.assertGreater(saved["n_written"], 0)
            again = self.act(server, 1, "save", "slot1.bin")
            self.assertEqual((again["n_saved"], again["n_written"]), (len(ids) - 1, 0), "nothing was new")
            self.assertEqual(self.act(server, 1, "erase"), {"id_slot": 1, "n_erased": len(ids) - 1})
            self.assertEqual(self.act(server, 1, "erase"), {"id_slot": 1, "n_erased": 0})
            self.act(server, 1, "save", "slot1.bin", status=400)
            self.assertEqual(server.get("/v1/kv/conversations/slot1.bin").json["saved_n_tokens"], len(ids) - 1)
        with self.serve() as server:
            restored = self.act(server, 0, "restore", "slot1.bin")
            self.assertEqual(restored["n_restored"], len(ids) - 1)
            self.assertGreater(restored["n_read"], 0)
            reply = server.complete(longer, id_slot=0, max_tokens=8, ignore_eos=True)
            self.assertSameIds(reply, control)
            self.assertEqual(reply["timings"]["recomputed_n"], 0)
            self.assertLessEqual(reply["timings"]["prompt_n"], 3 + 1)
            # What was done in the slot is not in the file.
            self.assertEqual(self.act(server, 1, "restore", "slot1.bin")["n_restored"], len(ids) - 1)

    def test_a_name_that_is_not_there_or_bad_harms_nobody(self):
        with self.serve() as server:
            server.complete([100] * 70, id_slot=0, max_tokens=4, ignore_eos=True)
            held = server.get("/slots").json[0]["n_tokens"]
            for name in ("never.bin", "../x", "/etc/passwd", "x" * 300, "a/b", ""):
                self.act(server, 0, "restore", name, status=400)
            self.assertEqual(server.get("/slots").json[0]["n_tokens"], held)
            self.assertEqual(server.get("/v1/kv/conversations").json["data"], [])

    def test_saving_over_a_chat_leaves_it_a_branch(self):
        with self.serve() as server:
            chat = list(range(300, 400))
            server.complete(chat, "chat", max_tokens=1, ignore_eos=True)
            server.post("/v1/kv/conversations/chat/save")
            server.complete(list(range(1000, 1070)), max_tokens=1, ignore_eos=True)
            slot = next(slot["id"] for slot in server.get("/slots").json if slot["n_tokens"] == 70)
            self.assertEqual(self.act(server, slot, "save", "chat")["n_saved"], 70)
            shown = server.get("/v1/kv/conversations/chat").json
            self.assertEqual((shown["branches"], shown["saved_n_tokens"]), (2, 70))
        with self.serve() as server:
            reply = server.complete(chat + [5], "chat", max_tokens=1, ignore_eos=True)
            self.assertGreaterEqual(reply["timings"]["cache_n"], 64)


if __name__ == "__main__":
    unittest.main()
