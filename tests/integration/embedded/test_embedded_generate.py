"""The embedded server's /api/generate and /api/chat, over HTTP, against the real model."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

GREEDY = {"temperature": 0}
CHUNK = {"model", "created_at", "response", "done"}
COUNTS = {"prompt_eval_count", "eval_count"}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
LAST = CHUNK | COUNTS | DURATIONS | {"done_reason"}


def raw(http: httpx.Client, prompt: str = "The sky is", model: str = "target", **body: Any) -> list[dict[str, Any]]:
    """The lines of a raw streamed reply."""
    return lines(http.post("/api/generate", json={"model": model, "prompt": prompt, "raw": True, **body}))


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.content.split(b"\n") if line]


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["response"] for chunk in chunks)


def refusal(http: httpx.Client, path: str, body: Any) -> tuple[int, str]:
    response = http.post(path, json=body)
    assert set(response.json()) == {"error"}
    return response.status_code, response.json()["error"]


def test_a_stream_has_a_line_a_token_and_counts_at_the_end(http: httpx.Client) -> None:
    response = http.post(
        "/api/generate", json={"model": "target", "prompt": "The sky is", "raw": True, "options": {"num_predict": 3}}
    )
    *chunks, last = lines(response)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert len(chunks) == 3
    assert all(set(chunk) == CHUNK and chunk["done"] is False for chunk in chunks)
    assert set(last) == LAST
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "length")
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 3)
    assert all(isinstance(last[name], int) and last[name] > 0 for name in DURATIONS)


def test_times_are_utc_to_the_nanosecond_without_trailing_zeros(http: httpx.Client) -> None:
    for chunk in raw(http, options={"num_predict": 3}):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z", chunk["created_at"])


def test_the_model_is_named_as_in_the_request(http: httpx.Client) -> None:
    for name in ("target", "target:latest", "TARGET", "library/target", "https://registry.ollama.ai/library/Target"):
        assert {chunk["model"] for chunk in raw(http, model=name, options={"num_predict": 1})} == {name}


def test_without_stream_the_reply_is_the_joined_stream(http: httpx.Client) -> None:
    body = {"options": {**GREEDY, "num_predict": 12}, "logprobs": True, "top_logprobs": 2}
    streamed = raw(http, **body)
    asked = {"model": "target", "prompt": "The sky is", "raw": True, "stream": False, **body}
    response = http.post("/api/generate", json=asked)
    whole = response.json()
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert set(whole) == LAST | {"logprobs"}
    assert whole["response"] == text(streamed)
    assert [entry["token"] for entry in whole["logprobs"]] == [chunk["response"] for chunk in streamed[:-1]]
    assert (whole["done_reason"], whole["eval_count"]) == ("length", 12)


def test_each_chunk_has_one_entry_whose_token_is_its_text(http: httpx.Client) -> None:
    *chunks, last = raw(http, options={**GREEDY, "num_predict": 6}, logprobs=True, top_logprobs=3)
    assert "logprobs" not in last
    for chunk in chunks:
        (entry,) = chunk["logprobs"]
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["token"] == chunk["response"]
        assert entry["bytes"] == list(chunk["response"].encode())
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        values = [each["logprob"] for each in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)


def test_logprobs_alone_have_no_alternatives_and_alternatives_alone_nothing(http: httpx.Client) -> None:
    options = {"num_predict": 1}
    assert set(raw(http, options=options, logprobs=True)[0]["logprobs"][0]) == {"token", "logprob", "bytes"}
    assert "logprobs" not in raw(http, options=options, top_logprobs=5)[0]


def test_logprobs_are_those_of_the_raw_logits(http: httpx.Client) -> None:
    plain = raw(http, options={**GREEDY, "num_predict": 1}, logprobs=True, top_logprobs=20)
    cut = raw(http, options={"temperature": 1.7, "top_k": 1, "num_predict": 1}, logprobs=True, top_logprobs=20)
    rows = [[each["logprob"] for each in chunks[0]["logprobs"][0]["top_logprobs"]] for chunks in (plain, cut)]
    assert rows[0] == pytest.approx(rows[1], abs=0.05)


def test_alternatives_without_text_are_empty_and_those_that_are_no_character_are_replaced(http: httpx.Client) -> None:
    options = {**GREEDY, "num_predict": 3}
    for prompt, shown in (("He said â", ""), ("Waves: 🌊🌊🌊🌊", "\ufffd")):  # first bytes, and later ones
        first = raw(http, prompt, "draft", options=options, logprobs=True, top_logprobs=20)[0]
        found = [each for each in first["logprobs"][0]["top_logprobs"] if each["token"] == shown]
        assert found
        assert all(each.get("bytes") == (list(shown.encode()) or None) for each in found)


def test_a_fragment_of_a_character_is_lost_at_the_limit(http: httpx.Client) -> None:
    for limit, visible in ((1, 0), (2, 0), (3, 1), (5, 1), (6, 2)):  # the wave is three tokens
        *chunks, last = raw(http, "Waves: 🌊🌊🌊🌊", options={**GREEDY, "num_predict": limit}, logprobs=True)
        assert [chunk["response"] for chunk in chunks] == ["🌊"] * visible
        assert all(chunk["logprobs"][0]["token"] == "🌊" for chunk in chunks)
        assert (last["done_reason"], last["eval_count"]) == ("length", limit)


def test_the_end_of_the_sequence_is_counted_and_has_no_entry(http: httpx.Client) -> None:
    prompt = "<|im_start|>user\nSay only: yes<|im_end|>\n<|im_start|>assistant\n"
    *chunks, last = raw(http, prompt, "draft", options={**GREEDY, "num_predict": 40}, logprobs=True)
    assert last["done_reason"] == "stop"
    assert last["eval_count"] == len(chunks) + 1


def test_control_tokens_are_read_in_the_prompt_and_not_shown(http: httpx.Client) -> None:
    *chunks, last = raw(http, "<|im_start|>user\nhi<|im_end|>\n", "draft", options={**GREEDY, "num_predict": 4})
    assert last["prompt_eval_count"] == 6
    assert text(chunks) == "assistant\n"  # after a hidden <|im_start|>
    assert (len(chunks), last["eval_count"]) == (3, 4)


def test_text_held_back_for_a_stop_string_is_lost_at_the_limit(http: httpx.Client) -> None:
    stop = [" canvas of dreams"]
    *chunks, last = raw(http, options={**GREEDY, "num_predict": 2, "stop": stop}, logprobs=True)
    assert text(chunks) == " a"
    assert (last["done_reason"], last["eval_count"]) == ("length", 2)


def test_text_held_back_comes_with_the_token_that_frees_it(http: httpx.Client) -> None:
    *chunks, _ = raw(http, options={**GREEDY, "num_predict": 4, "stop": [" canvas of dreams"]}, logprobs=True)
    assert len(chunks[1]["response"].split()) > 2
    assert [entry["token"] for entry in chunks[1]["logprobs"]] == [chunks[1]["response"]]


def test_a_stop_string_ends_the_reply_and_is_not_part_of_it(http: httpx.Client) -> None:
    chunks = raw(http, options={**GREEDY, "num_predict": 9, "stop": ["vas"]})
    assert text(chunks) == " a can"
    assert chunks[-1]["done_reason"] == "stop"


def test_the_prompt_count_includes_what_was_cached(http: httpx.Client) -> None:
    body = {"options": {**GREEDY, "num_predict": 1}}
    first, second = (raw(http, "One two three four five six.", **body)[-1] for _ in range(2))
    assert first["prompt_eval_count"] == second["prompt_eval_count"] == 7


def test_the_same_seed_gives_the_same_text(http: httpx.Client) -> None:
    options = {"temperature": 1, "top_k": 0, "top_p": 1, "num_predict": 12}
    texts = [text(raw(http, options={**options, "seed": seed})) for seed in (7, 7, 7, 8)]
    assert texts[1] == texts[2]
    assert texts[2] != texts[3]


def test_no_seed_and_minus_one_are_random(http: httpx.Client) -> None:
    options = {"temperature": 1.5, "top_k": 0, "top_p": 1, "num_predict": 12}
    assert len({text(raw(http, options={**options, **seed})) for seed in ({}, {}, {"seed": -1}, {"seed": -1})}) == 4


def test_eight_at_once_answer_as_one_alone(http: httpx.Client) -> None:
    options = {**GREEDY, "num_predict": 8}
    alone = text(raw(http, options=options))
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda _: text(raw(http, options=options)), range(8)))
    assert together == [alone] * 8


def test_a_schema_and_json_constrain_the_reply(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    constrained = text(raw(http, "A user:", "draft", format=schema, options={**GREEDY, "num_predict": 30}))
    assert isinstance(json.loads(constrained)["age"], int)
    assert text(raw(http, "A user:", "draft", format="json", options={**GREEDY, "num_predict": 3})).startswith("{")


def test_a_prompt_that_is_not_raw_is_rendered_and_gets_a_context(http: httpx.Client) -> None:
    body = {"model": "target", "prompt": "Hi", "system": "Be brief.", "options": {**GREEDY, "num_predict": 2}}
    rendered = http.post("/api/generate", json={**body, "_debug_render_only": True}).json()
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert set(rendered) == CHUNK | {"_debug_info"}
    assert rendered["_debug_info"] == {"rendered_template": prompt}
    assert (rendered["response"], rendered["done"]) == ("", False)

    last = lines(http.post("/api/generate", json=body))[-1]
    assert set(last) == LAST | {"context"}
    assert len(last["context"]) == last["prompt_eval_count"] + 2
    again = {**body, "prompt": "Go on", "context": last["context"], "_debug_render_only": True}
    assert http.post("/api/generate", json=again).json()["_debug_info"]["rendered_template"].startswith(prompt)


def test_a_raw_prompt_is_rendered_as_it_is(http: httpx.Client) -> None:
    (only,) = raw(http, "as <|im_start|> is", _debug_render_only=True)
    assert only["_debug_info"] == {"rendered_template": "as <|im_start|> is"}


def test_an_empty_prompt_loads_and_with_keep_alive_0_unloads(http: httpx.Client) -> None:
    for body, reason in (({}, "load"), ({"keep_alive": 0}, "unload"), ({"keep_alive": "0s"}, "unload")):
        response = http.post("/api/generate", json={"model": "draft", **body})
        assert response.headers["content-type"].startswith("application/json")
        assert set(response.json()) == CHUNK | {"done_reason"}
        assert (response.json()["done"], response.json()["done_reason"]) == (True, reason)


def test_a_chat_streams_messages(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = {
        "model": "target",
        "messages": messages,
        "options": {**GREEDY, "num_predict": 4},
        "logprobs": True,
        "top_logprobs": 1,
    }
    *chunks, last = lines(http.post("/api/chat", json=body))
    for chunk in chunks:
        assert set(chunk) == (CHUNK - {"response"}) | {"message", "logprobs"}
        assert chunk["message"] == {"role": "assistant", "content": chunk["logprobs"][0]["token"]}
    assert set(last) == (LAST - {"response"}) | {"message"}
    assert (last["message"], last["done_reason"]) == ({"role": "assistant", "content": ""}, "length")

    whole = http.post("/api/chat", json={**body, "stream": False}).json()
    assert whole["message"]["content"] == "".join(chunk["message"]["content"] for chunk in chunks)
    assert len(whole["logprobs"]) == last["eval_count"] == 4


def test_a_chat_is_what_its_rendered_prompt_gives_raw(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    body = {"model": "target", "messages": messages, "options": {**GREEDY, "num_predict": 10}}
    rendered = http.post("/api/chat", json={**body, "_debug_render_only": True}).json()
    assert set(rendered) == (CHUNK - {"response"}) | {"message", "_debug_info"}
    assert (rendered["message"], rendered["done"]) == ({"role": "", "content": ""}, False)
    prompt = rendered["_debug_info"]["rendered_template"]
    chat = http.post("/api/chat", json={**body, "stream": False}).json()
    assert text(raw(http, prompt, options=body["options"])) == chat["message"]["content"]
    assert raw(http, prompt, options=body["options"])[-1]["prompt_eval_count"] == chat["prompt_eval_count"]


def test_a_chat_without_messages_loads_and_unloads(http: httpx.Client) -> None:
    for body, reason in (({}, "load"), ({"keep_alive": 0}, "unload")):
        reply = http.post("/api/chat", json={"model": "draft", "messages": [], **body}).json()
        assert reply["message"] == {"role": "assistant", "content": ""}
        assert (reply["done"], reply["done_reason"]) == (True, reason)


def test_a_chat_can_be_held_to_json(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "Is it ok?"}]
    body = {"model": "draft", "messages": messages, "stream": False, "options": {**GREEDY, "num_predict": 30}}
    reply = http.post("/api/chat", json={**body, "format": schema}).json()
    assert isinstance(json.loads(reply["message"]["content"])["ok"], bool)
    reply = http.post("/api/chat", json={**body, "format": "json"}).json()
    assert reply["message"]["content"].startswith("{")


def test_nulls_and_unknown_keys_are_as_if_absent(http: httpx.Client) -> None:
    body = {"format": None, "keep_alive": None, "images": None, "think": None, "surprise": 1}
    options = {"num_predict": 2, "seed": None, "surprise": "x"}
    assert raw(http, options=options, **body)[-1]["eval_count"] == 2


PATHS = ("/api/generate", "/api/chat")


@pytest.mark.parametrize("path", [*PATHS, "/api/show"])
def test_a_missing_or_broken_body_is_refused(http: httpx.Client, path: str) -> None:
    assert http.post(path).json() == {"error": "missing request body"}
    for content in (b"{", b"[]", b'{"model": 1}', b'"x"', b'{"a": NaN}'):
        response = http.post(path, content=content)
        assert response.status_code == 400
        assert set(response.json()) == {"error"}


def test_a_wrong_type_is_named(http: httpx.Client) -> None:
    expected = "json: cannot unmarshal string into Go struct field GenerateRequest.stream of type bool"
    assert refusal(http, "/api/generate", {"model": "draft", "stream": "no"}) == (400, expected)


def test_an_unknown_model_is_not_found(http: httpx.Client) -> None:
    for path in PATHS:
        assert refusal(http, path, {"model": "x", "prompt": "a", "messages": []}) == (404, "model 'x' not found")
    assert refusal(http, "/api/show", {"model": "x"}) == (404, "model 'x:latest' not found")
    assert refusal(http, "/api/generate", {"prompt": "a"}) == (404, "model '' not found")
    assert refusal(http, "/api/chat", {"messages": []}) == (400, "model is required")
    assert refusal(http, "/api/show", {"verbose": True}) == (400, "model is required")


@pytest.mark.parametrize("path", PATHS)
def test_what_the_model_or_the_server_can_not_do_is_refused(http: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"model": "draft", "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    full = "registry.ollama.ai/library/draft:latest"
    for count in (-1, 21):
        given = {**body, "top_logprobs": count}
        assert refusal(http, path, given) == (400, "top_logprobs must be between 0 and 20")
    for think in (True, "high"):
        assert refusal(http, path, {**body, "think": think}) == (400, '"draft" does not support thinking')
    assert http.post(path, json={**body, "think": False, "options": {"num_predict": 1}}).status_code == 200
    assert refusal(http, path, {**body, "format": "xml"})[0] == 500
    assert refusal(http, path, {**body, "keep_alive": "10"}) == (400, 'time: missing unit in duration "10"')
    images = {"images": ["aGk="], "messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}
    assert refusal(http, path, {**body, **images}) == (400, f"{full} does not support vision")


def test_each_endpoint_refuses_what_only_it_knows(http: httpx.Client) -> None:
    full = "registry.ollama.ai/library/draft:latest"
    body = {"model": "draft", "prompt": "a"}
    in_raw = (400, "raw mode does not support template, system, or context")
    for given in ({"template": "x"}, {"system": "x"}, {"context": [1]}):
        assert refusal(http, "/api/generate", {**body, "raw": True, **given}) == in_raw
    assert refusal(http, "/api/generate", {**body, "suffix": "b"}) == (400, f"{full} does not support insert")
    status, error = refusal(http, "/api/generate", {**body, "template": "{{ .Prompt }}"})
    assert (status, "templates are not supported" in error) == (400, True)
    tools = {"model": "draft", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}
    assert refusal(http, "/api/chat", tools) == (400, f"{full} does not support tools")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"num_ctx": "1"}, 'option "num_ctx" must be of type integer'),
        ({"top_k": True}, 'option "top_k" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(http: httpx.Client, option: dict[str, Any], expected: str) -> None:
    assert refusal(http, "/api/generate", {"model": "draft", "prompt": "a", "options": option}) == (500, expected)
