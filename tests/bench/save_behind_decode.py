"""What saving costs the others: one conversation's decode rate and longest gap while full saves of another one run back to
back, against the same decode undisturbed, in the same run.

    python3 tests/bench/save_behind_decode.py [--seconds 20] [--tokens 4000]

The saves are full ones: each is of a fresh fork of a conversation that was never saved itself. By hand, on a machine
that does nothing else.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))
from harness import DEMO_MODEL, Server, topology  # noqa: E402


def decode(server, seconds):
    """Seconds between the tokens of a stream, for about so long."""
    body = {"prompt": list(range(300, 400)), "max_tokens": 3500, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
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
            if now > end:
                break
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
            alone = decode(server, options.seconds)
            stop, saves = threading.Event(), []
            saver = threading.Thread(target=save_again_and_again, args=(server, stop, saves))
            saver.start()
            beside = decode(server, options.seconds)
            stop.set()
            saver.join()
            again = decode(server, options.seconds)
    rate = [1 / statistics.mean(gaps) for gaps in (alone, beside, again)]
    longest = [max(gaps[5:]) * 1000 for gaps in (alone, beside, again)]
    undisturbed = (rate[0] + rate[2]) / 2
    print(f"decode alone {rate[0]:.1f} and {rate[2]:.1f} tok/s, beside saves {rate[1]:.1f} tok/s: ratio {rate[1] / undisturbed:.3f}")
    print(f"longest gap alone {longest[0]:.1f} and {longest[2]:.1f} ms, beside saves {longest[1]:.1f} ms: ratio "
          f"{longest[1] / max(longest[0], longest[2]):.2f}")
    print(f"{len(saves)} saves of {saves[0][0] / 1e6:.0f} MB, {sum(s[0] for s in saves) / sum(s[1] for s in saves) / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
