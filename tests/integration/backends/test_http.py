"""The HTTP client of one Ollama server: lines, characters, errors."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.schema import GenerateReply
from specollama.errors import BrokenReply, EndpointError, ModelMissing, Refused, Unreachable
from tests.support.serving import NDJSON, Answer, Replayed, Stage, lines, replayed, whole

DONE = {"done": True, "done_reason": "stop"}


@asynccontextmanager
async def asking(stage: Stage, app: Replayed) -> AsyncIterator[OllamaServer]:
    stage.app = app
    async with OllamaServer(stage.url) as server:
        yield server


async def streamed(stage: Stage, app: Replayed) -> list[str]:
    """The texts of a streamed reply, chunk by chunk."""
    async with asking(stage, app) as server, aclosing(server.stream_generate({"model": "m"})) as chunks:
        return [chunk.response async for chunk in chunks]


async def generated(stage: Stage, app: Replayed) -> GenerateReply:
    async with asking(stage, app) as server:
        return await server.generate({"model": "m"})


async def failure(stage: Stage, app: Replayed, *, stream: bool = False) -> EndpointError:
    """What a request fails with; its message is one line."""
    asked = streamed(stage, app) if stream else generated(stage, app)
    with pytest.raises(EndpointError) as caught:
        await asked
    assert caught.value.url == stage.url
    assert str(caught.value).startswith(stage.url)
    assert "\n" not in str(caught.value)
    return caught.value


# Lines and characters


@pytest.mark.parametrize("separator", ["\u0085", "\u2028", "\u2029", "\x1c", "\r"], ids=ascii)
async def test_a_line_ends_at_a_newline_and_nowhere_else(stage: Stage, separator: str) -> None:
    text = f"one{separator}two"
    body = json.dumps({"response": text, "done": False}, ensure_ascii=False).encode() + b"\n"
    if separator in "\x1c\r":
        assert separator.encode() not in body  # JSON escapes control characters
    answer = Answer([body, json.dumps({"response": "", **DONE}).encode()], kind=NDJSON)
    assert await streamed(stage, replayed(generate=answer)) == [text, ""]


async def test_empty_lines_and_a_missing_last_newline_are_no_matter(stage: Stage) -> None:
    answer = Answer([b'\n{"response":"a"}\r\n\n{"response":"b"}\n{"done":true}'], kind=NDJSON)
    assert await streamed(stage, replayed(generate=answer)) == ["a", "b", ""]


async def test_C01_a_character_cut_between_two_chunks_arrives_whole(stage: Stage) -> None:
    body = '{"response":"東京 🌊","done":false}\n{"response":"","done":true}\n'.encode()
    cuts = [Answer([body[:place], body[place:]], kind=NDJSON) for place in range(12, 28)]
    for answer in [*cuts, Answer([bytes([byte]) for byte in body], kind=NDJSON)]:
        assert await streamed(stage, replayed(generate=answer)) == ["東京 🌊", ""]


def halves(*texts: str) -> Answer:
    r"""Lines whose texts are written with \u escapes, halves of surrogate pairs included."""
    return lines(*({"response": text, "done": False} for text in texts), {"response": "", **DONE})


async def test_C02_halves_of_an_emoji_in_consecutive_lines_are_joined(stage: Stage) -> None:
    assert await streamed(stage, replayed(generate=halves("a\ud83c", "\udf0ab", "c"))) == ["a", "🌊b", "c", ""]


async def test_C02_halves_of_an_emoji_in_one_line_are_joined(stage: Stage) -> None:
    assert await streamed(stage, replayed(generate=halves("a\ud83c\udf0ab"))) == ["a🌊b", ""]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (("a\ud83c", "b"), "a\ufffdb"),
        (("a", "\udf0ab"), "a\ufffdb"),
        (("\ud83c", "\ud83c", "\udf0a"), "\ufffd🌊"),
        (("a\ud83c",), "a\ufffd"),
    ],
    ids=ascii,
)
async def test_C02_half_an_emoji_without_its_other_half_becomes_a_replacement_mark(
    stage: Stage, texts: tuple[str, ...], shown: str
) -> None:
    received = "".join(await streamed(stage, replayed(generate=halves(*texts))))
    assert received == shown
    assert received.encode()


async def test_C02_halves_in_a_chat_are_joined_too(stage: Stage) -> None:
    texts = ("\ud83c", "\udf0a")
    chunks = [{"message": {"role": "assistant", "content": text}, "done": False} for text in texts]
    app = replayed(chat=lines(*chunks, {"message": {"role": "assistant"}, **DONE}))
    async with asking(stage, app) as server, aclosing(server.stream_chat({"model": "m"})) as replies:
        assert "".join([reply.message.content async for reply in replies]) == "🌊"


async def test_C02_half_an_emoji_in_a_whole_reply_and_its_log_probabilities_is_replaced(stage: Stage) -> None:
    entry = {"token": "\ud83c", "logprob": -1.0, "top_logprobs": [{"token": "\ud83c", "logprob": -1.0}]}
    body = {"response": "a\ud83c", "logprobs": [entry], **DONE}
    reply = await generated(stage, replayed(generate=whole(body)))
    assert reply.response == "a\ufffd"
    assert reply.logprobs
    assert reply.logprobs[0].token == "\ufffd"


# Errors: one line that says what the server said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (whole({"error": "the plain words"}, 500), "the plain words"),
        (whole({"error": json.dumps({"error": {"code": 400, "message": "the inner words"}})}, 400), "the inner words"),
        (whole({"error": {"message": "as OpenAI has it", "type": "api_error"}}, 400), "as OpenAI has it"),
        (whole({"error": "{not JSON after all"}, 500), "{not JSON after all"),
        (whole({"error": "two\nlines"}, 500), "two lines"),
        (whole({"error": ""}, 500), "HTTP 500 Internal Server Error"),
        (whole(["a list"], 500), "HTTP 500 Internal Server Error"),
        (Answer([b"<html><h1>502 Bad Gateway</h1></html>"], 502, "text/html"), "HTTP 502 Bad Gateway"),
        (Answer([], 504, "text/plain"), "HTTP 504 Gateway Timeout"),
        (whole({"error": "server busy, please try again.  maximum pending requests exceeded"}, 503), "server busy"),
        (whole({"error": "unauthorized"}, 401), "unauthorized"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_error_status_says_what_the_server_said(stage: Stage, answer: Answer, said: str, stream: bool) -> None:
    error = await failure(stage, replayed(generate=answer), stream=stream)
    assert isinstance(error, Refused)
    assert error.status == answer.status
    assert said in str(error)


async def test_401_says_where_a_token_would_come_from(stage: Stage) -> None:
    assert "token_env" in str(await failure(stage, replayed(generate=whole({"error": "unauthorized"}, 401))))


@pytest.mark.parametrize(
    ("error", "said"),
    [("out of memory", "out of memory"), (json.dumps({"error": {"message": "the inner words"}}), ": the inner words")],
)
async def test_an_error_line_in_the_middle_of_a_stream_is_the_streams_error(
    stage: Stage, error: str, said: str
) -> None:
    failed = await failure(stage, replayed(generate=lines({"response": "a"}, {"error": error})), stream=True)
    assert isinstance(failed, Refused)
    assert said in str(failed)


async def test_what_came_before_an_error_line_was_given(stage: Stage) -> None:
    app = replayed(generate=lines({"response": "a"}, {"error": "gone"}))
    async with asking(stage, app) as server, aclosing(server.stream_generate({"model": "m"})) as chunks:
        assert (await anext(chunks)).response == "a"
        with pytest.raises(Refused, match="gone"):
            await anext(chunks)


@pytest.mark.parametrize(
    ("answer", "stream"),
    [
        (lines({"response": "a", "done": False}), True),
        (Answer([], kind=NDJSON), True),
        (whole({"response": "a", "done": False}), False),
        (Answer([b'{"response":"a"}\n{"resp'], kind=NDJSON), True),
        (Answer([b'{"response":"a", "done":tr']), False),
        (Answer([b"<html>welcome to the hotel's network</html>"], kind="text/html"), False),
        (Answer([b"[]"]), False),
        (Answer([b'{"response":"\xff"}']), False),
        (Answer([b'{"response":"a"}\n'], kind=NDJSON, breaks=True), True),
        (Answer([b'{"response":"a"'], breaks=True), False),
    ],
)
async def test_a_reply_that_stops_or_is_none_is_broken(stage: Stage, answer: Answer, stream: bool) -> None:
    assert isinstance(await failure(stage, replayed(generate=answer), stream=stream), BrokenReply)


async def test_a_server_that_is_not_there_is_named_with_where_it_was_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with OllamaServer(url, source="OLLAMA_HOST") as server:
        with pytest.raises(Unreachable) as caught:
            await server.version()
    assert f"can't reach {url} (from OLLAMA_HOST)" in str(caught.value)
    assert "ollama serve" in str(caught.value)


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, never answers
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with OllamaServer(url, idle_timeout=0.05) as server:
            with pytest.raises(Unreachable, match="no byte in time"):
                await server.generate({"model": "m"})


async def test_a_proxy_for_the_outside_is_not_asked_for_this_machine(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    stage.app = replayed(version=whole({"version": "0.33.0"}))
    for address in (stage.url, stage.url.replace("127.0.0.1", "localhost")):
        async with OllamaServer(address) as server:
            assert await server.version() == "0.33.0"


async def test_a_missing_model_comes_with_near_names_and_the_command_that_gets_it(stage: Stage) -> None:
    names = ["qwen2.5-coder:7b", "qwen2.5-coder:0.5b", "llama3.2:latest"]
    missing = whole({"error": "model 'qwen2.5-coder' not found"}, 404)
    app = replayed(show=missing, tags=whole({"models": [{"name": name} for name in names]}))
    async with asking(stage, app) as server:
        with pytest.raises(ModelMissing) as caught:
            await server.show("qwen2.5-coder")
    said = str(caught.value)
    assert "has no model 'qwen2.5-coder'" in said
    assert "qwen2.5-coder:7b" in said
    assert "llama3.2" not in said
    assert "`ollama pull qwen2.5-coder`" in said
    assert "\n" not in said


async def test_a_missing_model_on_an_empty_server_says_that_it_is_empty(stage: Stage) -> None:
    app = replayed(show=whole({"error": "model 'm' not found"}, 404), tags=whole({"models": []}))
    async with asking(stage, app) as server:
        with pytest.raises(ModelMissing, match=r"has no models.*`ollama pull m`"):
            await server.show("m")


async def test_a_404_page_that_is_not_ollamas_is_no_missing_model(stage: Stage) -> None:
    app = replayed(generate=Answer([b"404 page not found"], 404, "text/plain"))
    error = await failure(stage, app)
    assert isinstance(error, Refused)
    assert not isinstance(error, ModelMissing)


async def test_the_token_is_sent_as_a_bearer_token(stage: Stage) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]).get(b"authorization"))
        await replayed(version=whole({"version": "1.2.3"}))(scope, receive, send)

    stage.app = app
    for token in ("secret", None):
        async with OllamaServer(stage.url, token=token) as server:
            await server.version()
    assert seen == [b"Bearer secret", None]


async def test_a_server_that_can_not_render_answers_none(stage: Stage) -> None:
    chat = whole({"message": {"role": "assistant", "content": "Hi"}, **DONE})
    async with asking(stage, replayed(chat=chat)) as server:
        assert await server.render({"model": "m", "messages": []}) is None


async def test_unknown_keys_of_newer_servers_are_passed_over(stage: Stage) -> None:
    app = replayed(generate=whole({"response": "a", "newer": {"deep": [1]}, **DONE}))
    assert (await generated(stage, app)).response == "a"
