#!/usr/bin/env bash
# On a machine with an NVIDIA card: builds, runs the kernel tests natively, saves and restores with two stages on the
# card, measures, and prints one table, each speed divided by a limit of the same run, for docs/performance.md.
#
#   tests/gpu/measure.sh [--out FILE] [MODEL.gguf]      the demo model where none is named; FILE gets the table too
#   tests/gpu/measure.sh --rehearse FOLDER [--out FILE] the same steps in small on emulated cards, with the programs of
#                                                       FOLDER (build/bin): the numbers mean nothing
#
# Needs Debian 12, NVIDIA's driver, and nvcc (which it gets from PyPI where there is none). It uses cuBLAS where the
# system's loader finds it or LAYOVER_CUBLAS names it, and llama.cpp's llama-bench where it is on the PATH or
# LAYOVER_LLAMA_BENCH names it. A failing test stops it, by name.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/../.."
. scripts/setup.sh

fail() { printf 'measure: %s\n' "$*" >&2; exit 1; }

absolute() { case "$1" in /*) echo "$1" ;; *) echo "$here/$1" ;; esac; }

rehearsal=
out=
model=
while [ $# -gt 0 ]; do
  case "$1" in
    --rehearse) rehearsal=$(absolute "${2:?--rehearse needs a folder}"); shift 2 ;;
    --out) out=$(absolute "${2:?--out needs a file}"); shift 2 ;;
    --help|-h) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "measure: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) model=$(absolute "$1"); shift ;;
  esac
done

# The driver's version, or in words why there is no card to measure.
find_driver() {
  if command -v nvidia-smi >/dev/null; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1) || fail "nvidia-smi: $driver"
    driver=${driver%%$'\n'*}
  elif [ -r /proc/driver/nvidia/version ]; then
    driver=$(grep -o -m1 '[0-9]\+\.[0-9.]\+' /proc/driver/nvidia/version | head -1)
  else
    fail "no card to measure: this machine has no NVIDIA driver (neither nvidia-smi nor /proc/driver/nvidia)"
  fi
}

# run_kernel_tests PROGRAM [ARGUMENT...]: what fails is named; of a crash, the test that ran.
run_kernel_tests() {
  local log=$scratch/kernel-tests.log names
  if "$@" >"$log" 2>&1; then
    grep '^\[  PASSED' "$log" >&2 || fail "$1 ran no test"
    return 0
  fi
  grep -v '^\[\( RUN\|       OK\|---\)' "$log" | tail -n 60 >&2 || true
  names=$(sed -n 's/^\[  FAILED  \] \([^ ,]*[A-Za-z][^ ,]*\).*/\1/p' "$log" | sort -u | tr '\n' ' ')
  [ -n "$names" ] || names=$(sed -n 's/^\[ RUN      \] //p' "$log" | tail -n 1)
  fail "kernel tests failed: ${names:-$1 did not start}"
}

# measure_product NAME DEVICE...: `layover bench` with a stage on each device.
measure_product() {
  local name=$1 device stages=
  shift
  for device in "$@"; do stages="$stages{device: \"$device\"}, "; done
  cat >"$scratch/$name.yaml" <<TEXT
model: $model
context: $context
sessions: 2
stages: [${stages%, }]
store: {dir: $scratch/store, min_free: 0}
server: {listen: "127.0.0.1:0"}
TEXT
  "$bin/layover" bench "$scratch/$name.yaml" --json "${bench_flags[@]}" >"$scratch/$name.json" ||
    fail "layover bench failed with $# stage(s) on $*"
}

bench_flags=()
if [ -n "$rehearsal" ]; then
  bin=$rehearsal
  driver=none
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  card=emu:0
  kernel_tests=("$bin/cuda_test" '--gtest_filter=Wrapped.*')
  card_bench=("$bin/emulated_card_bench" --tiny --rounds 2)
  scenario=Emulated.test_plan_accepts_the_devices
  context=128
  bench_flags=(--prompt 12 --output 3 --state 70 --repeats 1)
else
  find_driver
  install_packages "${build_packages[@]}" "${test_packages[@]}"
  get_nvcc || fail "the kernels cannot be built without nvcc"
  if [ -z "$model" ]; then
    get_demo_model
    model=$demo_model
  fi
  [ -r "$model" ] || fail "there is no model $model"
  build_preset cuda programs layover_cuda cuda_card_test cuda_card_bench open_device make_tiny_model >&2
  bin=$PWD/build-cuda/bin
  # A toolkit that the loader has not been told of.
  if [ -z "${LAYOVER_CUBLAS:-}" ] && ! /sbin/ldconfig -p | grep -q 'libcublas\.so\.1[123] '; then
    for found in "${CUDACXX%/bin/nvcc}"/lib64/libcublas.so.1[123]; do
      if [ -e "$found" ]; then export LAYOVER_CUBLAS=$found; fi
    done
  fi
  answer=$("$bin/open_device" "$bin" cuda 0 2>&1) || fail "$answer"
  scratch=$PWD/build-cuda/measured  # on the tree's disk, whose speed is measured
  mkdir -p "$scratch"
  card=cuda:0
  kernel_tests=("$bin/cuda_card_test")
  card_bench=("$bin/cuda_card_bench")
  scenario=Emulated
  context=5120
fi
out=${out:-$scratch/table.md}
peer=${LAYOVER_LLAMA_BENCH:-$(command -v llama-bench || true)}
[ -z "$peer" ] || bench_flags+=(--peer "$peer")

say "kernel tests: the wrapped instructions, every operation against the CPU back end's bits"
run_kernel_tests "${kernel_tests[@]}"

say "save, restart, restore with two stages on one card"
LAYOVER_BIN=$bin LAYOVER_SOURCE=$PWD LAYOVER_TEST_DEVICES=$card,$card PYTHONDONTWRITEBYTECODE=1 \
  python3 tests/end_to_end/test_emulated.py -v "$scenario" >&2 || fail "the end-to-end tests failed (named above)"

say "measurements: the card"
"${card_bench[@]}" >"$scratch/card.json" || fail "the card's bench failed (its reason is above)"
if [ -n "$rehearsal" ]; then
  model=$scratch/tiny.gguf
  "$bin/make_tiny_model" "$model" --type Q4_0 --embd 64 --heads 2 --kv-heads 1 --ff 96
fi
model=$(realpath "$model")
say "measurements: the product with one stage"
measure_product one "$card"
say "measurements: the product with two stages on the card"
measure_product two "$card" "$card"

commit=$(git rev-parse --short HEAD 2>/dev/null || true)
python3 tests/gpu/card_table.py --driver "$driver" --model "$(basename "$model")" --commit "$commit" \
  "$scratch/card.json" "$scratch/one.json" "$scratch/two.json" >"$scratch/table.part" || fail "no table can be made of this"
mv "$scratch/table.part" "$out"
cat "$out"
say "the table is in $out"
