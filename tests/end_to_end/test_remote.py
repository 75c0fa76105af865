"""Stages on other machines: machines and workers that die, other coordinators, other models, and keys that do not fit."""
import os
import pathlib
import signal
import threading
import unittest

from harness import Server, ids, tiny_model
from remote_case import PROMPT, Listening, RemoteCase, until


class Remote(RemoteCase):
    # --- loss

    def stream_through(self, stage, server, interrupt):
        """Streams 300 tokens; `interrupt` runs once, after 40 of them."""
        done = []

        def interrupt_once(ids):
            if len(ids) >= 40 and not done:
                done.append(True)
                interrupt()

        ids, error = self.stream_ids(server, {"prompt": PROMPT, "max_tokens": 300}, interrupt_once)
        self.assertIsNone(error)
        self.assertTrue(done)
        return ids

    def test_the_machine_dies_and_comes_back_and_the_stream_goes_on(self):
        control = ids(self.control(max_tokens=300, ignore_eos=True))
        stage = Listening(self).start()
        with Server(self.topology("", stage.host), self.folder) as server:
            local = server.stages()[0]["pid"]

            def machine_dies():
                stage.kill()
                until(lambda: server.stages()[1]["state"] == "restarting")
                stage.start()

            self.assertEqual(self.stream_through(stage, server, machine_dies), control)
            worker = server.stages()[1]["pid"]
            self.assertEqual(self.stream_through(stage, server, lambda: os.kill(worker, signal.SIGKILL)), control)
            self.assertNotEqual(server.stages()[1]["pid"], worker)
            self.assertEqual(server.stages()[0]["pid"], local)
            self.assertEqual(server.metric("layover_stage_restarts_total"), 2)

    def test_a_second_coordinator_waits_for_the_first_to_go(self):
        stage = Listening(self).start()
        text = self.topology("", stage.host)
        first = Server(text, self.folder, name="first").start()
        second = Server(text, self.folder, name="second")
        waiting = threading.Thread(target=second.start)
        waiting.start()
        until(lambda: "another coordinator has" in second.log_text())
        self.assertEqual(first.complete(PROMPT, max_tokens=2)["choices"][0]["finish_reason"], "length")
        first.kill()  # without a word: its place is free when the connection is gone
        waiting.join()
        self.assertEqual(second.complete(PROMPT, max_tokens=2)["choices"][0]["finish_reason"], "length")
        second.stop()

    # --- refusals

    def test_keys(self):
        control = self.control(max_tokens=20, ignore_eos=True)
        own_public, own_secret = self.make_keys("here")
        stage_public, stage_secret = self.make_keys("there")
        self.assertEqual(own_secret.stat().st_mode & 0o777, 0o600)
        stage = Listening(self, ["--secret-key-file", stage_secret, "--public-key-file", own_public], self.model).start()
        keys = f", public_key_file: {stage_public}, secret_key_file: {own_secret}"
        text = self.topology(stage.host, "", keys=keys)
        with Server(text, self.folder) as server:
            self.assertSameIds(server.complete(PROMPT, max_tokens=20, ignore_eos=True), control)
        other_public, other_secret = self.make_keys("other")
        for name, wrong, why in (("client", text.replace(str(own_secret), str(other_secret)), "does not let this coordinator's key in"),
                                 ("server", text.replace(str(stage_public), str(other_public)), "public_key_file"),
                                 ("plain", text.replace(keys, ""), "differ in whether they use keys")):
            with self.subTest(wrong=name):
                self.fails(wrong, stage.host, why, name=name)
        with Server(text, self.folder) as server:  # none of them harmed it
            self.assertSameIds(server.complete(PROMPT, max_tokens=20, ignore_eos=True), control)

    def test_another_model_there(self):
        other = pathlib.Path(self.folder) / "other"
        other.mkdir()
        for name, flags, why in (("weights", ("--seed", "99"), "layer 2 differs"), ("rope", ("--rope-base", "5000"), "its rotation differs")):
            with self.subTest(name):
                folder = other / name
                folder.mkdir()
                model = tiny_model(folder, "--layers", "4", "--context", "4096", *flags)
                stage = Listening(self, model=model).start()
                self.fails(self.topology("", stage.host), stage.host, why, "--model", name=name)

    def test_no_store_there(self):
        stage = Listening(self).start()
        self.fails(self.topology("", stage.host, store=self.folder / "store"), stage.host, "--store DIR")

    def test_a_machine_that_listens_late_is_waited_for_by_name(self):
        stage = Listening(self)
        server = Server(self.topology("", stage.host), self.folder)
        starting = threading.Thread(target=server.start)
        starting.start()
        until(lambda: f"waiting for {stage.host}" in server.log_text())
        stage.start()
        starting.join()
        self.assertEqual(server.complete(PROMPT, max_tokens=2)["choices"][0]["finish_reason"], "length")
        server.stop()


if __name__ == "__main__":
    unittest.main()
