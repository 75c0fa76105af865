"""What saving costs the others: one conversation's decode rate and longest gap while full saves of another one run back to
back, against the same tokens decoded undisturbed, in the same run.

    python3 tests/bench/save_behind_decode.py [--seconds 20] [--tokens 4000] [--rounds 5]

Beside saves and undisturbed take turns, always with the same tokens, as many as come in --seconds beside the saves; medians
of the rounds. The saves are full ones: each is of a fresh fork of a conversation that was never saved itself. The stream is read by a process of its
own, so that the client that asks for the saves does not hold it up. By hand, on a machine that does nothing else.
"""
import argparse
import json
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))
from harness import DEMO_MODEL, Server, topology  # noqa: E402

WARM_UP = 5  # tokens


def read_stream(server, seconds, n_tokens, out):
    body = {"prompt": list(range(300, 400)), "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
            "return_tokens": True}
    gaps, last, end = [], None, time.monotonic() + seconds
    with server.stream("/v1/completions", body) as (_, events):
        for event in events:
            if event == "[DONE]":
                break
            ids = [i for choice in json.loads(event).get("choices", []) for i in choice.get("token_ids") or []]
            now = time.monotonic()
            if ids and last is not None:
                gaps += [(now - last) / len(ids)] * len(ids)
            last = now if ids else last
            if now > end or (n_tokens and len(gaps) >= n_tokens):
                break
    out.put(gaps)


def decode(server, seconds, n_tokens=None):
    """Seconds between the tokens of a stream, for about so long or so many."""
    out = multiprocessing.Queue()
    reader = multiprocessing.Process(target=read_stream, args=(server, seconds, n_tokens, out))
    reader.start()
    gaps = out.get()
    reader.join()
    return gaps


def save_again_and_again(server, stop, saves):
    number = 0
    while not stop.is_set():
        number += 1
        server.post("/v1/kv/conversations/big/fork", {"new_id": f"copy{number}"})
        started = time.monotonic()
        reply = server.post(f"/v1/kv/conversations/copy{number}/save").json
        saves.append((reply["bytes_written"], time.monotonic() - started))
        server.request("DELETE", f"/v1/kv/conversations/copy{number}")


def measure(server, seconds):
    """The gaps beside saves, those of the same tokens undisturbed, and the saves as (bytes, seconds)."""
    stop, saves = threading.Event(), []
    saver = threading.Thread(target=save_again_and_again, args=(server, stop, saves))
    saver.start()
    beside = decode(server, seconds)
    stop.set()
    saver.join()
    return beside[WARM_UP:], decode(server, 3 * seconds, len(beside))[WARM_UP:], saves


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        folder = pathlib.Path(folder).resolve()
        text = topology(DEMO_MODEL, folder / "store", ((1, "0-14"), (1, "15-29")), context=8192, store_keys={"save": "manual"})
        with Server(text, folder) as server:
            server.complete([200 + (7 * i) % 1000 for i in range(options.tokens)], "big", max_tokens=0)
            decode(server, options.seconds)  # the same pages of memory are used from now on
            ratios = []
            for _ in range(options.rounds):
                beside, alone, saves = measure(server, options.seconds)
                ratios.append((statistics.mean(alone) / statistics.mean(beside), max(beside) / max(alone)))
                print(f"{len(beside)} tokens: {1 / statistics.mean(alone):.1f} tok/s alone, {1 / statistics.mean(beside):.1f} beside "
                      f"saves, {ratios[-1][0]:.3f}; longest gap {1000 * max(alone):.1f} and {1000 * max(beside):.1f} ms, "
                      f"{ratios[-1][1]:.2f}; {len(saves)} saves of {saves[0][0] / 1e6:.0f} MB, "
                      f"{sum(s[0] for s in saves) / sum(s[1] for s in saves) / 1e6:.0f} MB/s", flush=True)
    rate, gap = (statistics.median(values) for values in zip(*ratios))
    print(f"medians: decode beside saves {rate:.3f} of undisturbed, longest gap {gap:.2f} times")


if __name__ == "__main__":
    main()
