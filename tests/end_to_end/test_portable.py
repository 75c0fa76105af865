"""Portable files and gc, with the real programs: a conversation goes on in another store as if it had never moved."""
import hashlib
import json
import unittest

from harness import Case, Server, ids, layover, tiny_model, topology
from portable_reader import Portable as PortableFile

PROMPT = list(range(20, 170))
MORE = list(range(200, 230))


def tree(folder):
    """Path → digest of every file of a store but its lock and its catalog."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name not in ("lock", "catalog.db")}


class Portable(Case):
    def setUp(self):
        super().setUp()
        self.model = tiny_model(self.folder, "--layers", "4")
        self.here = self.folder / "here"
        self.key = self.folder / "key"
        self.key.write_text("0123456789abcdef" * 4 + "\n")
        self.passphrase = self.folder / "passphrase"
        self.passphrase.write_text("correct horse\n")

    def server(self, store, name):
        stages = ((1, "0-1"), (1, "2-3"))
        return Server(topology(self.model, store, stages, context=512, store_keys={"save": "shutdown"}), self.folder, name=name)

    def begin(self):
        """A conversation of one turn in `here`, saved by the shutdown; the ids of its turn."""
        with self.server(self.here, "here") as server:
            first = ids(server.complete(PROMPT, "c", max_tokens=12, ignore_eos=True))
            self.assertEqual(server.stop(), 0)
        return first

    def go_on(self, server, first, conversation="c"):
        return server.complete(PROMPT + first + MORE, conversation, max_tokens=12, ignore_eos=True)

    def run_ok(self, *arguments):
        done = layover(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)

    def refused(self, code, text, *arguments):
        done = layover(*arguments, "--json")
        self.assertEqual(done.returncode, code, done)
        self.assertIn(text, done.stderr)
        self.assertIn("error", json.loads(done.stdout))

    def check_against_the_page(self, file, secret):
        """The file read by other code, written from the format page: its parts are the store's files."""
        keys = {"--key-file": {"key": bytes.fromhex(self.key.read_text())}, "--passphrase-file": {"passphrase": b"correct horse"}}
        read = PortableFile(file.read_bytes(), **(keys[secret[0]] if secret else {}))
        (conversation,) = (self.here / "c").iterdir()
        self.assertEqual((read.owner, read.id), ("", "c"))
        self.assertEqual(read.manifest, (conversation / "manifest.json").read_bytes())
        self.assertEqual(read.journal, (conversation / "journal").read_bytes())
        self.assertEqual(len(read.segments), 2)
        for name, data in read.segments:
            self.assertEqual(data, (conversation / name).read_bytes(), name)

    def test_a_conversation_goes_on_elsewhere(self):
        with self.server(self.folder / "control", "control") as control:
            first = ids(control.complete(PROMPT, "c", max_tokens=12, ignore_eos=True))
            wanted = ids(self.go_on(control, first))
        self.assertEqual(self.begin(), first)
        ways = (([], "c"), (["--key-file", self.key], "c"), (["--passphrase-file", self.passphrase], "moved/elsewhere"))
        for number, (secret, name) in enumerate(ways):
            file = self.folder / f"file{number}"
            there = self.folder / f"there{number}"
            out = self.run_ok("export", "c", file, *secret, "--store", self.here)
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
            self.assertEqual((out["id"], out["bytes"], out["encrypted"]), ("c", file.stat().st_size, bool(secret)))
            self.assertGreaterEqual(out["n_tokens"], len(PROMPT) + len(first) - 1)
            self.check_against_the_page(file, secret)
            new_name = [] if name == "c" else ["--as", name]
            self.assertEqual(self.run_ok("import", file, *secret, *new_name, "--store", there)["id"], name)
            self.assertTrue(self.run_ok("verify", "--store", there)["ok"])
            with self.server(there, f"there{number}") as server:
                reply = self.go_on(server, first, name)
            timings = reply["timings"]
            self.assertEqual(ids(reply), wanted, name)
            self.assertEqual(timings["recomputed_n"], 0, timings)
            self.assertGreater(timings["restored_n"], 0, timings)
            self.assertLessEqual(timings["prompt_n"], len(MORE) + 1, timings)
        self.assertEqual(self.run_ok("gc", "--store", there)["files"], [])

    def test_refusals_change_nothing(self):
        self.begin()
        file, there = self.folder / "file", self.folder / "there"
        self.run_ok("export", "c", file, "--key-file", self.key, "--store", self.here)
        before = tree(self.here)
        other = self.folder / "other"
        other.write_bytes(bytes(32))
        self.refused(4, "another key", "import", file, "--key-file", other, "--store", there)
        self.refused(4, "--key-file", "import", file, "--store", there)
        self.refused(4, "--key-file", "import", file, "--passphrase-file", self.passphrase, "--store", there)
        good = file.read_bytes()
        bad = self.folder / "bad"
        for at in (0, 70, 130, len(good) // 2, len(good) - 1):
            bad.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1:])
            self.refused(4, str(bad), "import", bad, "--key-file", self.key, "--store", there)
        bad.write_bytes(good[:-1])
        self.refused(4, str(bad), "import", bad, "--key-file", self.key, "--store", there)
        self.assertEqual(tree(there) if there.exists() else {}, {})
        self.refused(1, "exists", "import", file, "--key-file", self.key, "--store", self.here)
        self.refused(1, "exists", "export", "c", file, "--store", self.here)
        self.refused(3, "nobody", "export", "nobody", self.folder / "x", "--store", self.here)
        self.refused(3, "nothing", "import", self.folder / "nothing", "--store", self.here)
        self.refused(2, "a key is", "export", "c", self.folder / "x", "--key-file", self.passphrase, "--store", self.here)
        self.assertEqual(layover("import", file, "--key-file", self.key, "--passphrase-file", other, "--store", there).returncode, 2)
        self.assertEqual(tree(self.here), before)
        self.assertFalse((self.folder / "x").exists())

    def test_gc_removes_what_nothing_names(self):
        self.begin()
        before = tree(self.here)
        (conversation,) = (self.here / "c").iterdir()
        planted = [conversation / "s00-g000900.seg", conversation / "manifest.json.tmp"]
        staged = self.here / "import.tmp" / "c" / conversation.name
        staged.mkdir(parents=True)
        planted.append(staged / "journal")
        for path in planted:
            path.write_bytes(b"left over")
        listed = self.run_ok("gc", "--dry-run", "--store", self.here)
        self.assertEqual((len(listed["files"]), listed["bytes"], listed["removed"]), (3, 27, False))
        manifest = conversation / "manifest.json"
        good = manifest.read_bytes()
        manifest.write_bytes(good[:-2])
        with_damage = tree(self.here)
        self.refused(4, "manifest.json", "gc", "--store", self.here)
        self.assertEqual(tree(self.here), with_damage)
        manifest.write_bytes(good)
        self.assertEqual(self.run_ok("gc", "--store", self.here), {**listed, "removed": True})
        self.assertEqual(tree(self.here), before)
        self.assertFalse((self.here / "import.tmp").exists())
        self.refused(3, "not a store", "gc", "--store", self.folder)

    def test_beside_a_server(self):
        first = self.begin()
        there = self.folder / "there"
        file = self.folder / "file"
        self.run_ok("export", "c", file, "--store", self.here)
        with self.server(self.here, "here") as server:
            for verb in (["rm", "c"], ["gc"], ["import", file]):
                self.refused(1, "in use", *verb, "--store", self.here)
            for verb in (["gc"], ["import", file]):
                self.refused(1, "in use", *verb, "--server", server.url)
            self.run_ok("export", "c", self.folder / "offline", "--store", self.here)
            self.go_on(server, first)
            # The server saves first, so that the file holds what was said a moment ago.
            out = self.run_ok("export", "c", self.folder / "online", "--server", server.url)
            self.assertGreaterEqual(out["n_tokens"], len(PROMPT) + len(first) + len(MORE))
            self.refused(3, "nobody", "export", "nobody", self.folder / "x", "--server", server.url)
        self.run_ok("import", self.folder / "online", "--store", there)
        self.assertTrue(self.run_ok("verify", "c", "--store", there)["ok"])
        self.refused(5, "127.0.0.1:1", "gc", "--server", "http://127.0.0.1:1")


if __name__ == "__main__":
    unittest.main()
