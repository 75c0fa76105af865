#!/usr/bin/env python3
"""measure.sh without a card: rehearsed whole on emulated cards, and what it says when something is not there.

LAYOVER_BIN: the programs' folder (emulated_card_bench, cuda_test, layover ... and the stand-in for cuBLAS).
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("LAYOVER_BIN", SOURCE / "build" / "bin"))
PEER = """#!/bin/sh
echo '[{"backends": "CUDA", "n_gen": 0, "avg_ts": 5000.0}, {"backends": "CUDA", "n_gen": 3, "avg_ts": 250.0}]'
"""
# Of the script's way to its first look at the card.
NEEDED = ("bash", "dirname", "sed", "grep", "head", "cat", "env", "mkdir", "mktemp", "rm", "id", "find", "chmod", "ln", "touch")


class Measure(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="layover-measure-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def measure(self, *arguments, script=SOURCE / "tests" / "gpu" / "measure.sh", **environment):
        names = ("LAYOVER_CUBLAS", "LAYOVER_LLAMA_BENCH", "CUDACXX", "LAYOVER_TEST_DEVICES")
        inherited = {name: value for name, value in os.environ.items() if name not in names}
        return subprocess.run(["bash", script, *arguments], capture_output=True, text=True, timeout=600, cwd=self.folder,
                              env={**inherited, **environment})

    def test_the_rehearsal_makes_the_whole_table(self):
        peer = self.program(self.folder / "llama-bench", PEER)
        result = self.measure("--rehearse", BIN, "--out", "table.md", LAYOVER_CUBLAS=str(BIN / "libstand_in_cublas.so"),
                              LAYOVER_LLAMA_BENCH=str(peer))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / "table.md").read_text(), result.stdout)
        self.assertIn("### emulated card (emulated), driver none", result.stdout)
        self.assertIn("[  PASSED  ]", result.stderr)
        rows = [line.strip("|").split("|") for line in result.stdout.splitlines() if line.startswith("| ")]
        for begin in ("bandwidth floor", "decode product, IQ4_XS", "decode attention", "decode of tiny.gguf, two stages", "prefill product, F16",
                      "prefill of tiny.gguf", "save, pages", "restore, pages", "save by the whole product", "restore by the whole product",
                      "decode, one stage", "prefill, two stages"):
            self.assertTrue(any(row[0].strip().startswith(begin) for row in rows), f"no row {begin} in {result.stdout}")
        for row in rows[2:]:
            self.assertRegex(row[3].strip(), r"^\d+\.\d\d(, \d+\.\d\d)?$", row)
        self.assertIn("llama-bench (CUDA) 250 tok/s", result.stdout)

    def test_without_cublas_and_llama_cpp_the_table_says_so(self):
        result = self.measure("--rehearse", BIN, PATH="/usr/bin:/bin")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| cuBLAS int8: emulated cards have no cuBLAS; cuBLAS f16: emulated cards have no cuBLAS | - |", result.stdout)
        if shutil.which("llama-bench", path="/usr/bin:/bin") is None:
            self.assertIn("| llama.cpp | - | no llama-bench was found | - |", result.stdout)

    def test_a_failing_kernel_test_stops_it_by_name(self):
        self.program(self.folder / "bin" / "cuda_test", """#!/bin/sh
echo '[ RUN      ] Kv.Rows/3'
echo 'kv_test.cc:7: Failure'
echo '[  FAILED  ] Kv.Rows/3, where GetParam() = 4 (3 ms)'
echo '[  FAILED  ] 1 test, listed below:'
echo '[  FAILED  ] Kv.Rows/3, where GetParam() = 4'
exit 1
""")
        result = self.measure("--rehearse", self.folder / "bin")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("kv_test.cc:7: Failure", result.stderr)
        self.assertRegex(result.stderr, r"measure: kernel tests failed: Kv\.Rows/3 ?\n$")

    def test_a_kernel_test_that_crashes_is_named(self):
        self.program(self.folder / "bin" / "cuda_test", "#!/bin/sh\necho '[ RUN      ] MatMul.Q4_0'\nkill -SEGV $$\n")
        result = self.measure("--rehearse", self.folder / "bin")
        self.assertEqual(result.returncode, 1)
        self.assertIn("measure: kernel tests failed: MatMul.Q4_0\n", result.stderr)
        (self.folder / "bin" / "cuda_test").unlink()
        result = self.measure("--rehearse", self.folder / "bin")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "kernel tests failed: .*cuda_test did not start")

    def bare_tree(self):
        """The scripts alone, and a PATH of nothing but what they begin with: its folder and the script."""
        tree, path = self.folder / "tree", self.folder / "path"
        for name in ("tests/gpu/measure.sh", "scripts/setup.sh"):
            (tree / name).parent.mkdir(parents=True)
            shutil.copy(SOURCE / name, tree / name)
        path.mkdir()
        for name in NEEDED:
            (path / name).symlink_to(shutil.which(name))
        return path, tree / "tests" / "gpu" / "measure.sh"

    def test_a_machine_without_a_driver_or_with_a_broken_one_is_told(self):
        path, script = self.bare_tree()
        if not os.path.exists("/proc/driver/nvidia/version"):
            result = self.measure(script=script, PATH=str(path))
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("measure: no card to measure: this machine has no NVIDIA driver", result.stderr)
        self.program(path / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver.'\nexit 9\n")
        result = self.measure(script=script, PATH=str(path))
        self.assertEqual(result.returncode, 1)
        self.assertIn("measure: nvidia-smi: NVIDIA-SMI has failed", result.stderr)

    def test_a_machine_without_nvcc_and_without_pypi_is_told(self):
        path, script = self.bare_tree()
        self.program(path / "nvidia-smi", "#!/bin/sh\necho 580.65.06\n")
        self.program(path / "dpkg-query", "#!/bin/sh\necho install ok installed\n")
        self.program(path / "python3", "#!/bin/sh\nexit 1\n")
        result = self.measure(script=script, PATH=str(path), CUDA_HOME="/nowhere")
        self.assertEqual(result.returncode, 1)
        self.assertIn("there is no nvcc here (CUDACXX, PATH, CUDA_HOME), and it could not be had from PyPI", result.stderr)
        self.assertIn("measure: the kernels cannot be built without nvcc", result.stderr)

    def test_what_it_does_not_know_is_refused(self):
        result = self.measure("--fast")
        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown option --fast", result.stderr)
        self.assertTrue(re.search(r"measure\.sh \[--out FILE\] \[MODEL\.gguf\]", self.measure("--help").stdout))


if __name__ == "__main__":
    unittest.main()
