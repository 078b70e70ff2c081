"""A request's JSON is read as Ollama's decoder reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specollama.backends.ollama.request_json import read_object
from specollama.errors import ApiError


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b'{"model":"a"} trailing', {"model": "a"}),
        (b'\n {"model":"a"}{"model":"b"}', {"model": "a"}),
        (b'{"prompt":"half \\ud83c"}', {"prompt": "half \ufffd"}),
        (b'{"prompt":"\\udf0a","options":{"stop":["\\ud83c"]}}', {"prompt": "\ufffd", "options": {"stop": ["\ufffd"]}}),
        (b'{"prompt":"\\ud83c\\udf0a"}', {"prompt": "\U0001f30a"}),
        (b'{"prompt":"caf\xe9"}', {"prompt": "caf\ufffd"}),
        (b'{"Model":"a","OPTIONS":{"Num_Predict":1}}', {"model": "a", "options": {"Num_Predict": 1}}),
        (b'{"model":"a","MODEL":"b"}', {"model": "b"}),
        ('{"option\u017f":{},"\u212aeep_alive":0}'.encode(), {"options": {}, "keep_alive": 0}),
        (b'{"messages":[{"Role":"user","CONTENT":"hi"},3]}', {"messages": [{"role": "user", "content": "hi"}, 3]}),
        (b'{"Unknown":1}', {"Unknown": 1}),
        (b'{"x":' + b"[" * 300 + b"]" * 300 + b',"model":"a"}', "deep"),
        (b'{"x":' + b"1" * 5000 + b',"Model":"a"}', {"model": "a"}),
        (b'{"x":1e400,"Model":"a"}', {"model": "a"}),
        (b'{"options":{"seed":' + b"1" * 5000 + b"}}", ApiError),
        (b'{"options":{"temperature":1e999}}', ApiError),
        (b'{"messages":[{"content":[-1e400]}]}', ApiError),
        (b'{"a":0.00001e305,"text":"1e999"}', {"a": 1e300, "text": "1e999"}),
        (b'{"x":' + b"[" * 100_000, ApiError),
        (b'{"x":NaN}', None),
        (b'{"x":Infinity}', None),
        (b"[1]", None),
        (b'"text"', None),
        (b"{", None),
        (b"", None),
        (b'{"a":1,}', None),
        (b'{"a":"new\nline"}', None),
    ],
)  # fmt: skip
def test_a_body_is_read_as_ollama_reads_it(raw: bytes, body: Any) -> None:
    if body is ApiError:
        with pytest.raises(ApiError) as fault:
            read_object(raw)
        assert fault.value.status == 400
        return
    found, _ = read_object(raw)
    assert (found or {}).get("model") == "a" if body == "deep" else found == body


@pytest.mark.parametrize("raw", [b'{"model": "a",  "Unknown":1}', b'{"model":"a","prompt":"\\u00e9"}', b"[1]", b"{"])
def test_a_body_that_both_read_alike_is_passed_on_as_it_came(raw: bytes) -> None:
    assert read_object(raw)[1] is raw


@pytest.mark.parametrize("raw", [b'{"MODEL":"a"}', b'{"model":"a"}x', b'{"model":"\\ud83c"}'])
def test_what_is_passed_on_says_what_was_read(raw: bytes) -> None:
    body, passed = read_object(raw)
    assert json.loads(passed) == body
