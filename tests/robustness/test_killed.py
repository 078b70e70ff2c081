"""A server process is killed in mid-reply: of the draft, then of the target."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from specollama.server.embedded.serve import RunningServer
from specollama.spec_decode.types import Route
from tests.support.hearing import hear, question, settings

STORY = "Write a long story about a lighthouse keeper."
LENGTH = 60  # tokens, at none of which the target is in two minds
USERS_CACHE = dict(os.environ)  # where the target's full precision is kept

Processes = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Processes]:
    """Start `specollama` with arguments."""
    running: list[subprocess.Popen[str]] = []

    def up(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "specollama", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        running.append(subprocess.Popen(command, text=True, env=environ, **pipes))
        return running[-1]

    yield up
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            with contextlib.suppress(ValueError):
                stream.close()


def serving(start: Processes, model: str) -> tuple[subprocess.Popen[str], str]:
    """A server of one of the default models, in a process of its own."""
    process = start("embedded", "serve", "--model", model, "--port", "0", "--num-ctx", "512", environ=USERS_CACHE)
    assert process.stderr
    ready = process.stderr.readline()
    found = re.search(r"http://\S+", ready)
    assert found, ready + process.stderr.read()
    return process, found[0]


def asked(start: Processes, target: str, draft: str) -> subprocess.Popen[str]:
    models = ["--target", f"target@{target}", "--draft", f"draft@{draft}", "--route", "lanes", "--lookahead", "4"]
    return start("run", *models, "--temperature", "0", "--num-predict", str(LENGTH), STORY)


@pytest.mark.parametrize("victim", ["draft", "target"])
async def test_a_server_is_killed_in_mid_reply(embedded: RunningServer, start: Processes, victim: str) -> None:
    plain = (await hear(settings(embedded.url, route=Route.PLAIN), question(STORY, num_predict=LENGTH))).text
    process, url = serving(start, victim)
    reply = asked(start, *((embedded.url, url) if victim == "draft" else (url, embedded.url)))
    assert reply.stdout
    assert reply.stderr
    begun = os.read(reply.stdout.fileno(), 1).decode()
    process.kill()
    said, told = reply.communicate(timeout=120)
    lines = told.splitlines()
    assert lines[0].startswith("speculation: on (lanes, lookahead 4")
    assert len(lines) == 2
    if victim == "draft":
        assert begun + said == plain + "\n"
        assert lines[1].startswith("speculation: off (the draft failed: ")
        assert url in lines[1]
        assert reply.returncode == 0
    else:
        assert plain.startswith((begun + said).removesuffix("\n"))
        assert lines[1].startswith("error: ")
        assert url in lines[1]
        assert reply.returncode == 1
