"""The official Python clients against a running server: python client.py URL"""

import json
import sys
import time
import traceback

import anthropic
import openai

URL = sys.argv[1]
MODEL = "spark-mini"
oai = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
ant = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)

SCHEMA = {
    "type": "object",
    "properties": {"pattern": {"type": "string", "description": "Pattern"}, "path": {"type": "string", "description": "Where to search"}},
    "required": ["pattern"],
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "job": {"type": "string"}},
    "required": ["name", "age", "job"],
    "additionalProperties": False,
}
OFF = {"thinking": {"type": "disabled"}}
COLD = {"temperature": 0}  # newer versions of the Anthropic client have no argument for it
RESULT = '["test/server.txt:52"]'
SEARCH = "Search for TODO in test."
TOOL = {"type": "function", "function": {"name": "search_code", "description": "Search the source code", "parameters": SCHEMA}}


def check(ok, *what):
    if not ok:
        raise AssertionError(*what)


def chat():
    ask = dict(model=MODEL, messages=[{"role": "user", "content": "What is 2 + 3?"}], temperature=0, max_tokens=60)
    whole = oai.chat.completions.create(**ask)
    check("5" in whole.choices[0].message.content, whole)
    check(whole.choices[0].message.reasoning_content, "no reasoning", whole)
    text, usage = "", None
    for chunk in oai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    check(text == whole.choices[0].message.content, text, whole)
    check(usage and usage.total_tokens == whole.usage.total_tokens, usage, whole.usage)


def chat_tools():
    messages = [{"role": "user", "content": SEARCH}]
    ask = dict(model=MODEL, tools=[TOOL], temperature=0, max_tokens=120, extra_body=OFF)
    m = oai.chat.completions.create(messages=messages, **ask).choices[0].message
    check(m.tool_calls and m.tool_calls[0].function.name == "search_code", m)
    check(json.loads(m.tool_calls[0].function.arguments)["pattern"] == "TODO", m)
    with oai.chat.completions.stream(messages=messages, **ask) as stream:
        final = stream.get_final_completion()
    check(final.choices[0].message.tool_calls[0].function.arguments == m.tool_calls[0].function.arguments, final)
    messages += [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": RESULT}]
    answer = oai.chat.completions.create(messages=messages, **ask).choices[0]
    check("test/server.txt" in answer.message.content and answer.finish_reason == "stop", answer)


def structured():
    ask = "Return the fields name, age, job as JSON: Julia Jones is 64 years old and lives in Stockholm. Julia is a farmer."
    fmt = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for temperature in (0, 1.5):
        answer = oai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": ask}], temperature=temperature, seed=7, max_tokens=300, response_format=fmt, extra_body=OFF)
        check(answer.choices[0].finish_reason == "stop", answer)
        person = json.loads(answer.choices[0].message.content)
        check(set(person) == {"name", "age", "job"} and isinstance(person["age"], int), person)
        if temperature == 0:
            check(person["name"] == "Julia Jones" and person["age"] == 64, person)


def responses():
    ask = dict(model=MODEL, temperature=0, max_output_tokens=60, reasoning={"effort": "none"})
    first = oai.responses.create(input="What is 2 + 3?", **ask)
    check("5" in first.output_text and first.status == "completed", first)
    with oai.responses.stream(input="How do you work?", previous_response_id=first.id, **ask) as stream:
        kinds = [event.type for event in stream]
        second = stream.get_final_response()
    check(kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds)
    check(second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens, second)
    check(oai.responses.retrieve(second.id).output_text == second.output_text)
    check(oai.responses.input_items.list(second.id).data[0].content[0].text == "How do you work?")
    oai.responses.delete(first.id)
    try:
        oai.responses.create(input="And now?", previous_response_id=first.id, **ask)
        check(False, "a deleted response was continued")
    except openai.BadRequestError as e:
        check(e.code == "previous_response_not_found", e)


def responses_background():
    r = oai.responses.create(model=MODEL, input="Write a long story.", background=True, max_output_tokens=4000, temperature=1.5)
    check(r.status in ("queued", "in_progress"), r)
    check(oai.responses.cancel(r.id).status == "cancelled")
    r = oai.responses.create(model=MODEL, input="What is 2 + 3?", background=True, temperature=0, max_output_tokens=60)
    while r.status in ("queued", "in_progress"):
        time.sleep(0.05)
        r = oai.responses.retrieve(r.id)
    check(r.status == "completed" and "5" in r.output_text, r)


def completions():
    r = oai.completions.create(model=MODEL, prompt="func main() {", max_tokens=12, temperature=0, logprobs=1, n=2)
    check(len(r.choices) == 2 and r.choices[0].text and r.choices[0].logprobs.token_logprobs, r)


def models():
    check(MODEL in [m.id for m in oai.models.list()])
    check(MODEL in [m.id for m in ant.models.list()])


def errors():
    for call, kind in (
        (lambda: oai.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}]), openai.NotFoundError),
        (lambda: oai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], temperature=9), openai.BadRequestError),
        (lambda: ant.messages.create(model="nope", max_tokens=5, messages=[{"role": "user", "content": "x"}]), anthropic.NotFoundError),
        (lambda: ant.messages.create(model=MODEL, max_tokens=5, messages=[]), anthropic.BadRequestError),
        (lambda: ant.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "secret 17 " * 20000}]), anthropic.BadRequestError),
    ):
        try:
            call()
            check(False, "no error", kind)
        except kind as e:
            check(e.request_id, e)


def messages():
    ask = dict(model=MODEL, max_tokens=60, extra_body=COLD, system="You are a helpful assistant.", messages=[{"role": "user", "content": "What is 2 + 3?"}], thinking={"type": "disabled"})
    whole = ant.messages.create(**ask)
    check("5" in whole.content[0].text and whole.stop_reason == "end_turn", whole)
    with ant.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(text == whole.content[0].text and final.usage.output_tokens == whole.usage.output_tokens, text, final)
    count = ant.messages.count_tokens(**{k: ask[k] for k in ("model", "system", "messages", "thinking")})
    check(count.input_tokens == whole.usage.input_tokens, count, whole.usage)


def messages_tools():
    history = [{"role": "user", "content": SEARCH}]
    ask = dict(model=MODEL, max_tokens=2000, extra_body=COLD, thinking={"type": "enabled", "budget_tokens": 1024},
               tools=[{"name": "search_code", "description": "Search the source code", "input_schema": SCHEMA}])
    with ant.messages.stream(messages=history, **ask) as stream:
        m = stream.get_final_message()
    check([b.type for b in m.content] == ["thinking", "tool_use"] and m.stop_reason == "tool_use", m)
    check(m.content[1].input["pattern"] == "TODO", m)
    history += [{"role": "assistant", "content": m.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[1].id, "content": RESULT}]}]
    m = ant.messages.create(messages=history, **ask)
    check("test/server.txt" in m.content[-1].text and m.stop_reason == "end_turn", m)


failed = 0
for flow in (chat, chat_tools, structured, responses, responses_background, completions, models, errors, messages, messages_tools):
    begin = time.time()
    try:
        flow()
        print(f"python {flow.__name__}: ok ({time.time() - begin:.1f} s)")
    except Exception:
        failed += 1
        print(f"python {flow.__name__}: FAILED")
        traceback.print_exc()
print(f"python: openai {openai.__version__}, anthropic {anthropic.__version__}, {failed} failed")
sys.exit(failed > 0)
