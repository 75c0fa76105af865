#!/usr/bin/env python3
"""Judges Layover's distributions by an oracle's: exit 0 if they are within the thresholds, 1 if not, 2 if the inputs
do not belong together.

  compare_logits.py ORACLE.json[.gz] --json LAYOVER.json            `layover logits` output; needs no numpy
  compare_logits.py ORACLE.json[.gz] --raw ROWS                     `layover logits --raw`; against the oracle's top ids
  compare_logits.py ORACLE.json[.gz] --raw ROWS --oracle-raw ROWS   against whole rows (logits_oracle.py --raw)
  thresholds: --mean-kl 1e-4 --top1 0.995 --max-kl X --max-delta X (over the oracle's 20 likeliest ids)

KL is KL(oracle || Layover) in nats. Without the oracle's whole rows it is taken over the ids that both sides give and
one bucket for all the rest. Merging outcomes can only lower a KL: on the demo model the 32 likeliest ids keep 83-87 %,
on a tiny random model (flat distributions) a third, so compare those by whole rows. Equal likelihoods: the lower id
is the first.
"""

import argparse
import gzip
import json
import math
import sys
from dataclasses import dataclass, field

DELTA_IDS = 20


class Mismatch(ValueError):
    """The two sides do not describe the same ids or shapes."""


@dataclass
class Comparison:
    """Per position: divergence in nats, whether the likeliest ids agree, largest |difference of log-probability|."""
    kl: list = field(default_factory=list)
    same_top: list = field(default_factory=list)
    delta: list = field(default_factory=list)

    @property
    def mean_kl(self):
        return math.fsum(self.kl) / len(self.kl)

    @property
    def top1(self):
        return sum(self.same_top) / len(self.same_top)

    def quantile(self, q):
        return sorted(self.kl)[min(len(self.kl) - 1, int(q * len(self.kl)))]

    def failures(self, mean_kl=None, max_kl=None, top1=None, max_delta=None):
        """The thresholds that do not hold, as text. A NaN anywhere fails every threshold on it."""
        checks = [("mean KL", self.mean_kl, mean_kl, False), ("max KL", worst(self.kl), max_kl, False),
                  ("top-1 agreement", self.top1, top1, True),
                  ("max |difference of log-probability|", worst(self.delta), max_delta, False)]
        return [f"{name} is {value:.3g}, {'less' if least else 'more'} than {limit:g}"
                for name, value, limit, least in checks
                if limit is not None and not (value >= limit if least else value <= limit)]

    def __str__(self):
        return (f"{len(self.kl)} positions: mean KL {self.mean_kl:.3e}, median {self.quantile(0.5):.3e}, 99 % "
                f"{self.quantile(0.99):.3e}, max {worst(self.kl):.3e}; top-1 {100 * self.top1:.3f} %; max |difference "
                f"of log-probability| over the top {DELTA_IDS} {worst(self.delta):.3e}")


def worst(values):
    return math.nan if any(math.isnan(v) for v in values) else max(values)


def load_oracle(path):
    with (gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")) as file:
        return json.load(file)


def bucketed_kl(expected, measured):
    """KL over the given log-probabilities (same ids on both sides) and one bucket for the rest."""
    p, q = [math.exp(e) for e in expected], [math.exp(m) for m in measured]
    kl = math.fsum(a * (e - m) for a, e, m in zip(p, expected, measured))
    # Rounded log-probabilities may sum to a hair over 1; the floor keeps the logarithm finite without hiding mass.
    rest_p, rest_q = max(1 - math.fsum(p), 1e-9), max(1 - math.fsum(q), 1e-9)
    return kl + rest_p * math.log(rest_p / rest_q)


def compare_json(oracle, measured):
    """Against the answer of `layover logits`: only the ids that stand in both top lists can be compared."""
    positions = measured["positions"]
    if [p["id"] for p in positions] != oracle["ids"]:
        raise Mismatch("the token ids differ from the oracle's")
    result = Comparison()
    for at, position in enumerate(positions):
        theirs = dict(map(tuple, position["top"]))
        ids, logprobs = oracle["top_ids"][at], oracle["top_logprobs"][at]
        both = [(e, theirs[id]) for id, e in zip(ids, logprobs) if id in theirs]
        result.kl.append(bucketed_kl(*zip(*both)) if both else math.inf)
        result.same_top.append(position["top"][0][0] == ids[0])
        deltas = [abs(theirs[id] - e) for id, e in list(zip(ids, logprobs))[:DELTA_IDS] if id in theirs]
        if at:  # the log-probability of the id that really came
            deltas.append(abs(position["logprob"] - oracle["next_logprobs"][at - 1]))
        result.delta.append(worst(deltas) if deltas else math.inf)
    return result


def compare_rows(oracle, rows_path, oracle_rows_path=None):
    """Against float32 rows [positions, vocabulary]: every id of the oracle's top list; all ids with its own rows."""
    import numpy as np

    def open_rows(path):
        rows = np.memmap(path, "<f4", "r")
        n_rows, n_vocab = len(oracle["ids"]), oracle["n_vocab"]
        if rows.size != n_rows * n_vocab:
            raise Mismatch(f"{path}: {rows.size} values; the oracle has {n_rows} rows of {n_vocab}")
        return rows.reshape(n_rows, n_vocab)

    def log_softmax(row):
        row = row.astype(np.float64)
        row -= row.max()
        return row - np.log(np.exp(row).sum())

    rows = open_rows(rows_path)
    oracle_rows = open_rows(oracle_rows_path) if oracle_rows_path else None
    result = Comparison()
    for at in range(len(rows)):
        measured = log_softmax(rows[at])
        ids, expected = oracle["top_ids"][at], oracle["top_logprobs"][at]
        if oracle_rows is not None:
            whole = log_softmax(oracle_rows[at])
            expected = whole[ids].tolist()
            result.kl.append(float(np.dot(np.exp(whole), whole - measured)))
        else:
            result.kl.append(bucketed_kl(expected, measured[ids].tolist()))
        result.same_top.append(int(np.argmax(rows[at])) == ids[0])
        result.delta.append(float(np.abs(measured[ids[:DELTA_IDS]] - expected[:DELTA_IDS]).max()))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("oracle")
    measured = parser.add_mutually_exclusive_group(required=True)
    measured.add_argument("--json")
    measured.add_argument("--raw")
    parser.add_argument("--oracle-raw")
    for limit in ("--mean-kl", "--max-kl", "--top1", "--max-delta"):
        parser.add_argument(limit, type=float)
    args = parser.parse_args()
    if args.json and args.oracle_raw:
        parser.error("--oracle-raw goes with --raw")
    try:
        oracle = load_oracle(args.oracle)
        if args.json:
            with open(args.json, encoding="utf-8") as file:
                result = compare_json(oracle, json.load(file))
        else:
            result = compare_rows(oracle, args.raw, args.oracle_raw)
    except (Mismatch, OSError, ValueError, KeyError) as error:
        print(f"compare_logits: {error}", file=sys.stderr)
        sys.exit(2)
    print(result)
    failures = result.failures(args.mean_kl, args.max_kl, args.top1, args.max_delta)
    for failure in failures:
        print(f"compare_logits: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
