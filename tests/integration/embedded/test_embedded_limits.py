"""The embedded server's limits: context, slots, abandoned requests, size, and who may ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from specollama.config.limits import REQUESTS
from specollama.errors import ApiError
from specollama.server.embedded.app import make_app
from specollama.server.embedded.default_models import default_models
from specollama.server.embedded.llama_server_process import LlamaServerProcess
from specollama.server.embedded.schema_limits import check_schemas
from specollama.server.embedded.serve import RunningServer, ServeSettings, serve_models
from specollama.server.embedded.served_model import cut_middle
from specollama.server.http.guard import is_local_host

ENDLESS = {"num_predict": -1, "temperature": 0, "stop": []}
LONG_LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 2000}
"""A format that keeps a reply from ending by itself for minutes."""


def ask(server: RunningServer, **body: Any) -> httpx.Response:
    given = {"model": "small", "raw": True, "stream": False, **body}
    return httpx.post(f"{server.url}/api/generate", json=given, timeout=60)


async def until(condition: Callable[[], bool]) -> None:
    """Polls for ten seconds, where a few milliseconds are usual."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


def idle(engine: LlamaServerProcess) -> bool:
    slots = httpx.get(f"{engine.url}/slots", headers=engine.headers).json()
    return engine.active == 0 and not any(slot["is_processing"] for slot in slots)


def test_parameters_of_the_modelfile_hold_where_the_request_says_nothing(small: RunningServer) -> None:
    by_default = ask(small, prompt="The sky is").json()
    assert (by_default["response"], by_default["done_reason"]) == (" a", "stop")
    free = ask(small, prompt="The sky is", options={"stop": [], "num_predict": 2}).json()
    assert (free["response"], free["done_reason"]) == (" a canvas", "length")


def test_show_lists_the_parameters_of_the_modelfile(small: RunningServer) -> None:
    show = httpx.post(f"{small.url}/api/show", json={"model": "small"}).json()
    assert [line.split(maxsplit=1) for line in show["parameters"].split("\n")] == [
        ["temperature", "0"],
        ["num_predict", "3"],
        ["stop", '" canvas"'],
        ["stop", '"\\n"'],
    ]
    assert 'PARAMETER stop "\\n"\n' in show["modelfile"]


def test_a_prompt_over_the_context_is_refused_without_truncation(small: RunningServer) -> None:
    response = ask(small, prompt="word " * 70, truncate=False)
    assert response.status_code == 400
    inner = json.loads(response.json()["error"])["error"]
    assert (inner["code"], inner["type"]) == (400, "exceed_context_size_error")
    assert inner["message"].startswith("request (71 tokens) exceeds the available context size (64 tokens)")


def test_a_prompt_over_the_context_loses_its_middle(small: RunningServer) -> None:
    reply = ask(small, prompt="word " * 70, options={"num_predict": 1}).json()
    assert reply["prompt_eval_count"] == 64 - (64 - 4) // 2
    reply = ask(small, prompt="word " * 70, options={"num_predict": 1, "num_keep": 24}).json()
    assert reply["prompt_eval_count"] == 64 - (64 - 24) // 2


def test_the_cut_keeps_the_head_and_the_tail() -> None:
    assert cut_middle(list(range(100)), 4, 16) == [0, 1, 2, 3, *range(94, 100)]
    assert cut_middle(list(range(100)), 1000, 16) == [*range(15)]
    assert cut_middle(list(range(100)), 0, 2) == [99]


def test_a_reply_runs_past_the_context_by_shifting_it(small: RunningServer) -> None:
    options = {**ENDLESS, "temperature": 0, "num_predict": 80}
    assert ask(small, prompt="word word word", options=options).json()["eval_count"] == 80


def test_without_shifting_a_reply_ends_with_the_context(small: RunningServer) -> None:
    for num_predict in (0, -1, 500):
        options = {**ENDLESS, "temperature": 0, "num_predict": num_predict}
        reply = ask(small, prompt="word word word", shift=False, options=options).json()
        assert (reply["done_reason"], reply["prompt_eval_count"] + reply["eval_count"]) == ("length", 64)
    response = ask(small, prompt="word " * 70, shift=False)
    assert (response.status_code, "longer than the context" in response.json()["error"]) == (400, True)


