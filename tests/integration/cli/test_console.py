"""`specollama run` as a process: signals, pipes, encodings, and a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from specollama.server.embedded.serve import RunningServer
from tests.support.calls import command, environment, pair_flags, terminal

LONG = ["--num-predict", "900", "Tell me how to bake bread."]  # to which the model finds no end

STARS = "Say hello with emojis"  # the model answers with stars


def start(
    *arguments: str, stdout: int = subprocess.PIPE, stdin: int = subprocess.DEVNULL, **environ: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(["run", *arguments]), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment(environ)
    )


def all_ended(server: RunningServer) -> bool:
    """Whether every request to the server ends; a minute is for machines that have much to do."""
    for _ in range(600):
        if not any(engine.active for engine in server.engines.values()):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("route", ["plain", "greedy", "lanes"])
def test_an_interrupt_keeps_what_was_printed_and_ends_every_request(embedded: RunningServer, route: str) -> None:
    with start(*pair_flags(embedded.url, route=route), *LONG) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()

    assert process.returncode == 130
    assert (begun + out).decode().strip()
    assert err.decode().splitlines()[1:] == []
    assert all_ended(embedded)


def test_an_interrupt_at_a_terminal_leaves_the_shell_a_line_of_its_own(embedded: RunningServer) -> None:
    with terminal(["run", *pair_flags(embedded.url), *LONG], NO_COLOR="1", TERM="dumb") as shown:
        shown.until("\n")
        shown.until("bread")
        shown.interrupt()
        text = shown.rest()

    assert shown.process.returncode == 130
    assert text.endswith("\n")
    assert "Traceback" not in text
    assert all_ended(embedded)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_the_reply_quietly(embedded: RunningServer, form: list[str]) -> None:
    with start(*pair_flags(embedded.url), *form, *LONG) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        err = process.stderr.read().decode()

    assert process.returncode == 1
    assert err in ("", "speculation: on (greedy, lookahead 1-7; near-ties: gaps below 0.08 (F32))\n")
    assert all_ended(embedded)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is needed")
def test_a_full_disk_is_one_line(embedded_url: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with start(*pair_flags(embedded_url), *LONG, stdout=full) as process:
        assert process.stderr is not None
        err = process.stderr.read().decode()
    os.close(full)

    assert process.returncode == 1
    assert err.splitlines()[1:] == ["error: standard output: No space left on device"]


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_terminal_without_the_characters_gets_question_marks(embedded_url: str, environ: dict[str, str]) -> None:
    with start(*pair_flags(embedded_url), "--num-predict", "16", STARS, **environ) as process:
        out, err = process.communicate()

    assert process.returncode == 0, err.decode()
    assert out.startswith(b"???")


def test_json_is_utf_8_whatever_the_terminal_is(embedded_url: str) -> None:
    flags = [*pair_flags(embedded_url), "--num-predict", "16", "--json"]
    with start(*flags, STARS, PYTHONIOENCODING="ascii") as process:
        out, _ = process.communicate()

    assert "🌟" in out.decode("utf-8")


def test_a_terminal_gets_the_status_first_and_tokens_in_the_colours_of_their_origin(embedded_url: str) -> None:
    flags = [*pair_flags(embedded_url, temperature=1.5), "--seed", "3", "--num-predict", "24"]
    with terminal(["run", *flags, "--show-origin", "Write a poem"]) as shown:
        text = shown.rest()

    assert shown.process.returncode == 0
    assert text.startswith("\x1b[2mspeculation: on (greedy, lookahead 1-7)\x1b[0m\n")
    for code in ("32", "4;31", "36"):  # accepted, recovered, bonus
        assert f"\x1b[{code}m" in text
    assert text.endswith("\n")


def test_no_color_is_heeded_at_a_terminal(embedded_url: str) -> None:
    flags = [*pair_flags(embedded_url), "--show-origin", "--num-predict", "12", "Name the planets"]
    with terminal(["run", *flags], NO_COLOR="1") as shown:
        text = shown.rest()

    assert "planets" in text
    for code in ("31", "32", "36"):
        assert f"{code}m" not in text
