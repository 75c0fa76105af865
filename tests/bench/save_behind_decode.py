"""What saving costs the others: one conversation's decode rate and longest gap while full saves of another one run back to
back, against the same tokens decoded undisturbed, in the same run.

    python3 tests/bench/save_behind_decode.py [--seconds 20] [--tokens 4000]

Undisturbed, beside saves, undisturbed again: always the same tokens, as many as come in --seconds beside the saves. The saves
are full ones: each is of a fresh fork of a conversation that was never saved itself. The stream is read by a process of its
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=4000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        folder = pathlib.Path(folder).resolve()
        text = topology(DEMO_MODEL, folder / "store", ((1, "0-14"), (1, "15-29")), context=8192, store_keys={"save": "manual"})
        with Server(text, folder) as server:
            server.complete([200 + (7 * i) % 1000 for i in range(options.tokens)], "big", max_tokens=0)
            decode(server, options.seconds)  # the same pages of memory are used from now on
            stop, saves = threading.Event(), []
            saver = threading.Thread(target=save_again_and_again, args=(server, stop, saves))
            saver.start()
            beside = decode(server, options.seconds)
            stop.set()
            saver.join()
            alone = [decode(server, 3 * options.seconds, len(beside)) for _ in range(2)]
    rate = [1 / statistics.mean(gaps[WARM_UP:]) for gaps in (*alone, beside)]
    longest = [sorted(gaps[WARM_UP:])[-3:] for gaps in (*alone, beside)]
    print(f"{len(beside)} tokens: alone {rate[0]:.1f} and {rate[1]:.1f} tok/s, beside saves {rate[2]:.1f} tok/s: "
          f"ratio {2 * rate[2] / (rate[0] + rate[1]):.3f}")
    print("longest gaps " + "; ".join(f"{name} " + ", ".join(f"{1000 * gap:.1f}" for gap in gaps) + " ms"
                                      for name, gaps in zip(("alone", "again", "beside saves"), longest)) +
          f": ratio {2 * longest[2][-1] / (longest[0][-1] + longest[1][-1]):.2f}")
    print(f"{len(saves)} saves of {saves[0][0] / 1e6:.0f} MB, {sum(s[0] for s in saves) / sum(s[1] for s in saves) / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
