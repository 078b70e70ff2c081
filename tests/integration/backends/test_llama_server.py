"""llama-server's API: exact bodies in, events out, and what is said when it fails."""

from __future__ import annotations

import json
from contextlib import aclosing

import pytest

from specollama.backends.engines.base import DrawSettings, PromptPosition
from specollama.backends.engines.llama_server import (
    Chunk,
    LlamaServer,
    completion_body,
    sampling_body,
    score_request_body,
)
from specollama.errors import BrokenReply, Refused, Unreachable
from specollama.server.embedded.serve import RunningServer
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.types import DoneReason, SamplingOptions
from tests.support.serving import Answer, Replayed, serving, whole

GREEDY = SamplingOptions(temperature=0, num_predict=8)


def events(*bodies: dict[str, object], breaks: bool = False) -> Answer:
    return Answer(
        [f"data: {json.dumps(body)}\n\n".encode() for body in bodies], kind="text/event-stream", breaks=breaks
    )


async def chunks(server: LlamaServer) -> list[Chunk]:
    async with aclosing(server.complete("Why?", GREEDY)) as stream:
        return [chunk async for chunk in stream]


def test_the_options_are_sent_by_the_engines_own_names() -> None:
    options = SamplingOptions(temperature=0, top_k=20, num_predict=8, seed=7, stop=("\n",), repeat_penalty=1.1)

    assert completion_body("Why?", options) == {
        "prompt": "Why?",
        "stream": True,
        "cache_prompt": True,
        "n_predict": 8,
        "temperature": 0,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_last_n": 64,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": ["\n"],
        "seed": 7,
    }
    assert completion_body("Why?", SamplingOptions())["n_predict"] == -1


def test_without_a_seed_no_draw_is_by_that_of_the_server() -> None:
    """One that it was started with (`--seed`) would be that of each row, so that all were drawn by the same number."""
    draws = DrawSettings(SamplingOptions())
    rows = score_request_body([PromptPosition([1, 2]), PromptPosition([1, 2, 3])], draws)
    assert [body["seed"] for body in (rows, completion_body("Why?", draws.options), sampling_body(draws.options))] == [
        -1
    ] * 3
    assert score_request_body([PromptPosition([1, 2], 4)], DrawSettings(SamplingOptions(), 7))["seed"] == position_seed(
        7, 4
    )


async def test_the_engines_own_count_of_its_drafts_comes_with_the_end() -> None:
    timings = {"prompt_n": 1, "cache_n": 9, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 2}
    last = {"content": "", "stop": True, "stop_type": "limit", "timings": timings}
    app = Replayed({"/completion": [events({"content": "Be", "stop": False}, {"content": "cause"}, last)]})

    with serving(app) as url:
        async with LlamaServer(url) as server:
            found = await chunks(server)

    assert [chunk.content for chunk in found] == ["Be", "cause", ""]
    assert [chunk.stop for chunk in found] == [False, False, True]
    assert (found[-1].timings.draft_n, found[-1].timings.draft_n_accepted) == (4, 2)
    assert found[-1].reason is DoneReason.LENGTH
    assert [body["prompt"] for body in app.bodies] == ["Why?"]


async def test_what_one_read_of_the_connection_brings_is_one_burst() -> None:
    together = b"".join(f"data: {json.dumps({'content': word})}\n\n".encode() for word in ("a", "b", "c"))
    last = f"data: {json.dumps({'content': '', 'stop': True, 'stop_type': 'eos'})}\n\n".encode()
    app = Replayed({"/completion": [Answer([together, last], kind="text/event-stream")]})

    with serving(app) as url:
        async with LlamaServer(url) as server:
            first, second, third, end = await chunks(server)

    assert first.read == second.read == third.read < end.read
    assert end.reason is DoneReason.STOP


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (events({"content": "Be"}), BrokenReply, "the reply ended before its last event"),
        (events({"content": "Be"}, breaks=True), BrokenReply, "the connection broke"),
        (events({"content": "Be"}, {"error": {"code": 500, "message": "out of\nmemory"}}), Refused, "out of memory"),
        (
            Answer([b'error: {"code": 500, "message": "no slot"}\n\n'], kind="text/event-stream"),
            Refused,
            "no slot",
        ),
        (whole({"error": {"code": 400, "message": "too long"}}, 400), Refused, "too long"),
        (Answer([b"data: {\n\n"]), BrokenReply, "isn't what llama-server sends"),
        (Answer([b"nothing"], status=502), Refused, "HTTP 502 Bad Gateway"),
    ],
)
async def test_a_failure_is_one_line_with_the_url(answer: Answer, error: type[Exception], says: str) -> None:
    with serving(Replayed({"/completion": [answer]})) as url:
        async with LlamaServer(url) as server:
            with pytest.raises(error) as raised:
                await chunks(server)
    assert says in str(raised.value)
    assert url in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_server_that_is_not_there_is_named_with_where_it_was_set() -> None:
    async with LlamaServer("http://127.0.0.1:1", source="--against") as server:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 \(from --against\).*is llama-server running there\?"):
            await server.props()


async def test_the_real_one_renders_completes_and_counts(embedded: RunningServer) -> None:
    engine = embedded.engines["target"]
    token = engine.headers["Authorization"].removeprefix("Bearer ")

    async with LlamaServer(engine.url, token=token) as server:
        prompt = await server.render_prompt([{"role": "user", "content": "Why is the sky blue?"}])
        async with aclosing(server.complete(prompt, GREEDY)) as stream:
            found = [chunk async for chunk in stream]
        assert (await server.props()).model_path.endswith(".gguf")

    assert "Why is the sky blue?" in prompt
    assert "".join(chunk.content for chunk in found).strip()
    assert found[-1].stop
    assert found[-1].timings.predicted_n == 8
    assert found[-1].reason is DoneReason.LENGTH


async def test_the_real_one_refuses_who_has_no_key(embedded: RunningServer) -> None:
    async with LlamaServer(embedded.engines["target"].url) as server:
        with pytest.raises(Refused, match="Invalid API Key"):
            await server.props()
