"""`--log-level` and SPECOLLAMA_LOG: requests, times and decisions on stderr, and nothing that is anybody's."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from specollama.backends.ollama.client import OllamaServer
from specollama.cli.terminal.log import LogLevel, shown_log
from specollama.errors import Refused, Unreachable
from specollama.pairs.decision_log import log_event, without_texts
from specollama.spec_decode.events import Done, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin

PROMPT, TOKEN, REPLY = "my-secret-prompt", "my-secret-token", "my-secret-reply"
LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) specollama\.\w+: [^\n]+\n"


ShowLog = Callable[[LogLevel], None]


@pytest.fixture
def show_log() -> Iterator[ShowLog]:
    """Shows the log from some point of a test on."""
    with ExitStack() as stack:
        yield lambda level: stack.enter_context(shown_log(level))


def answer(status: int, body: object) -> httpx.Response:
    """An answer that comes over the wire, as a stream."""

    async def parts() -> AsyncIterator[bytes]:
        yield json.dumps(body).encode()

    return httpx.Response(status, content=parts())


def server(*answers: httpx.Response | Exception) -> OllamaServer:
    """A server that gives these answers, one after another, whatever is asked."""
    left = iter(answers)

    def next_answer(request: httpx.Request) -> httpx.Response:
        given = next(left)
        if isinstance(given, Exception):
            raise given
        return given

    return OllamaServer("http://tower:11434", token=TOKEN, transport=httpx.MockTransport(next_answer))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """What stderr has: whole lines, each a record, and no secret in it."""
    error = capsys.readouterr().err
    assert re.fullmatch(f"({LINE})*", error), error
    assert not any(secret in error for secret in (PROMPT, TOKEN, REPLY))
    return error


async def test_a_request_has_its_server_status_and_times_but_neither_texts_nor_the_token(
    show_log: ShowLog, capsys: pytest.CaptureFixture[str]
) -> None:
    show_log(LogLevel.DEBUG)
    done = {"response": REPLY, "done": True, "done_reason": "stop"}
    async with server(answer(200, done)) as ollama:
        await ollama.generate({"model": "m", "prompt": PROMPT})
    sent, ended = told(capsys).splitlines()
    assert sent.endswith("DEBUG specollama.http: POST http://tower:11434/api/generate sent")
    times = r"headers after \d+ ms, all after \d+ ms"
    assert re.search(rf"INFO specollama\.http: POST http://tower:11434/api/generate: 200, \d+ bytes, {times}$", ended)


async def test_what_a_server_says_when_it_refuses_is_not_logged(
    show_log: ShowLog, capsys: pytest.CaptureFixture[str]
) -> None:
    show_log(LogLevel.INFO)
    async with server(answer(400, {"error": f"can't read {PROMPT}"})) as ollama:
        with pytest.raises(Refused) as refused:
            await ollama.generate({"model": "m", "prompt": PROMPT})
    log_event(Status(on=False, detail=str(refused.value)))
    requested, decided = told(capsys).splitlines()
    assert "/api/generate: 400, " in requested
    assert decided.endswith("speculation: off (http://tower:11434: (not logged)")


async def test_a_failed_connection_is_a_warning(show_log: ShowLog, capsys: pytest.CaptureFixture[str]) -> None:
    show_log(LogLevel.WARNING)
    async with server(httpx.ConnectError("refused"), httpx.ReadTimeout("")) as ollama:
        for _ in range(2):
            with pytest.raises(Unreachable):
                await ollama.version()
    words = [line.split("specollama.http: ")[1] for line in told(capsys).splitlines()]
    assert words == ["http://tower:11434: no connection: refused", "http://tower:11434: no byte in time"]


def test_a_decision_and_the_counters_at_the_end_are_logged_and_texts_are_not(
    show_log: ShowLog, capsys: pytest.CaptureFixture[str]
) -> None:
    show_log(LogLevel.INFO)
    log_event(Status(on=True, detail="lanes, lookahead 4"))
    log_event(Text(REPLY, Origin.ACCEPTED))
    log_event(Done(DoneReason.STOP, Stats(rounds=3, drafted=12, accepted=9, eval_count=14, total_duration=2_000_000)))
    decided, ended = told(capsys).splitlines()
    assert decided.endswith("INFO specollama.reply: speculation: on (lanes, lookahead 4)")
    assert ended.endswith("reply ended (stop): route plain, 14 tokens, 3 rounds, 12 drafted, 9 accepted, 2 ms")


@pytest.mark.parametrize(
    ("reason", "logged"),
    [
        ("no draft model", "no draft model"),
        ("the target's sampler doesn't work", "the target's sampler doesn't work"),
        (f"the answer isn't what Ollama sends: '{REPLY}'", "the answer isn't what Ollama sends: (not logged)"),
        (f'http://a:1: bad "{REPLY}"', "http://a:1: (not logged)"),
        ("can't reach http://a:1 (from --target): refused", "can't reach http://a:1 (from --target): refused"),
    ],
)
def test_a_reason_is_logged_without_what_a_server_said(reason: str, logged: str) -> None:
    assert without_texts(reason) == logged


def test_a_record_of_several_lines_is_one_line(show_log: ShowLog, capsys: pytest.CaptureFixture[str]) -> None:
    show_log(LogLevel.INFO)
    log_event(Status(on=False, detail="two\nlines\x1b[2J"))
    assert told(capsys).endswith("speculation: off (two\\nlines\\x1b[2J)\n")


def test_nothing_is_logged_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    log_event(Status(on=True, detail="lanes"))
    assert capsys.readouterr().err == ""


def test_the_log_ends_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_log(LogLevel.DEBUG):
        pass
    log_event(Status(on=True, detail="lanes"))
    assert capsys.readouterr().err == ""
