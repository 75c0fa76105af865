#!/usr/bin/env bash
# On a machine with nvcc and a card: builds, runs the kernel tests natively, and measures. Prints one table for
# docs/performance.md. Run from anywhere; takes a model as its argument, else the demo model.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh

command -v nvidia-smi >/dev/null || { echo "measure: no nvidia-smi, so no card to measure" >&2; exit 1; }
install_packages "${build_packages[@]}" "${test_packages[@]}"
get_nvcc
get_demo_model
model=${1:-$demo_model}
build_preset cuda programs layover_cuda cuda_card_test open_device cuda_card_bench make_tiny_model

say "kernel tests on the card: wrapped instructions, every operation against the CPU back end's bits"
build-cuda/bin/cuda_card_test --gtest_brief=1

say "save, restart, restore with two stages on one card"
LAYOVER_BIN=build-cuda/bin LAYOVER_SOURCE=$PWD LAYOVER_TEST_DEVICES=cuda:0,cuda:0 python3 tests/end_to_end/test_emulated.py -v

say "measurements"
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
echo "| card | what | value |"
echo "|---|---|---|"
build-cuda/bin/cuda_card_bench --benchmark_format=csv 2>/dev/null | tail -n +2 |
  awk -F, -v card="$card" '/^"/ {gsub(/"/, "", $1); printf "| %s | %s | %s %s |\n", card, $1, $4, $5}'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/card.yaml" <<TEXT
model: $PWD/$model
stages: [{device: "cuda:0"}]
store: {dir: $folder/store, min_free: 0}
server: {listen: "127.0.0.1:0"}
TEXT
build-cuda/bin/layover bench "$folder/card.yaml"
