"""OpenAI's API through the proxy: exact bodies, of requests as the target gets them and of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from specollama.server.proxy.openai_translation import OpenAIResponseBuilder, Untranslatable, chat_body, completion_body
from tests.support.draws import examples
from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
HELLO = [{"role": "user", "content": "Hello."}]
DEFAULTS = {"temperature": 1.0, "top_p": 1.0}

FIELDS = ("model", "messages", "prompt", "suffix", "stop", "response_format", "reasoning", "reasoning_effort")
MORE = ("stream", "tools", "logprobs", "max_tokens", "max_completion_tokens", "temperature", "options")
scalars = st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=8)
keys = st.sampled_from(["function", "name", "arguments", "type", "text", "image_url", "url", "json_schema", "effort"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
turns = st.dictionaries(st.sampled_from(["role", "content", "reasoning", "tool_calls", "tool_call_id", "name"]), values)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"options": DEFAULTS}),
        ({"temperature": 0, "top_p": 0.5, "seed": 3}, {"options": {"temperature": 0, "top_p": 0.5, "seed": 3}}),
        ({"max_tokens": 9}, {"options": {**DEFAULTS, "num_predict": 9}}),
        ({"max_completion_tokens": 8}, {"options": {**DEFAULTS, "num_predict": 8}}),
        ({"max_tokens": 9, "max_completion_tokens": 8}, {"options": {**DEFAULTS, "num_predict": 8}}),
        ({"stop": "END"}, {"options": {**DEFAULTS, "stop": ["END"]}}),
        ({"stop": ["a", "b"]}, {"options": {**DEFAULTS, "stop": ["a", "b"]}}),
        ({"presence_penalty": 0.5}, {"options": {**DEFAULTS, "presence_penalty": 0.5}}),
        ({"response_format": {"type": "json_object"}}, {"options": DEFAULTS, "format": "json"}),
        ({"response_format": {"type": "text"}}, {"options": DEFAULTS}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
            {"options": DEFAULTS, "format": {"type": "object"}},
        ),
        ({"reasoning_effort": "none"}, {"options": DEFAULTS, "think": False}),
        ({"reasoning": {"effort": "high"}}, {"options": DEFAULTS, "think": "high"}),
        ({"logprobs": True, "top_logprobs": 2}, {"options": DEFAULTS, "logprobs": True, "top_logprobs": 2}),
        ({"options": {"specollama": {"off": True}}}, {"options": {**DEFAULTS, "specollama": {"off": True}}}),
        ({"user": "me", "n": 1, "tool_choice": "auto"}, {"options": DEFAULTS}),
        ({"stream": True}, {"options": DEFAULTS, "stream": True}),
    ],
)
def test_a_chat_as_ollama_is_asked(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    body = chat_body({"model": "duo", "messages": HELLO, **asked}, {})
    assert body == {"model": "duo", "messages": HELLO, "stream": False, **expected}


def test_the_pairs_own_temperature_goes_before_that_of_the_api() -> None:
    body = chat_body({"model": "duo", "messages": HELLO}, {"temperature": 0.2})
    assert body["options"] == {"top_p": 1.0}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, [{"role": "user", "content": "Hi"}]),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                ],
            },
            [{"role": "user", "content": "What is this?"}, {"role": "user", "content": "", "images": ["aGk="]}],
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
                ],
            },
            [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}],
                }
            ],
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
            [{"role": "tool", "content": "12:00", "tool_call_id": "c1"}],
        ),
    ],
)
def test_messages_as_ollama_has_them(message: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert chat_body({"model": "duo", "messages": [message]}, {})["messages"] == expected


@pytest.mark.parametrize(
    "message",
    [
        "Hi",
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "clock", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [3]},
        {"role": "assistant", "tool_calls": 1.5},
    ],
)
def test_what_ollamas_own_api_can_not_say_is_left_to_the_targets_server(message: Any) -> None:
    with pytest.raises(Untranslatable):
        chat_body({"model": "duo", "messages": [message]}, {})


@examples(200, HealthCheck.too_slow)
@given(asked=st.dictionaries(st.sampled_from([*FIELDS, *MORE]), values | st.lists(turns, max_size=3), max_size=6))
def test_whatever_is_asked_is_translated_or_left_to_the_targets_server(asked: dict[str, Any]) -> None:
    for translate in (chat_body, completion_body):
        with suppress(Untranslatable):
            assert translate(asked, {})["stream"] in (True, False)


def test_a_completion_as_ollama_is_asked() -> None:
    body = completion_body({"model": "duo", "prompt": ["The sky"], "suffix": ".", "logprobs": 2, "max_tokens": 3}, {})
    assert body == {
        "model": "duo",
        "prompt": "The sky",
        "suffix": ".",
        "stream": False,
        "logprobs": True,
        "top_logprobs": 2,
        "options": {**DEFAULTS, "num_predict": 3},
    }
    with pytest.raises(Untranslatable):
        completion_body({"model": "duo", "prompt": ["a", "b"]}, {})


def stable(body: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    return {key: value for key, value in body.items() if key not in ("id", "created", "specollama")}


@pytest.fixture
def client(up: Up, through: Through) -> httpx.Client:
    hello = ScriptedModel(pieces("Hello there"))
    return through(up(ScriptedOllama({"target": hello, "draft": hello})))


def test_a_whole_chat(client: httpx.Client) -> None:
    asked = {"model": "duo", "messages": HELLO, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=asked).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["specollama"]["pair"] == "duo"
    counts = answer["usage"]
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    assert stable(answer) == {
        "object": "chat.completion",
        "model": "duo",
        "system_fingerprint": "fp_ollama",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}],
        "usage": {**counts, "completion_tokens": 3},
    }


@pytest.mark.parametrize("usage", [True, False])
def test_a_streamed_chat(client: httpx.Client, usage: bool) -> None:
    asked = {"model": "duo", "messages": HELLO, "temperature": 0, "stream": True}
    if usage:
        asked["stream_options"] = {"include_usage": True}
    response = client.post("/v1/chat/completions", json=asked)
    assert response.headers["content-type"] == "text/event-stream"
    *events, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    bodies = [stable(json.loads(event.removeprefix("data: "))) for event in events]
    frame = {"object": "chat.completion.chunk", "model": "duo", "system_fingerprint": "fp_ollama"}
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": "Hello"}, None),
        ({"content": " there"}, None),
        ({}, "stop"),
    ]
    expected: list[dict[str, Any]] = [
        {
            **frame,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        for delta, reason in deltas
    ]
    if usage:
        assert bodies[-1]["usage"]["completion_tokens"] == 3
        expected.append({**frame, "choices": [], "usage": bodies[-1]["usage"]})
    assert bodies == expected


@pytest.mark.parametrize("wanted", [True, "yes", [], {"include_usage": "yes"}])
def test_odd_options_of_a_stream_ask_for_no_usage(client: httpx.Client, wanted: Any) -> None:
    asked = {"model": "duo", "messages": HELLO, "temperature": 0, "stream": True, "stream_options": wanted}
    response = client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200
    assert '"usage"' not in response.text


def test_a_completion_whole_and_streamed(client: httpx.Client) -> None:
    asked = {"model": "duo", "prompt": "", "temperature": 0}
    asked["prompt"] = "Hello"  # rendered by the scripted server without it
    answer = client.post("/v1/completions", json=asked).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    choice = {"text": "Hello there", "index": 0, "finish_reason": "stop"}
    assert answer["choices"] == [choice]


def test_a_streamed_completion_has_counts_in_every_event_if_any(client: httpx.Client) -> None:
    asked = {
        "model": "duo",
        "prompt": "Hi",
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *events, _, _ = client.post("/v1/completions", json=asked).text.split("\n\n")
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [body["usage"]["completion_tokens"] for body in bodies] == [0, 0, 0, 3]
    assert [[choice["text"] for choice in body["choices"]] for body in bodies] == [["Hello"], [" there"], [""], []]


def test_a_chat_without_messages_is_the_targets_to_refuse(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    through(up(scripted)).post("/v1/chat/completions", json={"model": "duo", "messages": []})
    assert [call.path for call in scripted.calls] == ["/v1/chat/completions"]


def test_calls_of_tools_as_openai_has_them() -> None:
    call = {"id": "c1", "function": {"index": 0, "name": "clock", "arguments": {"zone": "UTC"}}}
    chunk = {"message": {"content": "", "tool_calls": [call]}, "done": False}
    shaper = OpenAIResponseBuilder("duo", "1", chat=True)
    [first] = shaper.pieces(chunk)
    last = list(shaper.pieces({"message": {"content": ""}, "done": True, "done_reason": "stop"}))[-1]
    function = {"name": "clock", "arguments": '{"zone":"UTC"}'}
    assert first["choices"][0]["delta"]["tool_calls"] == [
        {"id": "c1", "index": 0, "type": "function", "function": function}
    ]
    assert last["choices"][0]["finish_reason"] == "tool_calls"


def test_log_probabilities_as_openai_has_them() -> None:
    entry = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -1.0}]}
    chunk = {"message": {"content": "é"}, "logprobs": [entry], "done": False}
    [event] = OpenAIResponseBuilder("duo", "1", chat=True).pieces(chunk)
    assert event["choices"][0]["logprobs"] == {"content": [entry]}
    shaper = OpenAIResponseBuilder("duo", "1", chat=False)
    list(shaper.pieces({"response": "caf", "done": False}))
    [event] = shaper.pieces({"response": "é", "logprobs": [entry], "done": False})
    assert event["choices"][0]["logprobs"] == {
        "tokens": ["é"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"e": -1.0}],
        "text_offset": [3],
    }


def test_thinking_is_reasoning() -> None:
    [event] = OpenAIResponseBuilder("duo", "1", chat=True).pieces(
        {"message": {"content": "", "thinking": "Hm."}, "done": False}
    )
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning": "Hm."}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (404, "not_found_error"), (502, "api_error")]
)
def test_errors_are_in_openais_shape(up: Up, through: Through, status: int, kind: str) -> None:
    urls = {502: "http://127.0.0.1:9"}
    client = through(urls.get(status) or up(ScriptedOllama({})))
    asked: dict[str, Any] = {"model": "duo", "messages": HELLO}
    if status == 400:
        asked["options"] = {"specollama": 3}
    response = client.post("/v1/chat/completions", json=asked)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (status, kind)
    assert (error["param"], error["code"]) == (None, None)
    assert error["message"]


def test_what_can_not_be_translated_goes_to_the_targets_server_under_its_name(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    part = {"type": "input_audio", "input_audio": {}}
    asked = {"model": "duo", "messages": [{"role": "user", "content": [part]}]}
    through(up(scripted)).post("/v1/chat/completions", json=asked)
    assert scripted.calls[-1].path == "/v1/chat/completions"
    assert scripted.calls[-1].body == {**asked, "model": "target"}
