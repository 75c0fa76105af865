"""A client that goes away in the middle of a long prompt: how soon its place is free, and what is kept. It counts the steps of a
moment, so it runs alone."""
import threading
import time
import unittest

from harness import DEMO_MODEL, Case, Server, long_prompt, topology

TWO_STAGES = ((1, "0-14"), (1, "15-29"))


class Cancel(Case):
    def test_a_client_that_goes_away_frees_its_place_within_one_chunk(self):
        text = topology(DEMO_MODEL, self.folder / "store", TWO_STAGES, context=4096, chunk=64, sessions=2)
        with Server(text, self.folder) as server:
            other = {"prompt": long_prompt(20, 5), "max_tokens": 150, "ignore_eos": True}
            control = server.complete(**{**other, "conversation": None})["choices"][0]["token_ids"]
            got = []
            worker = threading.Thread(target=lambda: got.append(self.stream_ids(server, other)))
            worker.start()
            prompt = long_prompt(3900)
            with server.stream("/v1/completions", {"prompt": prompt, "max_tokens": 5, "conversation_id": "gone"}) as (response, _):
                # Most of the prompt has been read when the client goes.
                while server.get("/v1/kv/conversations/gone").json["bytes_device"] < 0.85 * 3900 * 23040:
                    time.sleep(0.005)
                response.close()
            steps = server.stages()[0]["last_step"]
            while server.metric('layover_requests_cancelled_total{phase="prefill"}') == 0:
                time.sleep(0.001)
            after = server.stages()[0]["last_step"]
            worker.join()
            self.assertEqual(got, [(control, None)])
            # In flight when it was noticed: a chunk per stage; the other stream's steps come between.
            self.assertLess(after - steps, 12)
            again = server.complete(prompt, "gone", max_tokens=5)
            self.assertGreaterEqual(again["timings"]["cache_n"], 0.85 * len(prompt))
            self.assertEqual(again["timings"]["recomputed_n"], 0)
            self.assertSameIds(again, server.complete(prompt, cache_prompt=False, max_tokens=5))


if __name__ == "__main__":
    unittest.main()
