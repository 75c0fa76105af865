"""Hops between stages: shm (the default on one machine), zmq, and nccl between emulated cards over NCCL's stand-in. The same
bits over each, a stage killed while it decodes, and what cannot work refused with its line."""
import json
import os
import pathlib
import signal
import threading
import time
import unittest

from harness import BIN, Case, Server, layover, tiny_model

STAND_IN = {"LAYOVER_NCCL": str(BIN / "libstand_in_nccl.so")}
FLAGS = ("--type", "Q4_0", "--layers", "4", "--embd", "64", "--heads", "2", "--kv-heads", "1", "--ff", "96", "--context", "1024")
PROMPT = [(i * 37) % 200 + 20 for i in range(150)]
CARDS = ("emu:0", "emu:1")


def mapped(server, what):
    """For each stage, whether its process has something of that name in its memory."""
    return [what in pathlib.Path(f"/proc/{stage['pid']}/maps").read_text() for stage in server.stages()]


def ring_bytes(pid):
    """How much of a process's memory is hops' rings."""
    total = 0
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:layover-hop" in line:
            begin, end = line.split()[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


class Hops(Case):
    def setUp(self):
        super().setUp()
        self.model = tiny_model(self.folder, *FLAGS)

    def topology(self, devices, link=None):
        per_stage = 4 // len(devices)
        lines = [f"model: {self.model}", "context: 1024", "chunk: 64", "stages:"]
        for i, device in enumerate(devices):
            hop = f", link: {link}" if link and i > 0 else ""
            lines.append(f"  - {{device: '{device}', layers: {i * per_stage}-{(i + 1) * per_stage - 1}{hop}}}")
        return "\n".join([*lines, 'server: {listen: "127.0.0.1:0"}', ""])

    def answer(self, server, tokens=30):
        reply = server.complete(PROMPT, cache_prompt=False, max_tokens=tokens, ignore_eos=True, return_row_digests=True)
        return reply["choices"][0]["token_ids"], reply["choices"][0]["row_xxh3"]

    def planned(self, text):
        path = self.folder / "plan.yaml"
        path.write_text(text)
        result = layover("plan", path, "--json", env=STAND_IN)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["stages"]

    def test_every_link_gives_the_same_bits(self):
        with Server(self.topology(("cpu",)), self.folder, name="alone") as server:
            control = self.answer(server)
        for devices, link, want in ((("cpu",) * 4, None, "shm"), (("cpu",) * 4, "zmq", "zmq"), (("cpu",) * 2, "shm", "shm"),
                                    (("emu:0", "emu:0"), None, "shm"), (CARDS, "nccl", "nccl"), (CARDS, "zmq", "zmq")):
            with self.subTest(devices=devices, link=link):
                text = self.topology(devices, link)
                plan = self.planned(text)
                self.assertEqual([stage.get("link") for stage in plan], [None, *[want] * (len(devices) - 1)])
                with Server(text, self.folder, env=STAND_IN, name="linked") as server:
                    self.assertEqual(self.answer(server), control)
                    n = len(devices)
                    rings = [ring_bytes(stage["pid"]) for stage in server.stages()]
                    planned = [0 if want == "zmq" else stage["hop_host_bytes"] for stage in plan] + [0]
                    self.assertEqual(rings, [planned[i] + planned[i + 1] for i in range(n)])  # the hop into it and out of it
                    self.assertEqual(mapped(server, "libstand_in_nccl.so"), [want == "nccl"] * n)

    def test_plan_warns_of_a_machine_that_is_too_small(self):
        path = self.folder / "plan.yaml"
        everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        text = self.topology(("cpu",) * 2)
        for text in (text, text.replace("context: 1024", "context: 1048576\nsessions: 256")):  # K/V of 128 GiB
            path.write_text(text)
            as_json, as_text = layover("plan", path, "--json"), layover("plan", path)
            self.assertEqual((as_json.returncode, as_text.returncode), (0, 0), as_json.stderr)
            plan = json.loads(as_json.stdout)
            self.assertTrue(0 < plan["host_memory_bytes"] <= everything, plan)
            self.assertEqual(bool(plan["warnings"]), plan["host_bytes"] > plan["host_memory_bytes"])
            for warning in plan["warnings"]:
                self.assertIn("warning: " + warning, as_text.stdout)
        self.assertGreater(plan["host_bytes"], 2**36)

    def test_plan_and_serve_warn_of_a_card_that_is_too_small(self):
        """Emulated cards have 2 GiB."""
        path = self.folder / "plan.yaml"
        text = self.topology(("emu:0", "emu:1", "emu:0", "emu:0"))
        path.write_text(text)
        plan = json.loads(layover("plan", path, "--json").stdout)
        totals = [stage["total_bytes"] for stage in plan["stages"]]
        self.assertEqual(plan["devices"], [{"device": "emu:0", "planned_bytes": totals[0] + totals[2] + totals[3], "memory_bytes": 2**31},
                                           {"device": "emu:1", "planned_bytes": totals[1], "memory_bytes": 2**31}])
        self.assertEqual(plan["warnings"], [])
        path.write_text(text.replace("context: 1024", "context: 131072\nkv_type: f32\nsessions: 256"))  # K of a layer is 4 GiB
        plan = json.loads(layover("plan", path, "--json").stdout)
        self.assertEqual([warning.split()[0] for warning in plan["warnings"] if warning.startswith("emu:")], ["emu:0", "emu:1"])
        server = Server(path.read_text(), self.folder, name="small").start(expect_ready=False)
        self.addCleanup(server.process.kill)
        self.assertNotEqual(server.process.wait(timeout=60), 0)
        server.process.stdout.close()
        self.assertIn("emu:1 has 2.00 GiB of memory; its stages take", server.log_text())

    def streams_through_a_death(self, devices, link, victim, tokens, kill_at):
        """Three streams at once, one stage killed while they decode; they pause and go on with the tokens of a quiet run."""
        text = self.topology(devices, link)
        prompts = [[30 + i, 40, 50 + i, 60] * 5 for i in range(3)]
        with Server(text, self.folder, env=STAND_IN, name=f"{link}-{victim}") as server:
            control = [server.complete(p, max_tokens=tokens, ignore_eos=True, cache_prompt=False)["choices"][0]["token_ids"]
                       for p in prompts]
            pids = [stage["pid"] for stage in server.stages()]
            results, killed = {}, threading.Event()

            def run(i):
                def kill_once(ids):
                    if len(ids) >= kill_at and not killed.is_set():
                        killed.set()
                        os.kill(pids[victim], signal.SIGKILL)

                body = {"prompt": prompts[i], "max_tokens": tokens, "cache_prompt": False}
                ids, error = self.stream_ids(server, body, kill_once)
                self.assertIsNone(error)
                results[i] = ids

            threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertTrue(killed.is_set())
            self.assertEqual([results[i] for i in range(3)], control)
            server.wait_ok()
            now = [stage["pid"] for stage in server.stages()]
            self.assertEqual([a == b for a, b in zip(pids, now)], [stage != victim for stage in range(len(devices))])
            self.assertEqual(server.metric("layover_stage_restarts_total"), 1)

    def test_a_stage_that_dies_behind_shm(self):
        self.streams_through_a_death(("cpu",) * 4, "shm", 1, 300, 40)

    def test_a_stage_that_dies_behind_zmq(self):
        self.streams_through_a_death(("cpu",) * 4, "zmq", 2, 300, 40)

    def test_a_rank_that_dies_behind_nccl(self):
        for victim in (0, 1):
            with self.subTest(stage=victim):
                self.streams_through_a_death(CARDS, "nccl", victim, 40, 8)

    def test_a_rank_that_dies_while_idle_and_one_after_the_other(self):
        with Server(self.topology(CARDS, "nccl"), self.folder, env=STAND_IN) as server:
            want = self.answer(server, 5)
            for deaths, victim in enumerate((1, 0), start=1):
                os.kill(server.stages()[victim]["pid"], signal.SIGKILL)
                while server.metric("layover_stage_restarts_total") < deaths:
                    time.sleep(0.01)
                server.wait_ok()
                self.assertEqual(self.answer(server, 5), want)
            self.assertEqual(server.stop(), 0)

    def test_a_rank_that_waits_for_one_that_died_gives_up_and_lives_on(self):
        # Stage 1 stands still, so stage 0 has as many hops under way as it has buffers (limits.h, kPeerBuffers: two) and the
        # next one waits.
        prompt = [(i * 31) % 200 + 20 for i in range(500)]
        with Server(self.topology(("emu:0", "emu:1", "emu:2", "emu:3"), "nccl"), self.folder, env=STAND_IN) as server:
            want = server.complete(prompt, cache_prompt=False, max_tokens=3)
            pids = [stage["pid"] for stage in server.stages()]
            os.kill(pids[1], signal.SIGSTOP)
            before = server.stages()[0]["last_step"]
            replies = []
            asking = threading.Thread(target=lambda: replies.append(server.complete(prompt, cache_prompt=False, max_tokens=3)))
            asking.start()
            while server.stages()[0]["last_step"] < before + 4:  # a session closed, one opened, two steps
                time.sleep(0.01)
            os.kill(pids[1], signal.SIGKILL)
            asking.join()
            self.assertSameIds(replies[0], want)
            self.assertEqual([a == s["pid"] for a, s in zip(pids, server.stages())], [True, False, True, True])
            self.assertIn("the other stage is gone", server.log_text())

    def test_what_cannot_work_is_refused_with_its_line(self):
        remote = self.topology(("cpu", "cpu"), "shm").replace("link: shm", 'link: shm, host: "tcp://127.0.0.1:7001"')
        cases = (
            (self.topology(("cpu", "cpu"), "nccl"), {}, 2, "link nccl joins two GPUs, this hop has a cpu"),
            (self.topology(("emu:0", "emu:0"), "nccl"), STAND_IN, 2, "NCCL refuses two stages on emu:0"),
            (remote, {}, 2, "link shm joins stages of one host"),
            (self.topology(CARDS, "nccl"), {}, 1, "emulated cards have no NCCL"),
            (self.topology(CARDS, "nccl"), {"LAYOVER_NCCL": "/nowhere/libnccl.so"}, 1, "NCCL cannot be loaded: /nowhere/libnccl.so"),
        )
        for text, env, code, why in cases:
            with self.subTest(why=why):
                path = self.folder / "bad.yaml"
                path.write_text(text)
                for verb in ("plan", "serve"):
                    result = layover(verb, path, env=env)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertIn(f"{path}:6: ", result.stderr)
                    self.assertIn(why, result.stderr)


if __name__ == "__main__":
    unittest.main()
