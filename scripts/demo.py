#!/usr/bin/env python3
"""A conversation that survives a restart, played without a person and compared with one that was never interrupted.

A turn, save, stop, start, restore, a turn. Prints what each step took and how many tokens were reused. Exit 0 only if
nothing was read again and every token equals the uninterrupted run's.
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAYOVER = ROOT / "build" / "bin" / "layover"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSATION = "demo"
QUESTIONS = ["Explain in a few sentences why the sky is blue.", "And why is it red in the evening?"]


class Server:
    def __init__(self, folder):
        self.folder = folder
        self.topology = folder / "demo.yaml"
        self.topology.write_text(f"""model: {MODEL}
context: 2048
stages:
  - {{device: cpu, threads: 1, layers: 0-14}}
  - {{device: cpu, threads: 1, layers: 15-29}}
store: {{dir: {folder / 'store'}, min_free: 64MiB, save: manual}}
server: {{listen: "127.0.0.1:0"}}
""")
        self.process = None

    def start(self):
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen([LAYOVER, "serve", self.topology], stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline().decode().split()
        if line[:1] != ["ready"]:
            sys.exit(f"the server did not start:\n{(self.folder / 'server.log').read_text()}")
        self.url = line[1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        if code != 0:
            sys.exit(f"the server ended with {code}:\n{(self.folder / 'server.log').read_text()}")

    def chat(self, messages):
        body = {"messages": messages, "temperature": 0, "max_tokens": 60, "return_tokens": True}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "X-Conversation-Id": CONVERSATION})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.loads(reply.read())

    def command(self, verb):
        done = subprocess.run([LAYOVER, verb, CONVERSATION, "--json", "--server", self.url], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"layover {verb} failed: {done.stderr}")
        return json.loads(done.stdout)


def timed(what, call):
    start = time.monotonic()
    result = call()
    print(f"  {what:<34} {time.monotonic() - start:7.2f} s", end="")
    return result


def turn(server, messages, question):
    messages.append({"role": "user", "content": question})
    reply = timed("turn", lambda: server.chat(messages))
    timings = reply["timings"]
    print(f"   {reply['usage']['prompt_tokens']} prompt tokens: {timings['cache_n']} reused, "
          f"{timings['recomputed_n']} read again, {timings['prompt_n']} new; {timings['predicted_n']} written")
    choice = reply["choices"][0]
    messages.append({"role": "assistant", "content": choice["message"]["content"]})
    return choice["token_ids"], timings


def main():
    with tempfile.TemporaryDirectory(prefix="layover-demo-") as folder:
        folder = pathlib.Path(folder)
        print("interrupted:")
        (folder / "a").mkdir()
        server, messages = Server(folder / "a"), []
        timed("start two stages", server.start), print()
        first, _ = turn(server, messages, QUESTIONS[0])
        saved = timed("save", lambda: server.command("save"))
        print(f"   {saved['n_tokens']} tokens, {saved['bytes_written']} bytes")
        timed("stop", server.stop), print()
        timed("start again", server.start), print()
        restored = timed("restore", lambda: server.command("restore"))
        print(f"   {restored['n_tokens']} tokens, {restored['bytes_read']} bytes")
        second, timings = turn(server, messages, QUESTIONS[1])
        server.stop()

        print("uninterrupted:")
        (folder / "b").mkdir()
        server, messages = Server(folder / "b"), []
        timed("start two stages", server.start), print()
        control_first, _ = turn(server, messages, QUESTIONS[0])
        control_second, _ = turn(server, messages, QUESTIONS[1])
        server.stop()

    equal = (first, second) == (control_first, control_second)
    reused = timings["recomputed_n"] == 0 and timings["cache_n"] >= restored["n_tokens"] == saved["n_tokens"]
    print(f"tokens equal to the uninterrupted run: {'yes' if equal else 'NO'}")
    print(f"everything saved was reused, nothing read again: {'yes' if reused else 'NO'}")
    return 0 if equal and reused else 1


if __name__ == "__main__":
    sys.exit(main())
