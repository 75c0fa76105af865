"""Chats that come back as text. What the model wrote in pieces is encoded in other ids when a client sends it again; the
ids that were drawn are held and used, so nothing of the held turn is read twice. The control is a server that holds
nothing and is given the same ids literally."""
import shutil
import signal
import tempfile
import time
import unittest

from harness import DEMO_MODEL, Case, Server, ids, tiny_model, topology

STAGES = ((1, "0-14"), (1, "15-29"))
PIECES = (" ", "t", "h", "e", "r", "a", "n")  # "th", " an", three spaces, … are tokens of their own
QUESTION = {"role": "user", "content": "Say something."}
NEXT = {"role": "user", "content": "And <|im_end|> then?"}  # what a user types stays text


class Histories(Case):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="layover-test-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        # It holds nothing: whatever is asked of it is read anew.
        cls.control = Server(topology(DEMO_MODEL, None, STAGES, context=1024), folder, name="control").start()
        cls.addClassCleanup(cls.control.stop)

    def text(self, store=None, model=DEMO_MODEL, stages=STAGES, **keys):
        return topology(model, store, stages, context=1024, **keys)

    def encode(self, text, parse_special=True):
        return self.control.post("/tokenize", {"content": text, "parse_special": parse_special}).json["tokens"]

    def decode(self, tokens):
        return self.control.post("/detokenize", {"tokens": tokens}).json["content"]

    def render(self, messages):
        return self.control.post("/apply-template", {"messages": messages}).json["prompt"]

    def end(self):
        return self.encode("<|im_end|>")[0]

    def speak(self, server, messages, conversation, max_tokens=24, ends=False, **fields):
        """A turn in pieces, added to the messages. The ids that it leaves behind, the end token's included if it `ends`
        and is not cut."""
        bias = {self.encode(piece)[0]: 90 for piece in PIECES}
        bias[self.end()] = 96 if ends else -100
        prompt = self.encode(self.render(messages))
        reply = server.chat(messages, conversation, max_tokens=max_tokens, logit_bias=bias, temperature=1.5, seed=3 if ends else 0,
                            **fields)
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        said = ids(reply)
        if ends:
            self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
            said = said + [self.end()]
        self.assertNotEqual(self.encode(messages[-1]["content"]), ids(reply), "the encoding alone would have kept it")
        return prompt + said

    def encode_after(self, held, messages):
        """`held`, and the ids of what the messages say beyond it; and the ids of all that they say."""
        # No control token but those of the template: the user's look-alikes are broken up before.
        rendered = self.render(messages)
        typed = [m["content"] for m in messages if m["role"] != "assistant"]
        parts = []
        rest = rendered
        for text in typed:
            before, _, rest = rest.partition(text)
            parts += [(before, True), (text, False)]
        parts.append((rest, True))
        self.assertEqual("".join(part for part, _ in parts), rendered)
        tokens = []
        for part, is_ours in parts:
            tokens += self.encode(part, parse_special=is_ours)
        said = self.decode(held)
        self.assertTrue(rendered.startswith(said), (rendered, said))
        # The rest begins at a control token or with the newline after one: its ids are the last ones of the whole.
        n = next(n for n in range(len(tokens) + 1) if self.decode(tokens[:n]) == said)
        return held + tokens[n:], tokens

    def go_on(self, server, conversation, held, messages, n=12, **expected):
        """The next turn: everything held is used, and what follows is what the control says after the same ids."""
        wanted, encoded = self.encode_after(held, messages)
        self.assertNotEqual(encoded[:len(held)], held)
        reply = server.chat(messages, conversation, max_tokens=n, return_row_digests=True)
        control = self.control.complete(wanted, max_tokens=n, cache_prompt=False, return_row_digests=True)
        self.assertSameIds(reply, control)
        self.assertEqual(reply["choices"][0]["row_xxh3"], control["choices"][0]["row_xxh3"])
        self.assertEqual(reply["usage"]["prompt_tokens"], len(wanted))
        timings = reply["timings"]
        self.assertEqual(timings["cache_n"] + timings["recomputed_n"] + timings["prompt_n"], len(wanted))
        for name, value in expected.items():
            self.assertEqual(timings[name], value, f"{name} of {timings}")
        end = [self.end()] if reply["choices"][0]["finish_reason"] == "stop" else []
        return wanted + ids(reply) + end

    def test_a_turn_in_pieces_is_kept_now_and_after_a_restart(self):
        store = self.folder / "store"
        messages = [QUESTION]
        with Server(self.text(store), self.folder) as server:
            held = self.speak(server, messages, "a", ends=True)
            self.assertEqual(held[-1], self.end())
            self.assertEqual(server.get("/v1/kv/conversations/a").json["n_tokens"], len(held))
            messages.append(NEXT)
            # The end token was drawn and never fed.
            held = self.go_on(server, "a", held, messages, cache_n=len(held) - 1, recomputed_n=0)
            self.assertIsNone(server.get("/v1/kv/conversations/a").json["divergence"])
            messages.append({"role": "assistant", "content": self.decode(held).rpartition("assistant\n")[2].replace("<|im_end|>", "")})
            # A call's result, as a loop over tools sends it.
            held = self.go_on(server, "a", held, messages + [{"role": "tool", "content": "12 degrees"}], cache_n=len(held) - 1)
            branches = server.get("/v1/kv/conversations/a").json["branches"]
            self.assertEqual(branches, 1)
            # Not kept: the ids are those of the encoding.
            reply = server.chat(messages, "a", max_tokens=1, cache_prompt=False)
            self.assertEqual(reply["usage"]["prompt_tokens"], len(self.encode_after([], messages)[1]))
        messages += [{"role": "tool", "content": "12 degrees"},
                     {"role": "assistant", "content": self.decode(held).rpartition("assistant\n")[2].replace("<|im_end|>", "")}, QUESTION]
        with Server(self.text(store), self.folder, name="again") as server:
            self.go_on(server, "a", held, messages, cache_n=len(held) - 1, restored_n=len(held) - 1, recomputed_n=0)
            self.assertEqual(server.post("/v1/kv/conversations/a/verify").json["problems"], [])

    def test_after_a_kill_the_journals_ids_are_used(self):
        store = self.folder / "store"
        messages = [QUESTION]
        with Server(self.text(store), self.folder) as server:
            held = self.speak(server, messages, "a", ends=True)
            server.stop(signal.SIGKILL)
        messages.append(NEXT)
        with Server(self.text(store), self.folder, name="again") as server:
            self.go_on(server, "a", held, messages, cache_n=0, recomputed_n=len(held) - 1)

    def test_a_turn_that_was_cut(self):
        with Server(self.text(), self.folder) as server:
            messages = [QUESTION]
            held = self.speak(server, messages, "length", max_tokens=9)
            self.go_on(server, "length", held, messages + [NEXT], cache_n=len(held) - 1)
            # At a stop string: what the client never saw is dropped, and only that.
            pieces = [self.decode([token]) for token in held[-9:]]
            stop = "".join(pieces[5:8])
            begin = "".join(pieces).index(stop)
            kept = next(n for n in range(9) if len("".join(pieces[:n])) == begin)
            messages = [QUESTION]
            stopped = self.speak(server, messages, "stop", stop=stop)
            self.assertEqual(messages[-1]["content"], "".join(pieces)[:begin])
            prompt_n = len(held) - 9
            self.assertEqual(stopped[:prompt_n + kept], held[:prompt_n + kept])
            self.go_on(server, "stop", held[:prompt_n + kept], messages + [NEXT], cache_n=prompt_n + kept)

    def test_without_an_id_and_on_a_side_line(self):
        with Server(self.text(sessions=4), self.folder) as server:
            messages = [QUESTION]
            held = self.speak(server, messages, None, ends=True)
            self.go_on(server, None, held, messages + [NEXT], cache_n=len(held) - 1)
            messages = [{"role": "user", "content": "Say another thing."}]
            held = self.speak(server, messages, "a")
            side = [{"role": "system", "content": "You write titles of four words, and nothing else at all."},
                    {"role": "user", "content": "A title for a chat in which somebody is asked to say something."}]
            title = self.speak(server, side, "a")
            self.assertEqual(server.get("/v1/kv/conversations/a").json["branches"], 2)
            self.go_on(server, "a", held, messages + [NEXT], cache_n=len(held) - 1)
            self.go_on(server, "a", title, side + [NEXT], cache_n=len(title) - 1)

    def test_what_was_edited_is_not_kept_and_what_is_given_in_ids_is_literal(self):
        with Server(self.text(), self.folder) as server:
            messages = [QUESTION]
            held = self.speak(server, messages, "a")
            _, encoded = self.encode_after(held, messages + [NEXT])
            text = self.render(messages + [QUESTION])
            common = next(n for n in range(len(held)) if held[n] != encoded[n])
            for prompt, n in ((encoded, len(encoded)), (text, len(self.encode(text, parse_special=False)))):
                reply = server.complete(prompt, "a", max_tokens=2)
                self.assertEqual(reply["usage"]["prompt_tokens"], n)
                self.assertLessEqual(reply["timings"]["cache_n"], common)
            # The words before the edit are still the held ones.
            content = messages[-1]["content"]
            keep = next(n for n in range(common + 4, len(held)) if self.decode(held[n:n + 1]).startswith(" "))
            words = len(self.decode(held[:keep])) - len(self.render([QUESTION]))
            held = self.speak(server, [QUESTION], "b")
            edited = [QUESTION, {"role": "assistant", "content": content[:words] + " zebra"}, NEXT]
            reply = server.chat(edited, "b", max_tokens=2)
            self.assertEqual(reply["timings"]["cache_n"], keep)
            shown = server.get("/v1/kv/conversations/b").json["divergence"]
            self.assertEqual(shown["position"], keep)
            self.assertIn(held[keep], shown["had"])
            self.assertIn(f"diverges at {keep} of {len(held)}", server.log_text())

    def test_held_ids_that_do_not_fit_any_more_make_way_for_the_encoding(self):
        text = topology(DEMO_MODEL, None, STAGES, context=128)
        with Server(text, self.folder) as server:
            messages = [QUESTION]
            held = self.speak(server, messages, "a", max_tokens=128 - 8 - len(self.encode(self.render(messages))))
            wanted, encoded = self.encode_after(held, messages + [NEXT])
            self.assertGreaterEqual(len(wanted), 128)
            self.assertLess(len(encoded), 127)
            reply = server.chat(messages + [NEXT], "a", max_tokens=1)
            self.assertEqual(reply["usage"]["prompt_tokens"], len(encoded))
            common = next(n for n in range(len(held)) if held[n] != encoded[n])
            self.assertEqual(reply["timings"]["cache_n"], common)

    def test_a_date_in_the_template_is_that_of_the_beginning(self):
        template = self.folder / "template"
        template.write_text("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
                            "{% if add_generation_prompt %}<|im_start|>{% endif %}")
        model = tiny_model(self.folder, "--template-file", template)
        text = self.text(self.folder / "store", model=model, stages=((1, None),))
        messages = [QUESTION]

        def turn(server, conversation):
            reply = server.chat(messages, conversation, max_tokens=4, ignore_eos=True)
            self.assertEqual(reply["timings"]["recomputed_n"], 0)
            return reply["timings"]["prompt_n"]

        with Server(text, self.folder) as server:
            turn(server, "a")
            said_n = len(server.post("/tokenize", {"content": "<|im_start|>Say something.<|im_end|><|im_start|>"}).json["tokens"])
            began = server.get("/v1/kv/conversations/a").json["created_at"]
            while time.time() < began + 1:  # another second
                pass
            self.assertEqual(turn(server, "a"), 1)
            self.assertEqual(server.post("/v1/kv/conversations/a/fork", {"new_id": "b"}).status, 200)
            self.assertEqual(turn(server, "b"), 1)
            # The control: one that begins now has another date, and shares no more than a part of that.
            self.assertGreater(turn(server, "another"), said_n)
        with Server(text, self.folder, name="again") as server:
            for conversation in "ab":
                self.assertEqual(turn(server, conversation), 1, conversation)
                self.assertEqual(server.get(f"/v1/kv/conversations/{conversation}").json["created_at"], began)

    def test_state_that_cannot_be_cut_goes_on_from_its_end(self):
        for kind in ("qwen35", "gemma3"):
            with self.subTest(kind=kind):
                folder = self.folder / kind
                folder.mkdir()
                model = tiny_model(folder, "--arch", kind)
                text = topology(model, None, ((1, None),), context=1024)
                with Server(text, self.folder, name=kind) as server:
                    letters = {server.post("/tokenize", {"content": c}).json["tokens"][0]: 100 for c in "aeint h"}
                    reply = server.chat([QUESTION], "c", max_tokens=40, logit_bias=letters, temperature=1.5, seed=0)
                    content = reply["choices"][0]["message"]["content"]
                    self.assertLess(len(server.post("/tokenize", {"content": content}).json["tokens"]), 40)
                    held = server.get("/v1/kv/conversations/c").json["n_tokens"]
                    messages = [QUESTION, {"role": "assistant", "content": content}, NEXT]
                    reply = server.chat(messages, "c", max_tokens=4)
                    self.assertEqual((reply["timings"]["cache_n"], reply["timings"]["recomputed_n"]), (held - 1, 0))
                    # What leaves before the answer's header goes back to the end of what was asked, in held ids.
                    header = len(server.post("/tokenize", {"content": "<|im_start|>assistant\n"}).json["tokens"])
                    asked = reply["usage"]["prompt_tokens"] - header
                    reply = server.chat(messages + [QUESTION], "c", max_tokens=4)
                    self.assertEqual(reply["timings"]["cache_n"], asked)


if __name__ == "__main__":
    unittest.main()
