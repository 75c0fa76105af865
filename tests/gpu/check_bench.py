#!/usr/bin/env python3
"""The card's bench as nvcc built it, on a machine that may have no driver: it names what is missing, or measures.

check_bench.py PROGRAM
"""
import json
import os
import subprocess
import sys


def main():
    answer = subprocess.run([sys.argv[1], "--tiny", "--rounds", "1"], capture_output=True, text=True)
    print(answer.stdout, answer.stderr)
    if os.path.exists("/dev/nvidiactl"):
        return 0 if answer.returncode == 0 and json.loads(answer.stdout)["measures"] else 1
    return 0 if answer.returncode == 1 and answer.stderr == "cuda:0: this machine has no NVIDIA driver\n" else 1


if __name__ == "__main__":
    sys.exit(main())
