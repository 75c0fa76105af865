#!/usr/bin/env python3
"""The table of a card's speeds, each divided by a limit that was measured in the same run, in Markdown.

card_table.py --driver VERSION --model NAME [--commit ID] CARD.json ONE_STAGE.json TWO_STAGES.json

CARD.json is what the card's bench printed (tests/gpu/card_bench.cc), the others what `layover bench --json` printed with
one and with two stages on that card. What is missing in a file is an error that names file and field.
"""
import argparse
import json
import pathlib
import sys

HEAD = "| what | measured | limit, same run | ratio |\n|---|---:|---:|---:|"


class Unusable(Exception):
    """A file that the table cannot be made of."""


class Record:
    """A JSON file whose fields are asked for by name."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            self.values = json.loads(self.path.read_text())
        except (OSError, ValueError) as error:
            raise Unusable(f"{path}: {error}") from error
        if not isinstance(self.values, dict):
            raise Unusable(f"{path}: not a JSON object")

    def field(self, name):
        if name not in self.values:
            raise Unusable(f"{self.path}: no field {name}")
        return self.values[name]

    def number(self, name):
        """Of a rate or a size, which is above zero."""
        value = self.field(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise Unusable(f"{self.path}: {name} is {value}, not a number above 0")
        return value

    def measures(self, group):
        return [entry for entry in self.field("measures") if entry.get("group") == group]

    def rate(self, group, key, value):
        """Of the one measure of the group whose `key` is `value`; None if there is none."""
        for entry in self.measures(group):
            if entry.get(key) == value:
                return self.rate_of(entry)
        return None

    def rate_of(self, entry):
        rate = entry.get("rate")
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise Unusable(f"{self.path}: the rate of {entry} is not a number above 0")
        return rate

    def limit(self, name):
        rate = self.rate("limit", "name", name)
        if rate is None:
            raise Unusable(f"{self.path}: no limit {name}")
        return rate


def three(value):
    """Three digits, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def row(what, measured, limit, *ratios):
    return f"| {what} | {measured} | {limit} | {', '.join(f'{ratio:.2f}' for ratio in ratios) or '-'} |"


def floor_of(card):
    """The better of reading and copying, GB/s."""
    return max(card.limit("read"), card.limit("copy"))


def product(entry):
    rows = "1 row" if entry["rows"] == 1 else f"{entry['rows']} rows"
    experts = f", {entry['used']} of {entry['experts']} experts" if "experts" in entry else ""
    return f"{entry['type']} {entry['n_out']} × {entry['cols']}{experts}, {rows}"


def decode_rows(card, runs, model):
    floor = floor_of(card)
    limit = f"{three(floor)} GB/s"
    yield row("bandwidth floor", f"reading {three(card.limit('read'))} GB/s, copies on the card {three(card.limit('copy'))} GB/s",
              "the better of the two")
    for entry in card.measures("decode"):
        rate = card.rate_of(entry)
        yield row(f"decode product, {product(entry)}", f"{three(rate)} GB/s of weights", limit, rate / floor)
    for entry in card.measures("attention"):
        rate = card.rate_of(entry)
        yield row(f"decode attention, {entry['tokens']:,} tokens, {entry['heads']} heads of {entry['head_dim']}, "
                  f"{entry['kv_heads']} of K/V, f16", f"{three(rate)} GB/s of K/V", limit, rate / floor)
    for name, run in runs:
        tokens, bytes_read = run.number("decode_tok_s"), run.number("token_weight_bytes")
        bound = floor * 1e9 / bytes_read
        yield row(f"decode of {model}, {name}", f"{three(tokens)} tok/s, {three(tokens * bytes_read * 1e-9)} GB/s of weights",
                  f"{three(bound)} tok/s", tokens / bound)


def prefill_rows(card, runs, model):
    kinds = {kind: card.rate("cublas", "kind", kind) for kind in ("int8", "f16")}
    facts = card.field("cublas")

    def against(rate, wanted):
        limits, ratios = [], []
        for kind in wanted:
            if kinds[kind] is None:
                limits.append(f"cuBLAS {kind}: {facts.get('absent') or facts.get(kind) or 'not measured'}")
            else:
                limits.append(f"cuBLAS {kind} {three(kinds[kind])} Tops")
                ratios.append(rate / kinds[kind])
        return "; ".join(dict.fromkeys(limits)), ratios

    for entry in card.measures("prefill"):
        rate = card.rate_of(entry)
        limit, ratios = against(rate, ("f16",) if entry["type"] in ("F16", "BF16", "F32") else ("int8", "f16"))
        yield row(f"prefill product, {product(entry)}", f"{three(rate)} Tops", limit, *ratios)
    for name, run in runs:
        tokens = run.number("prefill_tok_s")
        rate = tokens * run.number("token_layer_operations") * 1e-12
        limit, ratios = against(rate, ("int8", "f16"))
        yield row(f"prefill of {model}, {run.number('prompt_tokens')} tokens, {name}", f"{three(tokens)} tok/s, {three(rate)} Tops",
                  limit, *ratios)