def test_a_longer_context_than_the_server_has_is_refused(small: RunningServer) -> None:
    assert ask(small, prompt="a", options={"num_ctx": 32}).status_code == 200
    response = ask(small, prompt="a", options={"num_ctx": 65})
    assert response.status_code == 400
    assert response.json()["error"] == "num_ctx 65 is more than the 64 this server was started with"


def test_a_chat_over_the_context_loses_its_first_messages(small: RunningServer) -> None:
    old = [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "No."}]
    messages = [{"role": "system", "content": "Be brief."}, *old, {"role": "user", "content": "Go on."}]
    body = {"model": "small", "messages": messages, "_debug_render_only": True}
    rendered = [
        httpx.post(f"{small.url}/api/chat", json={**body, "truncate": truncate}).json()["_debug_info"]
        for truncate in (True, False)
    ]
    assert "word" not in rendered[0]["rendered_template"]
    assert "Be brief." in rendered[0]["rendered_template"]
    assert "word" in rendered[1]["rendered_template"]
    response = httpx.post(f"{small.url}/api/chat", json={"model": "small", "messages": messages, "truncate": False})
    assert response.status_code == 400
    assert "exceed_context_size_error" in response.json()["error"]


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_is_abandoned_frees_its_slot(embedded: RunningServer, path: str, stream: bool) -> None:
    engine = embedded.engines["target"]
    body = {"model": "target", "prompt": "One", "messages": [{"role": "user", "content": "Hi"}], "options": ENDLESS}
    body |= {"format": LONG_LIST, "raw": True, "stream": stream}
    async with httpx.AsyncClient(base_url=embedded.url, timeout=60) as client:
        request = asyncio.create_task(client.post(path, json=body))
        await until(lambda: engine.active == 1)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await until(lambda: idle(engine))


async def test_a_stream_that_is_closed_after_a_line_frees_its_slot(embedded: RunningServer) -> None:
    body = {"model": "target", "prompt": "One", "raw": True, "options": ENDLESS, "format": LONG_LIST}
    async with httpx.AsyncClient(base_url=embedded.url, timeout=60) as client:
        async with client.stream("POST", "/api/generate", json=body) as response:
            assert await anext(response.aiter_bytes())
        await until(lambda: idle(embedded.engines["target"]))


async def test_requests_over_the_slots_wait_and_can_be_abandoned_while_they_do(small: RunningServer) -> None:
    engine = small.engines["small"]
    body = {"model": "small", "prompt": "word word word", "raw": True, "stream": False}
    async with httpx.AsyncClient(base_url=small.url, timeout=60) as client:
        running, waiting = (
            [asyncio.create_task(client.post("/api/generate", json={**body, "options": ENDLESS})) for _ in range(2)]
            for _ in range(2)
        )
        await until(lambda: engine.active == 2)
        last = asyncio.create_task(client.post("/api/generate", json=body))  # the Modelfile's 3 tokens
        for task in (*waiting, *running):
            task.cancel()
        assert (await last).json()["done"] is True
        await asyncio.gather(*running, *waiting, return_exceptions=True)
    await until(lambda: idle(engine))


async def test_a_server_that_stops_in_the_middle_of_a_reply_does_stop() -> None:
    models = {"draft": default_models()["draft"]}
    with serve_models(models, ServeSettings(num_ctx=64, parallel=1)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {"model": "draft", "prompt": "word word word", "raw": True, "options": ENDLESS}
            request = asyncio.create_task(client.post("/api/generate", json=body))
            await until(lambda: server.engines["draft"].active == 1)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))


def test_a_cache_split_by_slot_as_in_stock_ollama_answers_the_same() -> None:
    models = {"small": default_models()["draft"]}
    stock = ServeSettings(num_ctx=256, parallel=2, unified=False, idle_slots=True)  # llama.cpp rounds less up to 256
    with serve_models(models, stock) as server:
        reply = ask(server, prompt="The sky is", options={"temperature": 0, "num_predict": 2}).json()
        assert reply["response"] == " a canvas"
        assert ask(server, prompt="word " * 260, truncate=False).status_code == 400


