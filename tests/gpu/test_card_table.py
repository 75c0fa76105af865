#!/usr/bin/env python3
"""The table of a card's speeds from recorded output (samples/: a rehearsal on emulated cards), and what it refuses."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class CardTable(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="layover-table-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("card", "one", "two"):
            shutil.copy(HERE / "samples" / f"{name}.json", self.folder)

    def change(self, name, change):
        path = self.folder / f"{name}.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    def rate(self, card, value, **which):
        """Sets the rate of the measures that have these fields."""
        found = [entry for entry in card["measures"] if all(entry.get(key) == want for key, want in which.items())]
        self.assertTrue(found, which)
        for entry in found:
            entry["rate"] = value

    def make(self):
        return subprocess.run([sys.executable, HERE / "card_table.py", "--driver", "580.65", "--model", "demo.gguf", "--commit", "abc",
                               *(self.folder / f"{name}.json" for name in ("card", "one", "two"))], capture_output=True, text=True)

    def table(self):
        result = self.make()
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def row(self, table, begin):
        """Cells of the one row that begins so."""
        rows = [line for line in table.splitlines() if line.startswith("| " + begin)]
        self.assertEqual(len(rows), 1, f"{begin}: {rows}")
        return [cell.strip() for cell in rows[0].strip("|").split("|")]

    def test_names_the_card_and_its_driver(self):
        self.change("card", lambda card: card.update(card="NVIDIA L4", architecture="sm_89"))
        table = self.table()
        self.assertTrue(table.startswith("### NVIDIA L4 (sm_89), driver 580.65\n"), table)
        self.assertIn("model demo.gguf; commit abc.", table)
        self.assertNotIn("rehearsal", table)

    def test_a_rehearsal_says_so(self):
        self.assertIn("these numbers mean nothing", self.table())

    def test_decode_is_divided_by_the_better_floor(self):
        def change(card):
            self.rate(card, 1000.0, group="limit", name="read")
            self.rate(card, 800.0, group="limit", name="copy")
            self.rate(card, 700.0, group="decode", type="Q4_0", rows=1)
        self.change("card", change)
        self.change("one", lambda run: run.update(decode_tok_s=500.0, token_weight_bytes=10**9))
        table = self.table()
        self.assertEqual(self.row(table, "decode product, Q4_0 72 × 256, 1 row")[1:], ["700 GB/s of weights", "1,000 GB/s", "0.70"])
        self.assertEqual(self.row(table, "decode of demo.gguf, one stage")[1:], ["500 tok/s, 500 GB/s of weights", "1,000 tok/s", "0.50"])
        self.change("card", lambda card: self.rate(card, 1400.0, group="limit", name="copy"))
        self.assertEqual(self.row(self.table(), "decode product, Q4_0 72 × 256, 1 row")[2:], ["1,400 GB/s", "0.50"])

    def test_prefill_is_divided_by_cublas(self):
        def change(card):
            self.rate(card, 600.0, group="cublas", kind="int8")
            self.rate(card, 300.0, group="cublas", kind="f16")
            self.rate(card, 150.0, group="prefill", type="Q6_K")
            self.rate(card, 30.0, group="prefill", type="F16")
            self.rate(card, 60.0, group="prefill", experts=5)
        self.change("card", change)
        self.change("two", lambda run: run.update(prefill_tok_s=10000.0, token_layer_operations=6 * 10**9))
        table = self.table()
        self.assertEqual(self.row(table, "prefill product, Q6_K")[2:], ["cuBLAS int8 600 Tops; cuBLAS f16 300 Tops", "0.25, 0.50"])
        self.assertEqual(self.row(table, "prefill product, Q4_K 24 × 256, 2 of 5 experts, 20 rows")[3], "0.10, 0.20")
        self.assertEqual(self.row(table, "prefill product, F16")[2:], ["cuBLAS f16 300 Tops", "0.10"])
        self.assertEqual(self.row(table, "prefill of demo.gguf, 12 tokens, two stages")[1:],
                         ["10,000 tok/s, 60.0 Tops", "cuBLAS int8 600 Tops; cuBLAS f16 300 Tops", "0.10, 0.20"])
        self.assertIn("cuBLAS 13.1.0, `cublasGemmEx`", table)

    def test_without_cublas_the_cell_says_why(self):
        def change(card):
            card["measures"] = [entry for entry in card["measures"] if entry["group"] != "cublas"]
            card["cublas"] = {"absent": "libcublas.so.13: cannot open"}
        self.change("card", change)
        cells = self.row(self.table(), "prefill product, Q4_0")
        self.assertIn("libcublas.so.13: cannot open", cells[2])
        self.assertEqual(cells[3], "-")

    def test_state_is_divided_by_copies_and_by_the_disk(self):
        def change(card):
            self.rate(card, 20.0, group="limit", name="to_host")
            self.rate(card, 25.0, group="limit", name="to_card")
            self.rate(card, 10.0, group="state", name="save")
            self.rate(card, 20.0, group="state", name="restore")
        self.change("card", change)
        self.change("two", lambda run: run.update(save_bytes_s=2e9, raw_write_bytes_s=4e9, restore_bytes_s=5e9, raw_read_bytes_s=6.25e9,
                                                  restore_ms=10.0, reread_ms=450.0))
        table = self.table()
        self.assertEqual(self.row(table, "save, pages to host memory")[1:], ["10.0 GB/s", "pinned copies to the host 20.0 GB/s", "0.50"])
        self.assertEqual(self.row(table, "restore, pages from host memory")[3], "0.80")
        self.assertEqual(self.row(table, "save by the whole product, 70 tokens, two stages")[1:],
                         ["2 GB/s", "the disk's raw writes 4 GB/s; copies 20.0 GB/s", "0.50, 0.10"])
        self.assertEqual(self.row(table, "restore by the whole product, 70 tokens, two stages")[3], "0.80, 0.20")
        self.assertEqual(self.row(table, "restore, 70 tokens, two stages")[3], "45.00")
        self.change("card", lambda card: card.update(host_memory_pinned=False))
        self.assertIn("pinning was refused", self.row(self.table(), "save, pages to host memory")[2])

    def test_llama_cpp_stands_beside_or_is_said_to_be_absent(self):
        self.change("one", lambda run: run.update(decode_tok_s=375.0))
        cells = self.row(self.table(), "decode, one stage")
        self.assertEqual(cells[1:], ["375 tok/s", "llama-bench (CUDA) 250 tok/s", "1.50"])
        for name in ("one", "two"):
            self.change(name, lambda run: run.update(peer=None))
        self.assertEqual(self.row(self.table(), "llama.cpp")[2], "no llama-bench was found")

    def test_what_is_missing_is_named(self):
        cases = [("card", lambda v: v.pop("measures"), "card.json: no field measures"),
                 ("two", lambda v: v.pop("restore_ms"), "two.json: no field restore_ms"),
                 ("one", lambda v: v.update(decode_tok_s=0), "one.json: decode_tok_s is 0, not a number above 0"),
                 ("card", lambda v: self.rate(v, 0, group="limit", name="read"), "is not a number above 0"),
                 ("card", lambda v: v.update(measures=[]), "card.json: no limit read")]
        for name, change, words in cases:
            with self.subTest(words):
                self.setUp()
                self.change(name, change)
                result = self.make()
                self.assertEqual(result.returncode, 1)
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
