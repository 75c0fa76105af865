"""Other machines, played by `layover-stage --listen` on this one, for the tests of remote stages."""
import itertools
import os
import socket
import subprocess
import time

from harness import BIN, Case, Server, tiny_model

PROMPT = list(range(20, 120))
PORTS = 5  # of a listening machine
next_port = itertools.count(20000 + os.getpid() % 2000 * PORTS, PORTS)  # below those that the system hands out


def free_ports():
    """The first of as many neighbouring ports as a machine needs."""
    for first in next_port:
        try:
            for port in range(first, first + PORTS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            pass


class Listening:
    """`layover-stage --listen` in a subprocess; a killed one can be started again on its port."""

    def __init__(self, case, keys=(), model=None, store=None):
        self.port = free_ports()
        self.host = f"tcp://127.0.0.1:{self.port}"
        self.log = case.folder / f"stage-{self.port}.log"
        self.store = store
        self.args = [BIN / "layover-stage", "--listen", self.host, *keys, *(["--model", model] if model else []),
                     *(["--store", store] if store else [])]
        self.process = None
        case.addCleanup(self.kill)

    def start(self, **env):
        self.kill()  # one that a failed test has left
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.args, stderr=log, stdout=log, cwd="/", env={**os.environ, **env})
        return self

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def segments(self):
        return sorted(self.store.rglob("*.seg"))


def until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not come true")
        time.sleep(0.02)


class RemoteCase(Case):
    def setUp(self):
        super().setUp()
        self.model = tiny_model(self.folder, "--layers", "4", "--context", "4096")

    def topology(self, *hosts, store=None, keys=""):
        """A stage for each host, "" being this machine; the four layers are shared out evenly."""
        lines = [f"model: {self.model}", "context: 4096", "stages:"]
        share = 4 // len(hosts)
        for i, host in enumerate(hosts):
            where = f', host: "{host}"{keys}' if host else ""
            lines.append("  - {device: cpu, layers: %d-%d%s}" % (i * share, (i + 1) * share - 1, where))
        if store:
            lines.append("store: {dir: %s, min_free: 0, save: manual}" % store)
        return "\n".join([*lines, 'server: {listen: "127.0.0.1:0"}', ""])

    def make_keys(self, name):
        subprocess.run([BIN / "layover-stage", "--make-keys", self.folder / name], check=True)
        return self.folder / f"{name}.public", self.folder / f"{name}.secret"

    def control(self, **fields):
        with Server(self.topology("", ""), self.folder, name="control") as server:
            return server.complete(PROMPT, **fields)

    def keeping(self, name="there"):
        return Listening(self, store=self.folder / name)

    def fails(self, text, *whys, name="failing"):
        """The server does not come up, and its log says why."""
        server = Server(text, self.folder, name=name).start(expect_ready=False)
        self.addCleanup(server.process.kill)
        self.assertEqual(server.process.wait(timeout=60), 1, server.log_text())
        server.process.stdout.close()
        for why in whys:
            self.assertIn(why, server.log_text())

    def restart_and_wait(self, stage, server):
        """Another process listens on the machine, and the server has its worker."""
        stage.kill()
        until(lambda: server.stages()[1]["state"] == "restarting")  # nobody is there, so it stays that
        stage.start()
        server.wait_ok()
