#!/usr/bin/env python3
"""The CUDA plug-in: one exported symbol, no library of CUDA's needed to load it, and a clear answer with or without a card.

check_plugin.py OPEN_DEVICE FOLDER
"""
import os
import pathlib
import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def main():
    opener, folder = sys.argv[1:]
    plugin = pathlib.Path(folder) / "liblayover_cuda.so"
    problems = []
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", plugin).stdout.splitlines() if " T " in line]
    if exported != ["layover_open_device"]:
        problems.append(f"exported functions: {exported}")
    needed = [line for line in run("readelf", "-d", plugin).stdout.splitlines() if "NEEDED" in line]
    if any(word in line for line in needed for word in ("cuda", "cublas", "nccl", "nvrtc")):
        problems.append(f"needed libraries: {needed}")
    answer = run(opener, folder, "cuda", "0")
    has_driver = os.path.exists("/dev/nvidiactl")
    if has_driver != (answer.returncode == 0) or (not has_driver and "cuda:0: this machine has no NVIDIA driver" not in answer.stdout):
        problems.append(f"opening cuda:0: exit {answer.returncode}, {answer.stdout}{answer.stderr}")
    print(answer.stdout.strip(), f"({plugin.stat().st_size / 1e6:.1f} MB)")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
