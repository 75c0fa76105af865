"""The command line against a scripted server: exit codes, --json, what is asked for, the chat."""
import json
import os
import pty
import subprocess
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import harness

CONVERSATION = {"id": "a/b", "state": "saved", "n_tokens": 9, "saved_n_tokens": 8, "generation": 2, "bytes_device": 0, "bytes_host": 0,
                "bytes_disk": 4096, "branches": 1, "pinned": False, "created_at": 1, "last_used_at": 2, "identity": "x",
                "last_error": None}
VERIFIED = {"id": "a/b", "ok": True, "generation": 2, "n_records": 3, "bytes": 4096, "problems": []}


def error(kind, code=None, **more):
    return {"error": {"message": "told why", "type": kind, "param": None, "code": code, **more}}


class Script(BaseHTTPRequestHandler):
    """Answers with server.replies[(method, path)] = (status, body); notes every request."""

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization"), body))
        status, reply = self.server.replies.get((self.command, self.path), (404, error("not_found_error")))
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if isinstance(reply, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = handle_any

    def log_message(self, *_):
        pass


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
        self.server.replies, self.server.seen = {}, []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def run_cli(self, *arguments, server=None, env=None, text=None):
        return subprocess.run([harness.BIN / "layover", *arguments], capture_output=True, text=True, input=text, timeout=60,
                              env={**os.environ, "LAYOVER_SERVER": server or self.url, **(env or {})})

    def reply(self, method, path, status, body):
        self.server.replies[(method, path)] = (status, body)

    def test_exit_codes_follow_the_reply(self):
        rows = [(200, {}, 0), (404, error("not_found_error"), 3), (409, error("conflict_error", "identity_mismatch", field="weights"), 4),
                (409, error("conflict_error", "conversation_busy"), 1), (409, error("conflict_error", "conversation_exists"), 1),
                (422, error("unprocessable_entity_error"), 4),
                (400, error("invalid_request_error"), 1), (401, error("authentication_error"), 1), (500, error("server_error"), 1),
                (501, error("not_supported_error"), 1), (503, error("unavailable_error"), 5), (507, error("insufficient_storage"), 1)]
        for status, body, code in rows:
            self.reply("POST", "/v1/kv/conversations/a%2Fb/save", status, body)
            for arguments in (["save", "a/b", "--json"], ["--json", "save", "a/b"]):
                done = self.run_cli(*arguments)
                self.assertEqual(done.returncode, code, (status, done))
                self.assertEqual(json.loads(done.stdout), body, "stdout is the reply, whatever it says")
                if code:
                    self.assertIn("told why", done.stderr)

    def test_not_reachable(self):
        for flags in ([], ["--json"]):
            done = self.run_cli("ls", *flags, server="http://127.0.0.1:1")
            self.assertEqual(done.returncode, 5)
            self.assertIn("http://127.0.0.1:1", done.stderr)

    def test_usage(self):
        for arguments in ([], ["dance"], ["save"], ["show"], ["rewind", "x"], ["rewind", "x", "--to", "-1"], ["ls", "--nonsense"],
                          ["save", "x", "--store", "/tmp"], ["ls", "extra"], ["ls", "--server", "https://x"]):
            self.assertEqual(self.run_cli(*arguments).returncode, 2, arguments)
        self.assertEqual(self.run_cli("--help").returncode, 0)

    def test_each_verb_asks_for_its_own(self):
        self.reply("GET", "/v1/kv/conversations/a%2Fb", 200, CONVERSATION)
        self.reply("DELETE", "/v1/kv/conversations/a%2Fb", 200, {"id": "a/b", "deleted": True})
        for verb in ("restore", "park", "fork", "rewind"):
            self.reply("POST", f"/v1/kv/conversations/a%2Fb/{verb}", 200, {"id": "a/b"})
        for arguments in (["show", "a/b"], ["rm", "a/b"], ["restore", "a/b", "--prove"], ["park", "a/b"], ["fork", "a/b", "c"],
                          ["rewind", "a/b", "--to", "7"]):
            self.assertEqual(self.run_cli(*arguments, "--json", env={"LAYOVER_API_KEY": "sk-1"}).returncode, 0, arguments)
        bodies = [json.loads(body) if body else None for _, _, _, body in self.server.seen]
        self.assertEqual(bodies, [None, None, {"prove": True}, None, {"new_id": "c"}, {"to": 7}])
        self.assertEqual({key for _, _, key, _ in self.server.seen}, {"Bearer sk-1"})

    def test_park_and_rewind_say_what_they_did(self):
        self.reply("POST", "/v1/kv/conversations/a%2Fb/park", 200, {"id": "a/b", "bytes_host": 8192})
        self.reply("POST", "/v1/kv/conversations/a%2Fb/rewind", 200, {"id": "a/b", "n_tokens": 7})
        self.assertEqual(self.run_cli("park", "a/b").stdout, "parked a/b: 8.0 KiB in host memory\n")
        self.assertEqual(self.run_cli("rewind", "a/b", "--to", "7").stdout, "rewound a/b: 7 tokens\n")
        for verb, arguments in (("park", []), ("fork", ["c"]), ("rewind", ["--to", "7"])):
            for status, body, code in ((404, error("not_found_error"), 3), (400, error("invalid_request_error"), 1),
                                       (409, error("conflict_error", "conversation_busy"), 1)):
                self.reply("POST", f"/v1/kv/conversations/a%2Fb/{verb}", status, body)
                done = self.run_cli(verb, "a/b", *arguments)
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertIn("told why", done.stderr)

    def test_fork_shows_the_new_conversation(self):
        self.reply("POST", "/v1/kv/conversations/a%2Fb/fork", 200, {**CONVERSATION, "id": "c"})
        done = self.run_cli("fork", "a/b", "c")
        self.assertEqual(done.returncode, 0)
        self.assertIn("id              c\n", done.stdout)
        self.assertNotIn("last_save", done.stdout, "only `show` knows it")

    def test_show(self):
        detail = {**CONVERSATION, "branches": 2,
                  "branch_list": [{"n_tokens": 100, "fork_position": 0, "saved_n_tokens": 99, "state": "saved", "checkpoints": [40, 98]},
                                  {"n_tokens": 50, "fork_position": 40, "saved_n_tokens": 0, "state": "idle", "checkpoints": []}],
                  "segments": [{"file": "s00-g000003.seg", "stage": 0, "generation": 3, "layers": [0, 15], "bytes": 4096, "live_bytes": 2048}],
                  "last_save": {"bytes_written": 1024, "bytes_kept": 3072},
                  "divergence": {"position": 7, "had": [1, 2], "got": [1, 3]}}
        self.reply("GET", "/v1/kv/conversations/a%2Fb", 200, detail)
        self.assertEqual(json.loads(self.run_cli("show", "a/b", "--json").stdout), detail)
        lines = self.run_cli("show", "a/b").stdout.splitlines()
        for line in ("state           saved", "bytes_disk      4.0 KiB", "last_save       1.0 KiB written, 3.0 KiB kept",
                     "divergence      diverges at 7: had [1 2], got [1 3]",
                     "branch          100 tokens, 99 saved, saved, checkpoints [40 98]",
                     "branch          50 tokens (40 shared), 0 saved, idle, checkpoints []",
                     "segment         s00-g000003.seg  stage 0  layers [0,15]  4.0 KiB, 2.0 KiB in use"):
            self.assertIn(line, lines)
        self.reply("GET", "/v1/kv/conversations/a%2Fb", 200, {**detail, "last_save": None, "divergence": None})
        self.assertNotIn("divergence", self.run_cli("show", "a/b").stdout)

    def test_restore_tells_proof_and_warnings(self):
        result = {"id": "a/b", "generation": 3, "n_tokens": 99, "bytes_read": 2048, "ms": 9, "proof": "bit-exact", "stages": [],
                  "warnings": ["template changed"]}
        self.reply("POST", "/v1/kv/conversations/a%2Fb/restore", 200, result)
        done = self.run_cli("restore", "a/b", "--prove")
        self.assertEqual(done.stdout, "restored a/b: generation 3, 99 tokens, 2.0 KiB read, 9 ms\nproof: bit-exact\n")
        self.assertIn("warning: template changed", done.stderr)
        self.assertEqual(json.loads(self.run_cli("restore", "a/b", "--prove", "--json").stdout), result)

    def run_on_terminal(self, *arguments):
        """As run_cli, with stderr a terminal: exit code, stdout, what the terminal got."""
        master, slave = pty.openpty()
        process = subprocess.Popen([harness.BIN / "layover", *arguments], stdout=subprocess.PIPE, stderr=slave,
                                   env={**os.environ, "LAYOVER_SERVER": self.url})
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # how Linux tells that the other end is closed
                break
            if not piece:
                break
            shown += piece
        os.close(master)
        out = process.stdout.read()
        process.stdout.close()
        return process.wait(timeout=60), out.decode(), shown.decode()

    def test_a_transfer_has_a_bar_on_a_terminal_only(self):
        saved = {"id": "a/b", "generation": 3, "n_tokens": 99, "bytes_written": 2048, "bytes_kept": 0, "ms": 9, "stages": []}
        restored = {"id": "a/b", "generation": 3, "n_tokens": 99, "bytes_read": 2048, "ms": 9, "proof": None, "stages": []}
        for verb, result in (("save", saved), ("restore", restored)):
            def event(value):
                return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
            def progress(done):
                return event({"progress": {"verb": verb, "bytes_done": done, "bytes_total": 2048,
                                           "stages": [{"stage": 0, "bytes_done": done, "bytes_total": 2048}]}})
            path = f"/v1/kv/conversations/a%2Fb/{verb}"
            self.reply("POST", path, 200, result)
            self.reply("POST", path + "?stream=true", 200,
                       progress(0) + b": ping\n\n" + progress(1024) + progress(2048) + event({"result": result}) + event(b"[DONE]"))
            code, out, shown = self.run_on_terminal(verb, "a/b", "--json")
            self.assertEqual((code, json.loads(out)), (0, result))
            for part in (f"{verb} [" + " " * 30 + "] 0 B of 2.0 KiB", "[" + "#" * 15 + " " * 15 + "] 1.0 KiB of 2.0 KiB",
                         "[" + "#" * 30 + "] 2.0 KiB of 2.0 KiB"):
                self.assertIn(part, shown)
            done = self.run_cli(verb, "a/b")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("2.0 KiB", done.stdout)
            # A failure in mid-stream ends as it would without a bar; so does a stream that breaks off.
            self.reply("POST", path + "?stream=true", 200,
                       progress(1024) + event(error("conflict_error", "identity_mismatch", field="weights")) + event(b"[DONE]"))
            code, out, shown = self.run_on_terminal(verb, "a/b", "--json")
            self.assertEqual((code, json.loads(out)["error"]["field"]), (4, "weights"))
            self.assertIn("told why", shown)
            self.reply("POST", path + "?stream=true", 200, progress(1024))
            self.assertEqual(self.run_on_terminal(verb, "a/b")[0], 5)
            self.reply("POST", path + "?stream=true", 404, error("not_found_error"))
            self.assertEqual(self.run_on_terminal(verb, "a/b")[0], 3)

    def test_list_joins_the_pages(self):
        second = {**CONVERSATION, "id": "c"}
        self.reply("GET", "/v1/kv/conversations", 200, {"object": "list", "data": [CONVERSATION], "next": "a/b"})
        self.reply("GET", "/v1/kv/conversations?after=a%2Fb", 200, {"object": "list", "data": [second], "next": None})
        done = self.run_cli("ls", "--json")
        self.assertEqual(json.loads(done.stdout), {"object": "list", "data": [CONVERSATION, second], "next": None})
        table = self.run_cli("ls").stdout
        self.assertIn("a/b", table)
        self.assertIn("4.0 KiB", table)

    def test_verify_one_or_all(self):
        self.reply("GET", "/v1/kv/conversations", 200, {"object": "list", "data": [CONVERSATION], "next": None})
        self.reply("POST", "/v1/kv/conversations/a%2Fb/verify", 200, VERIFIED)
        for arguments in (["verify"], ["verify", "a/b"]):
            done = self.run_cli(*arguments, "--json")
            self.assertEqual((done.returncode, json.loads(done.stdout)), (0, {"ok": True, "conversations": [VERIFIED]}))
        problem = {"file": "s00-g000002.seg", "stage": 0, "layer": 3, "what": "digest differs"}
        self.reply("POST", "/v1/kv/conversations/a%2Fb/verify", 200, {**VERIFIED, "ok": False, "problems": [problem]})
        done = self.run_cli("verify")
        self.assertEqual(done.returncode, 4)
        self.assertIn("s00-g000002.seg (stage 0, layer 3): digest differs", done.stdout)

    def test_chat_sends_the_whole_history_and_keeps_it(self):
        def chunk(**choice):
            return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
        stream = (chunk(delta={"role": "assistant", "content": ""}) + b": ping\n\n" + chunk(delta={"content": "he"}) +
                  chunk(delta={"content": "llo"}) + chunk(delta={}, finish_reason="stop") + b"data: [DONE]\n\n")
        self.reply("POST", "/v1/chat/completions", 200, stream)
        with tempfile.TemporaryDirectory() as folder:
            history = os.path.join(folder, "history.json")
            done = self.run_cli("chat", "--conversation", "c1", "--history", history, "--system", "be kind", text="one\n\ntwo\n/quit\nx\n")
            self.assertEqual((done.returncode, done.stdout), (0, "hello\nhello\n"))
            self.assertEqual(os.stat(history).st_mode & 0o777, 0o600)
            with open(history) as file:
                roles = [message["role"] for message in json.load(file)]
            self.assertEqual(roles, ["system", "user", "assistant", "user", "assistant"])
            self.assertEqual(self.run_cli("chat", "--history", history, text="three\n").returncode, 0)
        asked = [json.loads(body) for _, _, _, body in self.server.seen]
        self.assertEqual([len(body["messages"]) for body in asked], [2, 4, 6])
        self.assertEqual(asked[0]["conversation_id"], "c1")
        self.assertEqual(asked[1]["messages"][2], {"role": "assistant", "content": "hello"})

    def test_a_chat_that_fails_in_mid_stream_says_so(self):
        self.reply("POST", "/v1/chat/completions", 200, b"data: " + json.dumps(error("server_error")).encode() + b"\n\n")
        done = self.run_cli("chat", text="one\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("told why", done.stderr)


if __name__ == "__main__":
    unittest.main()
