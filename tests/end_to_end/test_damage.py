"""A damaged or foreign image never harms: refused with file and stage named, the live conversation as before."""
import json
import random
import shutil
import struct
import unittest

import rewrite_store
from harness import Case, Server, layover, tiny_model, topology

PROMPT = list(range(20, 170))
STAGES = ((1, "0-1"), (1, "2-3"))
SHAPE = ("--layers", "4", "--embd", "128", "--heads", "4", "--kv-heads", "2")


class Damage(Case):
    def text(self, store, model=None, **keys):
        return topology(model or tiny_model(self.folder, *SHAPE), store, keys.pop("stages", STAGES), context=512,
                        store_keys={"save": "manual"}, **keys)

    def saved_store(self, name="store", prompt=PROMPT, conversation="c"):
        store = self.folder / name
        with Server(self.text(store), self.folder, name=name) as server:
            server.complete(prompt, conversation, max_tokens=3, ignore_eos=True)
            self.assertEqual(server.post(f"/v1/kv/conversations/{conversation}/save").status, 200)
        return store

    def damages(self, path, rng, flips):
        """(what, bytes) of a file: cut at 10 places, `flips` single flipped bytes."""
        data = path.read_bytes()
        for i in range(10):
            length = i * len(data) // 10
            yield f"cut to {length}", data[:length]
        places = {0, 8, 9, len(data) - 1}
        if path.suffix == ".seg":
            segment = rewrite_store.Segment(path)
            places |= {*range(0, 112, 4), 4000, *range(segment.index_offset, segment.index_offset + 72, 4)}
            footer = len(data) - rewrite_store.BLOCK
            places |= {*range(footer, footer + 72, 4), footer - 1, footer + 4000}
            for _, _, _, _, _, offset, size in list(segment.entries())[::3]:
                places |= {offset, offset + size - 1}
            ends = [offset + size for *_, offset, size in segment.entries()]
            places |= {end for end in ends if end % 4096}  # padding
        while len(places) < flips:
            places.add(rng.randrange(len(data)))
        for place in sorted(places):
            changed = bytearray(data)
            changed[place] ^= 1 << rng.randrange(8)
            yield f"byte {place} flipped", bytes(changed)

    def expect_refused(self, server, conversation, path, what):
        reply = server.post(f"/v1/kv/conversations/{conversation}/restore")
        self.assertIn(reply.status, (409, 422), f"{path.name} {what}: {reply.status} {reply.body}")
        error = reply.json["error"]
        self.assertEqual(error["file"], path.name, f"{what}: {error}")
        self.assertIn(path.name, error["message"], what)
        if path.suffix == ".seg":
            self.assertEqual(error["stage"], int(path.name[1:3]), what)

    def test_every_file_cut_and_flipped(self):
        store = self.saved_store()
        with Server(self.text(store), self.folder) as server:
            server.complete(PROMPT, "c", max_tokens=2, ignore_eos=True)
            held = server.get("/v1/kv/conversations/c").json["n_tokens"]
            want = server.complete(PROMPT + [5, 6], cache_prompt=False, max_tokens=4, ignore_eos=True)
            folder = next(store.glob("c/*"))
            rng = random.Random(1)
            for path in sorted(folder.iterdir()):
                if path.name == "journal":
                    continue  # the server has it open; below
                good = path.read_bytes()
                for what, data in list(self.damages(path, rng, 200)):
                    if data == good:
                        continue
                    path.write_bytes(data)
                    self.expect_refused(server, "c", path, what)
                path.write_bytes(good)
            # The live conversation's next tokens are what they would have been, and it is served from live state.
            self.assertEqual(server.get("/v1/kv/conversations/c").json["n_tokens"], held)
            reply = server.complete(PROMPT + [5, 6], "c", max_tokens=4, ignore_eos=True)
            self.assertSameIds(reply, want)
            self.assertEqual(reply["timings"]["cache_n"], len(PROMPT))
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)

    def test_a_damaged_journal(self):
        store = self.saved_store()
        path = next(store.glob("c/*/journal"))
        good = path.read_bytes()
        frames = rewrite_store.read_journal(path)
        ends = []
        at = 0
        for frame in frames:
            at += rewrite_store.FRAME_HEADER + len(frame.payload) + 16
            ends.append(at)
        rng = random.Random(2)
        bound = json.loads((path.parent / "manifest.json").read_text())["journal"]["bytes"]
        for place in sorted({*range(0, 48, 5), *(rng.randrange(bound) for _ in range(12))}):
            changed = bytearray(good)
            changed[place] ^= 0x10
            path.write_bytes(changed)
            with self.subTest(place=place):
                self.assertEqual(layover("verify", "c", "--store", store).returncode in (3, 4), True)
                with Server(self.text(store), self.folder) as server:
                    reply = server.post("/v1/kv/conversations/c/restore")
                    self.assertIn(reply.status, (404, 422), reply.body)
                    if reply.status == 422:
                        self.assertEqual(reply.json["error"]["file"], "journal")
                    # Another conversation is not touched by it.
                    server.complete([7, 8, 9], "other", max_tokens=2, ignore_eos=True)
        path.write_bytes(good)

    def test_a_torn_journal_tail_is_mended(self):
        store = self.saved_store()
        path = next(store.glob("c/*/journal"))
        good = path.read_bytes()
        # A generated frame that never reached the disk whole, and space that was allocated and not written.
        frames = rewrite_store.read_journal(path)
        next_frame = rewrite_store.Frame(3, len(frames), struct.pack("<qII3i", 0, 3, 0, 7, 8, 9))
        longer, _ = rewrite_store.journal_bytes(frames + [next_frame])
        for torn in (longer[: len(good) + 30], longer[:-1], good + bytes(1024)):
            path.write_bytes(torn)
            with self.subTest(bytes=len(torn)), Server(self.text(store), self.folder) as server:
                self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)
                self.assertIn("torn", server.log_text())
            self.assertEqual(path.read_bytes()[: len(good)], good)

    def test_files_of_another_conversation_or_generation(self):
        store = self.saved_store("a")
        other = self.saved_store("b", prompt=list(range(100, 250)))
        old = self.folder / "old"
        shutil.copytree(store, old)
        with Server(self.text(store), self.folder, name="a2") as server:
            server.complete(PROMPT + [9] * 30, "c", max_tokens=2, ignore_eos=True)
            server.post("/v1/kv/conversations/c/save")
        folder, other_folder, old_folder = (next(root.glob("c/*")) for root in (store, other, old))
        with Server(self.text(store), self.folder, name="a3") as server:
            for path in sorted(folder.iterdir()):
                if path.name == "journal":
                    continue
                good = path.read_bytes()
                for source in (other_folder, old_folder):
                    for foreign in sorted(source.glob("*.seg" if path.suffix == ".seg" else path.name)):
                        if foreign.read_bytes() == good:
                            continue  # an older generation's segment that this one still names
                        path.write_bytes(foreign.read_bytes())
                        self.expect_refused(server, "c", path, f"is {source.parent.parent.name}/{foreign.name}")
                path.write_bytes(good)
            # The two stages' files exchanged.
            one, two = sorted(folder.glob("*-g000002.seg"))
            first, second = one.read_bytes(), two.read_bytes()
            one.write_bytes(second)
            two.write_bytes(first)
            self.assertIn(server.post("/v1/kv/conversations/c/restore").status, (409, 422))
            one.write_bytes(first)
            two.write_bytes(second)
            one.unlink()
            self.expect_refused(server, "c", one, "missing")
            one.write_bytes(first)
            one.chmod(0o600)
            self.assertEqual(server.post("/v1/kv/conversations/c/restore").status, 200)

    def test_another_identity_is_refused_with_the_field(self):
        store = self.saved_store()
        base = SHAPE

        def variant(name, *flags):
            folder = self.folder / name
            folder.mkdir()
            return tiny_model(folder, *base, *flags)

        cases = {
            "weights": (variant("finetune", "--seed", "99"), {}),
            "kv_type": (None, {"kv_type": "q8_0"}),
            "rope": (variant("rope", "--rope-base", "20000"), {}),
        }
        for field, (model, keys) in cases.items():
            with self.subTest(field=field), Server(self.text(store, model, **keys), self.folder, name=field) as server:
                reply = server.post("/v1/kv/conversations/c/restore")
                self.assertEqual(reply.status, 409, reply.body)
                self.assertEqual(reply.json["error"]["field"], field)
                self.assertEqual(reply.json["error"]["file"], "manifest.json")
                done = layover("restore", "c", "--server", server.url)
                self.assertEqual(done.returncode, 4, done.stderr)
                # It still chats, from the journal, and says why.
                reply = server.complete(PROMPT + [4], "c", max_tokens=2, ignore_eos=True)
                self.assertEqual(reply["timings"]["restored_n"], 0)
                self.assertIn("manifest.json", server.get("/v1/kv/conversations/c").json["last_error"])

    def test_another_split_and_a_changed_template_restore(self):
        store = self.saved_store()
        template = self.folder / "template"
        template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
        folder = self.folder / "templated"
        folder.mkdir()
        model = tiny_model(folder, *SHAPE, "--template-file", template)
        with Server(self.text(store, model), self.folder, name="template") as server:
            reply = server.post("/v1/kv/conversations/c/restore")
            self.assertEqual(reply.status, 200, reply.body)
            self.assertIn("template", reply.json["warnings"][0])
        with Server(self.text(store), self.folder, name="control") as server:
            want = server.complete(PROMPT + [5, 6], cache_prompt=False, max_tokens=4, ignore_eos=True)
        for stages in (((1, None),), ((1, "0-0"), (1, "1-2"), (1, "3-3"))):
            with Server(self.text(store, stages=stages), self.folder, name=f"split{len(stages)}") as server:
                restored = server.post("/v1/kv/conversations/c/restore")
                self.assertEqual(restored.status, 200, restored.body)
                reply = server.complete(PROMPT + [5, 6], "c", max_tokens=4, ignore_eos=True)
                self.assertSameIds(reply, want)
                self.assertEqual(reply["timings"]["recomputed_n"], 0)

    def test_a_byte_of_another_layer_does_not_matter_to_a_stage_but_verify_finds_it(self):
        store = self.saved_store()
        path = sorted(next(store.glob("c/*")).glob("*.seg"))[0]
        data = bytearray(path.read_bytes())
        _, _, _, _, _, offset, _ = next(rewrite_store.Segment(path).entries())
        data[offset] ^= 1
        path.write_bytes(data)
        done = layover("verify", "c", "--store", store, "--json")
        self.assertEqual(done.returncode, 4)
        problem = json.loads(done.stdout)["conversations"][0]["problems"][0]
        self.assertEqual((problem["file"], problem["stage"]), (path.name, 0))
        with Server(self.text(store), self.folder) as server:
            reply = server.post("/v1/kv/conversations/c/verify")
            self.assertEqual((reply.status, reply.json["ok"]), (200, False))
            # A request goes on from the journal, and says so.
            answer = server.complete(PROMPT + [4], "c", max_tokens=2, ignore_eos=True)
            self.assertEqual(answer["timings"]["restored_n"], 0)
            self.assertGreater(answer["timings"]["recomputed_n"], 0)
            self.assertIn(path.name, server.get("/v1/kv/conversations/c").json["last_error"])


if __name__ == "__main__":
    unittest.main()