def state_rows(card, runs):
    limits = {"save": ("to_host", "to the host"), "restore": ("to_card", "to the card")}
    pinned = "pinned" if card.field("host_memory_pinned") else "pageable (pinning was refused)"
    for entry in card.measures("state"):
        copies, direction = card.limit(limits[entry["name"]][0]), limits[entry["name"]][1]
        rate = card.rate_of(entry)
        where = "to host memory" if entry["name"] == "save" else "from host memory"
        yield row(f"{entry['name']}, pages {where}", f"{three(rate)} GB/s", f"{pinned} copies {direction} {three(copies)} GB/s",
                  rate / copies)
    for name, run in runs:
        for verb, raw in (("save", "raw_write"), ("restore", "raw_read")):
            rate, disk = run.number(f"{verb}_bytes_s") * 1e-9, run.number(f"{raw}_bytes_s") * 1e-9
            copies = card.limit(limits[verb][0])
            yield row(f"{verb} by the whole product, {run.number('state_tokens'):,} tokens, {name}", f"{three(rate)} GB/s",
                      f"the disk's {raw.replace('_', ' ')}s {three(disk)} GB/s; copies {three(copies)} GB/s",
                      rate / disk, rate / copies)
        restore, again = run.number("restore_ms"), run.number("reread_ms")
        yield row(f"restore, {run.number('state_tokens'):,} tokens, {name}", f"{three(restore)} ms",
                  f"reading them again {three(again)} ms", again / restore)


def peer_rows(runs):
    for name, run in runs:
        peer = run.field("peer")
        if peer is None:
            continue
        backend = peer.get("backend") or "back end not told"
        for verb in ("decode", "prefill"):
            mine, theirs = run.number(f"{verb}_tok_s"), peer.get(f"{verb}_tok_s") or 0
            if not theirs > 0:
                raise Unusable(f"{run.path}: peer.{verb}_tok_s is {theirs}")
            yield row(f"{verb}, {name}", f"{three(mine)} tok/s", f"{peer['name']} ({backend}) {three(theirs)} tok/s", mine / theirs)
    if all(run.field("peer") is None for _, run in runs):
        yield row("llama.cpp", "-", "no llama-bench was found")


def table(card, runs, driver, model, commit=None):
    cublas = card.field("cublas")
    title = f"### {card.field('card')} ({card.field('architecture')}), driver {driver}"
    notes = [f"{card.field('multiprocessors')} multiprocessors, {card.number('memory_bytes') / 2**30:.1f} GiB; medians of "
             f"{card.number('rounds')} turns (whole runs: {runs[0][1].number('repeats')}); model {model}"
             + (f"; commit {commit}" if commit else "") + "."]
    if card.field("architecture") == "emulated":
        notes.insert(0, "**A rehearsal under emulation: these numbers mean nothing.**")
    if "version" in cublas:
        notes.append(f"cuBLAS {cublas['version']}, `cublasGemmEx` at the dense products' shape: int8 is R_8I × R_8I to R_32I with "
                     "COMPUTE_32I, f16 is R_16F × R_16F to R_16F with COMPUTE_32F; ratios in that order. Layover's integer "
                     "products take 16-bit activations as two int8 halves, so 0.5 of int8 is all that the tensor cores give.")
    lines = [title, "", *notes, "", HEAD]
    for rows in (decode_rows(card, runs, model), prefill_rows(card, runs, model), state_rows(card, runs), peer_rows(runs)):
        lines += rows
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--commit")
    parser.add_argument("card")
    parser.add_argument("one_stage")
    parser.add_argument("two_stages")
    args = parser.parse_args()
    try:
        runs = [("one stage", Record(args.one_stage)), ("two stages on the card", Record(args.two_stages))]
        sys.stdout.write(table(Record(args.card), runs, args.driver, args.model, args.commit))
    except Unusable as error:
        print(f"card_table: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
