"""Starts the real programs for end-to-end tests: a server over a topology in a folder of its own, and a small client.

Only the standard library. LAYOVER_BIN names the folder of the programs, LAYOVER_SOURCE the tree (ctest sets both).
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
from http.client import HTTPConnection

SOURCE = pathlib.Path(os.environ.get("LAYOVER_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("LAYOVER_BIN", SOURCE / "build" / "bin")).resolve()
# What a program built with sanitizers says when it finds something.
SANITIZER = re.compile(r"(WARNING|ERROR): (Thread|Address|Leak)Sanitizer|: runtime error: ")
DEMO_MODEL = SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def tiny_model(folder, *flags):
    """Writes a tiny seeded llama model and returns its path."""
    path = pathlib.Path(folder) / "tiny.gguf"
    if not path.exists():
        subprocess.run([BIN / "make_tiny_model", path, *flags], check=True, stdout=subprocess.DEVNULL)
    return path


def long_prompt(n, salt=0):
    """n tokens of the demo model that make no sense."""
    return [(i * 37 + salt * 101) % 20000 + 100 for i in range(n)]


def topology(model, store=None, stages=((0, None),), **keys):
    """Topology text. `stages`: a list of (threads, "a-b" or None)."""
    lines = [f"model: {model}"]
    for key, value in keys.items():
        if key not in ("store_keys", "listen"):
            lines.append(f"{key}: {value}")
    lines.append("stages:")
    for threads, layers in stages:
        lines.append("  - {device: cpu, threads: %d%s}" % (threads or 1, f", layers: {layers}" if layers else ""))
    if store:
        extra = {"min_free": "0", **keys.get("store_keys", {})}
        lines.append("store: {dir: %s%s}" % (store, "".join(f", {k}: {v}" for k, v in extra.items())))
    lines.append('server: {listen: "%s"}' % keys.get("listen", "127.0.0.1:0"))
    return "\n".join(lines) + "\n"


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """`layover serve` in a subprocess. Use as a context manager, or start() and stop()."""

    def __init__(self, text, folder, env=None, name="server"):
        self.folder = pathlib.Path(folder)
        self.topology = self.folder / f"{name}.yaml"
        self.topology.write_text(text)
        self.log_path = self.folder / f"{name}.log"
        self.env = {**os.environ, **(env or {})}
        self.process = None
        self.url = None

    def start(self, timeout_s=120, expect_ready=True):
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen([BIN / "layover", "serve", self.topology], stdout=subprocess.PIPE, stderr=log,
                                        env=self.env, cwd=self.folder)
        log.close()
        line = self.process.stdout.readline().decode()
        if not expect_ready:
            return self
        if not line.startswith("ready "):
            self.process.wait(timeout=10)
            raise AssertionError(f"no ready line (exit {self.process.returncode}): {line!r}\n{self.log_tail()}")
        self.url = line.split()[1]
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port = parts.hostname, parts.port
        return self

    def stop(self, signal_number=signal.SIGTERM, timeout_s=60):
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        code = self.process.wait(timeout=timeout_s)
        self.process.stdout.close()
        self.process = None
        if report := SANITIZER.search(self.log_text()):
            raise AssertionError(f"{self.log_path.name}: " + self.log_text()[report.start():report.start() + 6000])
        return code

    def kill(self):
        return self.stop(signal.SIGKILL)

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        if error[0] is not None:
            sys.stderr.write(self.log_tail())
        self.stop()

    def log_text(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=40):
        return "\n".join(self.log_text().splitlines()[-lines:]) + "\n"

    # --- HTTP

    def request(self, method, path, body=None, headers=None, timeout_s=300):
        connection = HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path, **keys):
        return self.request("GET", path, **keys)

    def post(self, path, body=None, **keys):
        return self.request("POST", path, body if body is not None else {}, **keys)

    def complete(self, prompt, conversation=None, **fields):
        """POST /v1/completions, greedy unless told otherwise; the reply's JSON."""
        body = {"prompt": prompt, "temperature": 0, "return_tokens": True, **fields}
        if conversation is not None:
            body["conversation_id"] = conversation
        reply = self.post("/v1/completions", body)
        if reply.status != 200:
            raise AssertionError(f"{reply.status}: {reply.body.decode()}\n{self.log_tail()}")
        return reply.json

    def chat(self, messages, conversation=None, **fields):
        body = {"messages": messages, "temperature": 0, "return_tokens": True, **fields}
        if conversation is not None:
            body["conversation_id"] = conversation
        reply = self.post("/v1/chat/completions", body)
        if reply.status != 200:
            raise AssertionError(f"{reply.status}: {reply.body.decode()}\n{self.log_tail()}")
        return reply.json

    @contextlib.contextmanager
    def stream(self, path, body, headers=None):
        """The open connection and a generator of the stream's `data:` payloads."""
        connection = HTTPConnection(self.host, self.port, timeout=300)
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(),
                           {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        try:
            yield response, self._events(response)
        finally:
            connection.sock and connection.sock.close()
            connection.close()

    @staticmethod
    def _events(response):
        for raw in response:
            line = raw.decode().rstrip("\r\n")
            if line.startswith("data: "):
                yield line[6:]

    def stages(self):
        return self.get("/health").json["stages"]

    def wait_ok(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.get("/health").status == 200:
                return
            time.sleep(0.05)
        raise AssertionError("not ok again: " + self.get("/health").body.decode())

    def metric(self, name):
        """Sum of all series of a metric whose line begins with `name`."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name) and not line.startswith("#"):
                total += float(line.rsplit(" ", 1)[1])
        return total


def ids(reply):
    """The token ids of a completion's JSON."""
    return reply["choices"][0]["token_ids"]


def layover(*args, env=None, timeout_s=300, cwd=None):
    """Runs the command line; the finished process with text output."""
    return subprocess.run([BIN / "layover", *map(str, args)], capture_output=True, text=True, timeout=timeout_s, cwd=cwd,
                          env={**os.environ, **(env or {})})


def process_io(pid):
    """Bytes a process has read and written through system calls, and from the disk."""
    values = {}
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        key, value = line.split(": ")
        values[key] = int(value)
    return values


class Hold:
    """Stops one thread of one program at one operation on a file, until release(); see common/storage/fault_point.h."""

    def __init__(self, folder, program, match, operation=1):
        self.file = pathlib.Path(folder) / "held"
        self.env = {"LAYOVER_FAULT": f"hold:{operation}:{self.file}", "LAYOVER_FAULT_PROGRAM": program, "LAYOVER_FAULT_MATCH": match}

    def wait(self):
        wait_until(self.file.exists, "nothing came to the place where it is held")

    def release(self):
        self.file.unlink()


def wait_until(condition, otherwise, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        time.sleep(0.01)


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="layover-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def assertSameIds(self, a, b):
        self.assertEqual(a["choices"][0]["token_ids"], b["choices"][0]["token_ids"])

    def stream_ids(self, server, body, on_chunk=None):
        """Token ids of a streamed completion, and whether an error event came."""
        ids, error = [], None
        with server.stream("/v1/completions", {"temperature": 0, "return_tokens": True, "ignore_eos": True, **body}) as (_, events):
            for event in events:
                if event == "[DONE]":
                    break
                chunk = json.loads(event)
                error = error or chunk.get("error")
                for choice in chunk.get("choices", []):
                    ids += choice.get("token_ids") or []
                if on_chunk is not None:
                    on_chunk(ids)
        return ids, error


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
