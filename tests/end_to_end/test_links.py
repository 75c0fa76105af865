"""A symbolic link in place of anything in the store: nothing is read, written or removed through it. The store's own folder
may be one: that is its owner's choice."""
import shutil
import unittest

from harness import Case, Server, layover, tiny_model, topology

STAGES = ((1, "0-0"), (1, "1-1"))
PROMPT = [20 + (i * 7) % 270 for i in range(150)]


class Links(Case):
    def server(self, store, name):
        return Server(topology(tiny_model(self.folder), store, STAGES, context=1024, store_keys={"save": "manual"}), self.folder, name=name)

    def save(self, server, prompt=PROMPT, conversation="c"):
        server.complete(prompt, conversation, max_tokens=2, ignore_eos=True)
        reply = server.post(f"/v1/kv/conversations/{conversation}/save")
        self.assertEqual(reply.status, 200, reply.body)

    def saved_store(self, name):
        store = self.folder / name
        with self.server(store, name) as server:
            self.save(server)
        return store, next(store.glob("c/*"))

    def move_out(self, path, name):
        """Moves a file or folder out of the store and leaves a link to it; returns where it is, and what it holds."""
        outside = self.folder / "outside" / name
        outside.parent.mkdir(exist_ok=True)
        shutil.move(path, outside)
        path.symlink_to(outside)
        return outside, self.contents(outside)

    def contents(self, path):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        return {str(p): (p.read_bytes(), p.stat().st_mode) for p in files}

    def goes_on(self, server, held=0):
        """The conversation is served, and another one as well."""
        want = server.complete(PROMPT + [5], cache_prompt=False, max_tokens=4, ignore_eos=True)
        reply = server.complete(PROMPT + [5], "c", max_tokens=4, ignore_eos=True)
        self.assertSameIds(reply, want)
        self.assertGreaterEqual(reply["timings"]["cache_n"], held)
        server.complete([7, 8, 9], "other", max_tokens=2, ignore_eos=True)

    def test_a_file_of_the_image(self):
        for number, pattern in enumerate(("s00-*.seg", "s01-*.seg", "manifest.json", "journal")):
            with self.subTest(pattern):
                store, folder = self.saved_store(f"file{number}")
                path = next(folder.glob(pattern))
                outside, before = self.move_out(path, f"file{number}")
                with self.server(store, f"again{number}") as server:
                    reply = server.post("/v1/kv/conversations/c/restore")
                    self.assertIn(reply.status, (404, 422) if path.name == "journal" else (422,), reply.body)
                    if reply.status == 422:
                        self.assertEqual(reply.json["error"]["file"], path.name)
                    self.goes_on(server)
                    server.post("/v1/kv/conversations/c/save")
                done = layover("verify", "--store", store)
                self.assertIn(done.returncode, (0, 4), done.stderr)
                self.assertEqual(self.contents(outside), before)

    def test_a_conversations_folder(self):
        store, folder = self.saved_store("store")
        outside, before = self.move_out(folder, "folder")
        with self.server(store, "again") as server:
            self.assertIn(server.post("/v1/kv/conversations/c/restore").status, (404, 422, 500))
            self.goes_on(server)
            self.assertGreaterEqual(server.post("/v1/kv/conversations/c/save").status, 400)
            self.assertGreaterEqual(server.request("DELETE", "/v1/kv/conversations/c").status, 200)
            self.assertEqual(self.contents(outside), before)
        for verb in (("gc",), ("rm", "c"), ("verify",), ("ls",), ("export", "c", self.folder / "c.export")):
            layover(*verb, "--store", store)
            self.assertEqual(self.contents(outside), before, verb)

    def test_the_folder_of_all_conversations(self):
        store, folder = self.saved_store("store")
        outside, before = self.move_out(folder.parent, "all")
        done = layover("ls", "--store", store)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        server = self.server(store, "again").start(expect_ready=False)
        self.assertEqual(server.process.wait(timeout=60), 1)
        server.stop()
        self.assertIn(str(store / "c"), server.log_text())
        layover("gc", "--store", store)
        self.assertEqual(self.contents(outside), before)

    def test_lock_and_catalog(self):
        for name in ("lock", "catalog.db"):
            with self.subTest(name):
                store, _ = self.saved_store(f"store-{name}")
                outside, before = self.move_out(store / name, name)
                server = self.server(store, f"again-{name}").start(expect_ready=False)
                self.assertEqual(server.process.wait(timeout=60), 1)
                server.stop()
                self.assertIn(name, server.log_text())
                self.assertEqual(self.contents(outside), before)

    def test_links_where_a_save_is_going_to_write(self):
        store, folder = self.saved_store("store")
        outside = self.folder / "outside"
        outside.mkdir()
        victim = outside / "victim"
        victim.write_bytes(b"precious")
        for name, target in (("s00-g000002.seg", victim), ("s01-g000002.seg", outside / "made"), ("manifest.tmp", victim)):
            (folder / name).symlink_to(target)
        with self.server(store, "again") as server:
            server.complete(PROMPT + [5, 6, 7], "c", max_tokens=2, ignore_eos=True)
            reply = server.post("/v1/kv/conversations/c/save")
            self.assertEqual(reply.status, 200, reply.body)
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)
        self.assertEqual([p.name for p in outside.iterdir()], ["victim"])
        self.assertEqual(victim.read_bytes(), b"precious")
        self.assertEqual([p.name for p in folder.iterdir() if p.is_symlink()], [])
        self.assertEqual(layover("verify", "--store", store).returncode, 0)

    def test_the_stores_own_folder_may_be_a_link(self):
        real = self.folder / "big-disk"
        real.mkdir()
        (self.folder / "store").symlink_to(real)
        with self.server(self.folder / "store", "first") as server:
            self.save(server)
        self.assertTrue((real / "c").is_dir())
        with self.server(self.folder / "store", "again") as server:
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)
            self.goes_on(server, held=len(PROMPT))
        self.assertTrue((self.folder / "store").is_symlink())
        self.assertEqual(layover("verify", "--store", self.folder / "store").returncode, 0)


if __name__ == "__main__":
    unittest.main()