@pytest.mark.parametrize(
    "raw",
    [
        b'{"Model":"SMALL","Prompt":"The sky is","RAW":true,"stream":false} and more',
        b'{"model":"http://registry.ollama.ai/library/small","prompt":"caf\xe9 \\ud83c","raw":true,"stream":false}',
    ],
)
def test_a_body_that_ollama_takes_is_taken(small: RunningServer, raw: bytes) -> None:
    told = httpx.post(f"{small.url}/api/generate", content=raw, timeout=60)
    assert (told.status_code, told.json()["done"]) == (200, True)


def nested(schema: Any, times: int) -> Any:
    for _ in range(times):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schemas", "refused"),
    [
        ([LONG_LIST], False),
        ([{"type": "string", "maxLength": 100_000}], False),
        ([{"properties": {"minItems": {"type": "integer", "minimum": 1e9}}}], False),
        ([None, "json", 3, {"minItems": "many", "maxItems": True, "pattern": 3}], False),
        ([{"pattern": "^[a-z]{2,8}{}$"}], False),
        ([{"minItems": 30_000_000}], True),
        ([{"minItems": 1e8}], True),
        ([{"maxItems": 30_000_000}], True),
        ([{"maxLength": 30_000_000}], True),
        ([{"pattern": "^a{100000000}$"}], True),
        ([{"pattern": "^a{1,100000000}$"}], True),
        ([{"pattern": "^a{" + "9" * 5000 + "}$"}], True),
        ([nested({"minItems": 10**8}, 20_000)], True),
        ([{"anyOf": [{"minItems": 15_000}, {"minItems": 15_000}]}], True),
        (["json", [{"function": {"parameters": {"properties": {"a": {"minItems": 10**8}}}}}]], True),
    ],
)
def test_a_schema_counts_only_so_far(schemas: list[Any], refused: bool) -> None:
    with pytest.raises(ApiError, match="this server takes") if refused else nullcontext():
        check_schemas(*schemas)


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_a_reply_of_a_huge_shape_is_refused_at_once(small: RunningServer, path: str) -> None:
    body = {"model": "small", "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    told = httpx.post(small.url + path, json={**body, "format": {"type": "array", "minItems": 30_000_000}})
    assert (told.status_code, "30000000 repetitions" in told.text) == (400, True)


def client(**arguments: Any) -> httpx.AsyncClient:
    """A client of a server without models."""
    transport = httpx.ASGITransport(make_app({}, **arguments))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_a_body_over_32_mib_is_refused() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 2**20

    async with client() as http:
        for content in (b" " * (REQUESTS.body + 1), endless()):
            response = await http.post("/api/generate", content=content)
            assert response.status_code == 413
            assert response.json() == {"error": "request body too large: the limit is 32 MiB"}


async def test_a_token_has_to_be_sent_with_every_request() -> None:
    async with client(token="open sesame") as http:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer open"}, 401),
            ({"Authorization": "open sesame"}, 401),
            ({"Authorization": "Bearer open sesame", "Host": "example.com"}, 200),
        ):
            response = await http.get("/api/version", headers=headers)
            assert response.status_code == status
            assert status == 200 or response.json() == {"error": "unauthorized"}


async def test_a_page_in_a_browser_can_not_reach_it_under_a_name_of_its_own() -> None:
    async with client() as http:
        assert (await http.get("/api/tags", headers={"Host": "evil.example.com"})).status_code == 403
        assert (await http.get("/api/tags", headers={"Host": "localhost:1"})).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("LOCALHOST:11434", True),
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("192.168.1.2", True),
        ("box.local", True),
        ("", True),
        ("8.8.8.8", False),
        ("localhost.example.com", False),
        ("local-host", False),
    ],
)
def test_local_host_names_are_told_from_others(host: str, is_local: bool) -> None:
    assert is_local_host(host) is is_local


async def test_the_engine_behind_answers_only_the_server_in_front(small: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=small.engines["small"].url) as client:
        assert (await client.post("/completion", json={"prompt": "a", "n_predict": 1})).status_code == 401
        assert (await client.get("/slots")).status_code == 401
