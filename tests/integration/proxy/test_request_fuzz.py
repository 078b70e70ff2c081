"""Bodies made from the request schemas and then bent: nothing is the proxy's fault, and its log stays readable.

SPECOLLAMA_FUZZED_BODIES: how many; few by default. `test_odd_bodies` asks a real engine; here the server is scripted,
so that thousands take minutes, and any 500 is the proxy's own.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specollama.backends.ollama.schema import ChatRequest, GenerateRequest, ShowRequest
from specollama.server.proxy.serve import serve_in_thread
from tests.support.configured import written
from tests.support.scripted_ollama import Call, ScriptedOllama, song
from tests.support.serving import Receive, Send, read_body, send_answer, serving, whole

COUNT = int(os.environ.get("SPECOLLAMA_FUZZED_BODIES", "200"))
MODELS = ("duo", "DUO:latest", "target", "https://registry.ollama.ai/library/duo", "draft", "nobody", "", "a/b/c/d:e")
EDGES = (0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 1e308, -1e-308, 0.1, 1e16)
OPTIONS = ("num_predict", "temperature", "top_k", "seed", "stop", "num_ctx", "min_p", "specollama", "unknown")

texts = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "Sing.", "\ud83c", "\x00", "\u202e", "\ufeff", "e\u0301" * 9])
)
numbers = st.one_of(st.sampled_from(EDGES), st.integers(-2, 40), st.floats(allow_nan=False, allow_infinity=False))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
options = st.dictionaries(st.sampled_from(OPTIONS), numbers | anything, max_size=5)


def of_schema(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a JSON schema, as pydantic writes it."""
    if "$ref" in schema:
        return of_schema(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return st.one_of([of_schema(each, definitions) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        return st.lists(of_schema(schema["items"], definitions), max_size=3)
    if "properties" in schema:
        fields = {name: of_schema(each, definitions) for name, each in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=fields)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        "string": texts,
        "integer": numbers,
        "number": numbers,
        "boolean": st.booleans(),
        "null": st.none(),
        "object": options,
    }
    return simple.get(schema.get("type"), anything)


def requests(wire: Any) -> st.SearchStrategy[dict[str, Any]]:
    schema = wire.model_json_schema(by_alias=True)
    return of_schema(schema, schema.get("$defs", {}))


def bent(body: dict[str, Any], change: tuple[str, Any], model: str) -> dict[str, Any]:
    """With a model that somebody may have, and one key in another case or of another type."""
    how, value = change
    asked = {**body, "model": model}
    name = sorted(asked)[len(repr(value)) % len(asked)]
    if how == "case":
        asked[name.upper()] = asked.pop(name)
    elif how == "type":
        asked[name] = value
    return asked


def raw(body: dict[str, Any], damage: str) -> bytes:
    content = json.dumps(body)
    damaged: dict[str, Callable[[], bytes]] = {
        "none": lambda: content.encode(),
        "unescaped": lambda: json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        "trailing": lambda: content.encode() + b"}} and more",
        "latin-1": lambda: content.encode().replace(b"S", b"\xe9"),
        "cut": lambda: content.encode()[: len(content) * 2 // 3],
        "infinite": lambda: content.encode().replace(b"0.1", b"1e999"),
        "NaN": lambda: content.encode().replace(b"0.1", b"NaN"),
        "deep": lambda: content.encode()[:-1] + b',"deep":' + b"[" * 3000 + b"]" * 3000 + b"}",
        "twice": lambda: content.encode()[:-1] + b',"model":"duo","Model":"draft"}',
        "mark": lambda: b"\xef\xbb\xbf" + content.encode(),
    }
    return damaged[damage]()


DAMAGES = (
    "none",
    "none",
    "none",
    "unescaped",
    "trailing",
    "latin-1",
    "cut",
    "infinite",
    "NaN",
    "deep",
    "twice",
    "mark",
)
PATHS = (
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/v1/chat/completions",
    "/v1/completions",
    "/api/embed",
    "/api/copy",
)
bodies = st.builds(
    raw,
    st.builds(
        bent,
        st.one_of(requests(ChatRequest), requests(GenerateRequest), requests(ShowRequest)),
        st.tuples(st.sampled_from(["no", "case", "type"]), anything),
        st.sampled_from(MODELS),
    ),
    st.sampled_from(DAMAGES),
)


class Strict(ScriptedOllama):
    """Refuses what it can't take, so that it is never itself at fault."""

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        content = await read_body(receive)
        self.calls.clear()
        try:
            body = json.loads(content) if content else {}
            status, answer = self._answer(Call(scope["path"], body))
            answer = [*answer] if isinstance(answer, list) else answer
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError) as error:
            await send_answer(whole({"error": f"not to be taken: {type(error).__name__}"}, 400), send)
            return
        lines = answer if isinstance(answer, list) else [answer]
        content_lines = [json.dumps(line).encode() + b"\n" for line in lines]
        await send_answer(type(whole({}))(content_lines, status), send)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, io.StringIO]]:
    """A client of the proxy, and its log."""
    log = io.StringIO()
    with serving(Strict(song().models)) as url:
        file = written(tmp_path_factory.mktemp("fuzz"), url, serve="max_num_predict = 4\nmax_prompt = 300")
        with serve_in_thread(file, {}) as (base, running):
            running.log.stream = log
            with httpx.Client(base_url=base, timeout=60, trust_env=False) as client:
                yield client, log


@settings(
    max_examples=COUNT,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(path=st.sampled_from(PATHS), body=bodies)
def test_a_bent_request_gets_an_answer_and_no_fault_of_the_proxys(proxy: Any, path: str, body: bytes) -> None:
    client, log = proxy
    log.seek(0)
    log.truncate()
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404)
    for line in response.text.splitlines():
        assert not line.startswith("{") or json.loads(line, parse_constant=pytest.fail)
    records = [json.loads(line, parse_constant=pytest.fail) for line in log.getvalue().splitlines()]
    assert not any("trace" in record for record in records)
