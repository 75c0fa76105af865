"""The official `openai` client against a server: plain and streamed, chat and text, models, errors. Exit 0 if all holds."""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say hello."}]

models = client.models.list().data
assert len(models) == 1, models
model = models[0].id
assert client.models.retrieve(model).id == model

plain = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20, logprobs=True, top_logprobs=3,
                                       extra_headers={"X-Conversation-Id": "openai"})
choice = plain.choices[0]
assert choice.message.role == "assistant" and choice.message.content, plain
assert choice.finish_reason in ("stop", "length")
assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
assert len(choice.logprobs.content) == plain.usage.completion_tokens
assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)
assert choice.logprobs.content[0].logprob == choice.logprobs.content[0].top_logprobs[0].logprob

text, reason, usage, roles = "", None, None, 0
stream = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20, stream=True,
                                        stream_options={"include_usage": True})
for chunk in stream:
    if chunk.usage is not None:
        usage = chunk.usage
        assert chunk.choices == []
    for part in chunk.choices:
        roles += part.delta.role is not None
        text += part.delta.content or ""
        reason = part.finish_reason or reason
assert (text, reason, roles) == (choice.message.content, choice.finish_reason, 1), (text, plain)
assert usage.completion_tokens == plain.usage.completion_tokens
assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1, usage

# The client's own accumulator; it raises if the answer is cut, so it is given room for its end.
with client.chat.completions.stream(model=model, messages=messages, temperature=0, max_tokens=200) as events:
    final = events.get_final_completion()
assert final.choices[0].message.content.startswith(choice.message.content)
assert final.choices[0].finish_reason == "stop"

done = client.completions.create(model=model, prompt="The sky is", temperature=0, max_tokens=8)
pieces = client.completions.create(model=model, prompt="The sky is", temperature=0, max_tokens=8, stream=True)
assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == done.choices[0].text

try:
    client.chat.completions.create(model=model, messages=messages, temperature=-1)
    raise AssertionError("a negative temperature was taken")
except openai.BadRequestError as error:
    assert error.body["param"] == "temperature", error.body
print("ok")
