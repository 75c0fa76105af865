"""A disk that is really full: a small file system is mounted for the store and filled. A save fails with 507, whenever the
space runs out; the old generation stays, no stray file does, the chat goes on; once there is room the next save succeeds.

The file system is a tmpfs in a mount namespace of this test's own: as root, else in a user namespace. Where neither is
allowed, LAYOVER_SMALL_DISK may name an empty folder on a tmpfs of 8 to 256 MiB that may be filled, and /dev/shm is taken if it
is as small; else the test fails and says so.
"""
import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from harness import Case, Server, ids, layover, tiny_model, topology

MIB = 1 << 20
SIZE = 24 * MIB
INSIDE = "LAYOVER_TEST_INSIDE"
PROMPT = [20 + (i * 7) % 290 for i in range(1500)]


def enter_namespace():
    """Runs this program again where it may mount; returns if that is not allowed."""
    for flags in (["--mount"], ["--mount", "--user", "--map-root-user"]):
        probe = ["unshare", *flags, "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True).returncode == 0:
            os.environ[INSIDE] = "1"
            os.execvp("unshare", ["unshare", *flags, sys.executable, *sys.argv])


def small_enough(folder):
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return False
    info = os.statvfs(folder)
    return 8 * MIB <= info.f_bavail * info.f_frsize <= info.f_blocks * info.f_frsize <= 256 * MIB


class FullDisk(Case):
    def setUp(self):
        super().setUp()
        if os.environ.get(INSIDE):
            self.disk = self.folder / "disk"
            self.disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", self.disk], check=True)
            self.addCleanup(subprocess.run, ["umount", "--lazy", self.disk], check=True)
        else:
            folder = next(filter(small_enough, filter(None, (os.environ.get("LAYOVER_SMALL_DISK"), "/dev/shm"))), None)
            self.assertIsNotNone(folder, "this machine lets nobody mount, and has no small file system that may be filled: "
                                         "set LAYOVER_SMALL_DISK to one")
            self.disk = pathlib.Path(tempfile.mkdtemp(dir=folder))
            self.addCleanup(shutil.rmtree, self.disk, ignore_errors=True)
        self.store = self.disk / "store"
        self.control = {}

    def server(self, name):
        model = tiny_model(self.folder, "--layers", "4", "--embd", "128", "--heads", "4", "--kv-heads", "2", "--context", "4096")
        text = topology(model, self.store, ((1, "0-1"), (1, "2-3")), context=4096, sessions=3, store_keys={"save": "manual"})
        return Server(text, self.folder, name=name)

    def free(self):
        info = os.statvfs(self.disk)
        return info.f_bfree * info.f_frsize

    def fill(self, leave):
        """Until about `leave` bytes are free; 0: until nothing can be written."""
        with open(self.disk / "filler", "ab", buffering=0) as filler:
            try:
                while not leave or self.free() > leave:
                    filler.write(bytes(4096))
                    os.fsync(filler)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC, error)
        self.assertLessEqual(self.free(), leave + 4096)

    def make_room(self):
        (self.disk / "filler").unlink(missing_ok=True)

    def say(self, server, prompt, **expected):
        """One turn; the ids are those of reading it all afresh."""
        turn = {"max_tokens": 8, "ignore_eos": True}
        fresh = server.complete(prompt, cache_prompt=False, **turn)
        reply = server.complete(prompt, "c", **turn)
        self.assertSameIds(reply, fresh)
        for name, value in expected.items():
            self.assertEqual(reply["timings"][name], value, reply["timings"])
        return prompt + ids(reply)

    def files(self):
        return {p.name: p.stat().st_size for p in next(self.store.glob("c/*")).iterdir()}

    def expect_old_generation(self, server, files, saved_n):
        shown = server.get("/v1/kv/conversations/c").json
        self.assertEqual((shown["generation"], shown["saved_n_tokens"]), (1, saved_n))
        self.assertNotEqual(shown["last_error"], "")
        now = self.files()
        self.assertEqual(now.keys(), files.keys(), "no stray file")
        self.assertEqual({name: size for name, size in now.items() if name != "journal"},
                         {name: size for name, size in files.items() if name != "journal"})

    def first_generation(self, server):
        held = self.say(server, PROMPT)
        reply = server.post("/v1/kv/conversations/c/save")
        self.assertEqual(reply.status, 200, reply.body)
        return held, self.files(), reply.json["n_tokens"]

    def expect_all_is_well(self, held):
        """After room was made and a save went through: everything is there for the next server."""
        with self.server("last") as server:
            self.say(server, held + [9], restored_n=len(held) - 1, recomputed_n=0)
        self.assertEqual(layover("verify", "--store", self.store).returncode, 0)

    def test_full_before_a_save(self):
        with self.server("a") as server:
            held, files, saved_n = self.first_generation(server)
            held = self.say(server, held + [(i * 11) % 270 + 20 for i in range(600)])
            self.fill(leave=0)
            reply = server.post("/v1/kv/conversations/c/save")
            self.assertEqual(reply.status, 507, reply.body)
            self.expect_old_generation(server, files, saved_n)
            # The journal cannot grow either, and the chat does not mind.
            held = self.say(server, held + [5, 6, 7], recomputed_n=0)
            held = self.say(server, held + [(i * 13) % 270 + 20 for i in range(1200)], recomputed_n=0)
            self.assertGreater(server.metric("layover_journal_errors_total"), 0)
            self.assertEqual(server.post("/v1/kv/conversations/c/save").status, 507)
            self.make_room()
            held = self.say(server, held + [8], recomputed_n=0)
            reply = server.post("/v1/kv/conversations/c/save")
            self.assertEqual((reply.status, reply.json["n_tokens"]), (200, len(held) - 1), reply.body)
        self.expect_all_is_well(held)

    def test_full_in_the_middle_of_a_save(self):
        """The space is looked at before a save; here it goes after that. So that it does, the stages are stopped meanwhile."""
        with self.server("a") as server:
            held, files, saved_n = self.first_generation(server)
            held = self.say(server, held + [(i * 11) % 270 + 20 for i in range(1400)])
            pids = [stage["pid"] for stage in server.stages()]
            for stopped, leave in ((pids, 0), (pids, 300_000), (pids[1:], 100_000), (pids[:1], 0)):
                with self.subTest(stopped=len(stopped), leave=leave):
                    try:
                        self.save_while_it_fills(server, stopped, leave)
                        self.expect_old_generation(server, files, saved_n)
                        held = self.say(server, held + [5, 6], recomputed_n=0)
                    finally:
                        self.make_room()
            reply = server.post("/v1/kv/conversations/c/save")
            self.assertEqual((reply.status, reply.json["n_tokens"]), (200, len(held) - 1), reply.body)
            self.assertEqual([stage["pid"] for stage in server.stages()], pids)
        self.expect_all_is_well(held)

    def save_while_it_fills(self, server, stopped, leave):
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with server.stream("/v1/kv/conversations/c/save?stream=true", {}) as (_, events):
                deadline = time.monotonic() + 20
                while server.get("/v1/kv/conversations/c").json["state"] != "saving":
                    self.assertLess(time.monotonic(), deadline)
                self.fill(leave)
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                last = [event for event in events if event.startswith("{")][-1]
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        self.assertIn('"error"', last)
        self.assertIn("No space left", last)


if __name__ == "__main__":
    if not os.environ.get(INSIDE):
        enter_namespace()
    unittest.main()
