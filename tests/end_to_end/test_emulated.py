"""The whole product on the CUDA back end, whose kernels the CPU runs under emulation: two stages on emu:0 and emu:1.

LAYOVER_TEST_DEVICES="cuda:0,cuda:0" runs it on real cards.
"""
import os
import re
import unittest

from harness import Case, Server, layover, tiny_model

FLAGS = ("--type", "Q4_0", "--layers", "2", "--embd", "64", "--heads", "2", "--kv-heads", "1", "--ff", "96")


def topology(model, store, devices, kv_type="f16"):
    stages = "\n".join("  - {device: '%s', layers: %s}" % device for device in devices)
    where = "store: {dir: %s, min_free: 0}\n" % store if store else ""
    return (f"model: {model}\ncontext: 512\nkv_type: {kv_type}\nstages:\n{stages}\n{where}"
            'server: {listen: "127.0.0.1:0"}\n')


DEVICES = os.environ.get("LAYOVER_TEST_DEVICES", "emu:0,emu:1").split(",")
EMULATED = ((DEVICES[0], "0-0"), (DEVICES[1], "1-1"))
PROCESSOR = (("cpu", "0-1"),)
HISTORY = list(range(10, 90))


class Emulated(Case):
    def talk(self, server, history, conversation=None, tokens=12):
        """The reply to the history, and the history after it."""
        reply = server.complete(history, conversation, max_tokens=tokens, ignore_eos=True, return_row_digests=True)
        return reply, history + reply["choices"][0]["token_ids"]

    def both_turns(self, name, devices, store=None, restart=False, flags=FLAGS, **keys):
        model = tiny_model(self.folder, *flags)
        text = topology(model, store, devices, **keys)
        server = Server(text, self.folder, name=name).start()
        try:
            first, history = self.talk(server, HISTORY, "c")
            if restart:
                self.assertEqual(server.stop(), 0)  # saves
                server = Server(text, self.folder, name=name).start()
            second, _ = self.talk(server, history + [7, 8, 9], "c")
        finally:
            server.stop()
        return first, second

    def graphs_of(self, server):
        """Steps that ran as graphs, by stage, from what the stages of a server that has stopped said last."""
        said = re.findall(r"stage-(\d): (\d+) of (\d+) steps ran as graphs \((\d+) made\)", server.log_text())
        return {int(stage): (int(graphs), int(steps), int(made)) for stage, graphs, steps, made in said}

    def same(self, got, want):
        for a, b in zip(got, want):
            self.assertSameIds(a, b)
            self.assertEqual(a["choices"][0]["row_xxh3"], b["choices"][0]["row_xxh3"])

    def test_a_restored_conversation_goes_on_with_the_bits_of_one_never_interrupted(self):
        control = self.both_turns("control", EMULATED)
        restored = self.both_turns("restored", EMULATED, store=self.folder / "store", restart=True)
        timings = restored[1]["timings"]
        self.assertEqual(timings["restored_n"], len(HISTORY) + 12 - 1)
        self.assertEqual(timings["recomputed_n"], 0)
        self.same(restored, control)
        # The kernels keep the contract's order, so the CPU back end gives the same bits.
        self.same(control, self.both_turns("processor", PROCESSOR))

    def test_decode_runs_as_graphs(self):
        model = tiny_model(self.folder, *FLAGS)
        with_graphs = Server(topology(model, None, EMULATED), self.folder, name="graphs").start()
        without = Server(topology(model, None, PROCESSOR), self.folder, name="plain").start()
        try:
            for conversation, begin in (("a", 10), ("b", 60), ("a", 10)):
                replies = [self.talk(server, HISTORY[begin:], conversation, tokens=20)[0] for server in (with_graphs, without)]
                self.same(replies[:1], replies[1:])
        finally:
            with_graphs.stop()
            without.stop()
        # All decode steps but the first two with each slot.
        counts = self.graphs_of(with_graphs)
        self.assertEqual(sorted(counts), [0, 1], with_graphs.log_text())
        for graphs, steps, made in counts.values():
            self.assertGreaterEqual(graphs, 3 * 19 - 8)
            self.assertGreaterEqual(made, 2)
            self.assertLessEqual(made, 6)
            self.assertGreater(steps, graphs)
        self.assertEqual(self.graphs_of(without), {})

    def test_q8_0_pages(self):
        self.same(self.both_turns("emulated", EMULATED, kv_type="q8_0"), self.both_turns("processor", PROCESSOR, kv_type="q8_0"))

    def test_mixtures_of_experts(self):
        for name in ("gpt-oss", "qwen3moe"):
            with self.subTest(name):
                flags = ("--arch", name, "--type", "Q8_0")
                emulated = self.both_turns("emulated", ((DEVICES[0], "0-1"), (DEVICES[1], "2-2")), flags=flags)
                self.same(emulated, self.both_turns("processor", (("cpu", "0-2"),), flags=flags))

    def test_a_card_that_is_not_there_is_named(self):
        kind = DEVICES[0].split(":")[0]
        text = topology(tiny_model(self.folder, *FLAGS), None, ((kind + ":63", "0-1"),))
        server = Server(text, self.folder, name="missing").start(expect_ready=False)
        self.assertNotEqual(server.process.wait(timeout=60), 0)
        self.assertRegex(server.log_text(), kind + ":63: (there are 8 emulated cards|this machine has . NVIDIA cards)")

    def test_plan_accepts_the_devices(self):
        path = self.folder / "plan.yaml"
        path.write_text(topology(tiny_model(self.folder, *FLAGS), None, EMULATED))
        result = layover("plan", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(DEVICES[1], result.stdout)


if __name__ == "__main__":
    unittest.main()
