"""`specollama native` with an `ollama` that stands in for the real one, and the vocabularies of real models."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import psutil
import pytest

from specollama.config.endpoints import Endpoint
from specollama.config.settings import FileRef, ModelRef, PairSettings, PromptLookup
from specollama.errors import RunError, UnsupportedPair
from specollama.tools.native_server import (
    NativeServer,
    NativeSetup,
    check_draft_compatibility,
    check_memory,
    make_setup,
    running_server,
)
from tests.support.calls import Call, command, environment
from tests.support.waiting import ENDLESS, until

Fake = Callable[[str], Path]
HERE = Endpoint("http://127.0.0.1:9", "a test")
PAIR = PairSettings("p", ModelRef("target", HERE), (ModelRef("draft", HERE),))
CONFIG = """
[pairs.p]
target = { model = "target", endpoint = "nowhere" }
draft = { model = "draft", endpoint = "nowhere" }
[endpoints.nowhere]
url = "http://127.0.0.1:9"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "specollama.toml"
    file.write_text(CONFIG)
    monkeypatch.setenv("SPECOLLAMA_CONFIG", str(file))
    return file


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_what_the_engine_is_told_by_the_environment(store: Path) -> None:
    setup = make_setup(PAIR, os.environ)
    assert setup.environment == {
        "OLLAMA_HOST": "127.0.0.1:11436",
        "OLLAMA_MODELS": str(store),
        "OLLAMA_NOPRUNE": "1",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "LLAMA_ARG_SPEC_TYPE": "draft-simple",
        "LLAMA_ARG_SPEC_DRAFT_MODEL": str(store / "blobs" / f"sha256-{0:064d}"),
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": "8",
        "LLAMA_ARG_SPEC_DRAFT_P_MIN": "0.7",
    }
    assert make_setup(replace(PAIR, lookahead=5), os.environ).n_max == 5
    assert (
        make_setup(replace(PAIR, lookahead=5), os.environ, n_max=3, p_min=0.0).environment["LLAMA_ARG_SPEC_DRAFT_P_MIN"]
        == "0"
    )


def test_a_pair_that_no_engine_can_serve_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPair, match=r"x\.gguf is a file"):
        make_setup(replace(PAIR, target=FileRef(tmp_path / "x.gguf")), os.environ)
    with pytest.raises(UnsupportedPair, match="needs a draft model"):
        make_setup(replace(PAIR, drafts=(PromptLookup.LOOKUP,)), os.environ)
    with pytest.raises(RunError, match=r"other isn't in a model store on this machine .*`ollama pull other`"):
        make_setup(replace(PAIR, drafts=(ModelRef("other", HERE),)), os.environ)


def test_the_memory_has_to_hold_both_models(store: Path) -> None:
    setup = make_setup(PAIR, os.environ)
    needed = setup.target.stat().st_size + setup.draft.stat().st_size + 512 * 2**20
    assert check_memory(setup, needed, gpu=False) == ""
    with pytest.raises(RunError, match=r"target and its draft need 1\.1 GiB, and 1\.0 GiB of memory are free"):
        check_memory(setup, 2**30, gpu=False)


def test_a_gpu_may_hold_what_the_memory_does_not(store: Path) -> None:
    setup = make_setup(PAIR, os.environ)
    words = "target and its draft need 1.1 GiB, and 1.0 GiB of memory are free: the GPU has to hold the rest"
    assert check_memory(setup, 2**30, gpu=True) == words
    assert check_memory(setup, 2**34, gpu=True) == ""


def gguf_file(path: Path, *, adds_end: bool) -> Path:
    """A file with a vocabulary and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{number}" for number in range(9)])
    writer.add_add_eos_token(adds_end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_what_the_engine_would_refuse_is_refused_before_it_is_started(tmp_path: Path) -> None:
    plain, ending = (gguf_file(tmp_path / f"{adds}.gguf", adds_end=adds) for adds in (False, True))
    check_draft_compatibility(NativeSetup("big", plain, plain, HERE.url))
    with pytest.raises(UnsupportedPair, match="big: its engine takes no such draft: eos is added to one of them only"):
        check_draft_compatibility(NativeSetup("big", plain, ending, HERE.url))


def test_real_files_fit_each_other(models: dict[str, Path]) -> None:
    check_draft_compatibility(NativeSetup("target", models["target"], models["draft"], HERE.url))


def test_the_engines_counts_are_read_from_its_log() -> None:
    server = NativeServer(NativeSetup("m", Path(), Path(), "http://127.0.0.1:1"), None)  # type: ignore[arg-type]
    server.note_log_line(
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.82979 (   39 accepted /    47 generated)"
    )
    server.note_log_line(
        "slot print_timing: id  0 | task 9 | draft acceptance = 0.50000 (    1 accepted /     2 generated)"
    )
    assert (server.accepted, server.drafted, server.replies) == (40, 49, 2)
    server.note_log_line("draft model vocab must match target model to use speculation")
    server.note_log_line("all is well")
    assert server.last_fault == "draft model vocab must match target model to use speculation"


def test_the_lines_are_printed_and_nothing_is_started(call: Call, store: Path, config: Path) -> None:
    shown = call("native", "p", "--print", "--service", "systemd", "--p-min", "0.5")
    assert shown.code == 0
    assert '    Environment="LLAMA_ARG_SPEC_TYPE=draft-simple"' in shown.out.splitlines()
    assert '    Environment="LLAMA_ARG_SPEC_DRAFT_P_MIN=0.5"' in shown.out.splitlines()
    assert not [line for line in shown.out.splitlines() if "OLLAMA_HOST" in line], "it stays where it listens"
    assert "for an Ollama that serves target alone" in shown.err
    inside = f"/root/.ollama/models/blobs/sha256-{0:064d}"
    assert f"DRAFT_MODEL={inside} " in call("native", "p", "--print", "--service", "docker").out
    second = call("native", "p", "--print", "--service", "shell")
    assert second.out.startswith(f"OLLAMA_HOST=127.0.0.1:11436 OLLAMA_MODELS={store} OLLAMA_NOPRUNE=1 ")
    assert second.err == ""
    told = json.loads(call("native", "p", "--print", "--json").out)
    assert told["environment"]["LLAMA_ARG_SPEC_DRAFT_N_MAX"] == "8"


@pytest.mark.parametrize(
    ("manners", "says"),
    [
        ("is old", r"ollama is Ollama 0\.29\.9: its engine drafts from 0\.30 on"),
        ("dies", r"`ollama serve` at \S+ ended with code 1: .*address already in use"),
        (
            "refuses",
            r"target can't be served with its draft: \S+ llama-server process has terminated "
            r"\(draft model vocab must match target model to use speculation\)",
        ),
        ("is silent", r"\S+ answers, but doesn't speculate: none of 48 tokens came from a draft"),
    ],
)
def test_a_server_that_does_not_speculate_is_told_in_a_line(
    call: Call, store: Path, config: Path, fake_ollama: Fake, port: int, manners: str, says: str
) -> None:
    shown = call("native", "p", "--ollama", str(fake_ollama(manners)), "--port", str(port))
    assert shown.code == 1
    assert shown.out == ""
    assert re.search(f"^error: .*{says}$", shown.err.splitlines()[-1])
    until(lambda: not _running(fake_ollama))


def test_without_ollama_it_says_where_it_was_looked_for(call: Call, store: Path, config: Path, port: int) -> None:
    shown = call("native", "p", "--ollama", "/nowhere/ollama", "--port", str(port))
    assert shown.code == 1
    assert shown.err == "error: /nowhere/ollama: no such program; install Ollama, or name it with --ollama FILE\n"


IGNORED = pytest.mark.skipif(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="started by nohup")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=IGNORED)])
def test_it_serves_until_it_is_ended_and_leaves_nothing_behind(
    store: Path, config: Path, fake_ollama: Fake, port: int, tmp_path: Path, how: signal.Signals
) -> None:
    arguments = ["native", "p", "--ollama", str(fake_ollama("drafts")), "--port", str(port), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(arguments), **pipes, text=True, env=environment({}), cwd=tmp_path) as process:
        _serves_and_stops(process, config, port, how)
    until(lambda: not _running(fake_ollama))


async def test_a_server_that_will_not_end_is_killed_where_a_second_signal_ends_the_waiting(tmp_path: Path) -> None:
    program, up = tmp_path / "ollama", tmp_path / "up"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\ntouch {up}\nwhile :; do sleep 1; done\n")
    program.chmod(0o755)
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with running_server(
            NativeSetup("m", Path("/a/b/c"), Path(), "http://127.0.0.1:1"), program, os.environ
        ) as server:
            started.set_result(server.process)
            await asyncio.sleep(60)

    task = asyncio.create_task(serve())
    process = await started
    while not up.exists():  # noqa: ASYNC110  (nothing tells)
        await asyncio.sleep(0.01)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.1)
    ended = await asyncio.wait_for(process.wait(), ENDLESS)
    assert ended in (-signal.SIGKILL, 255)  # 255: another waiter took its code


def _serves_and_stops(process: subprocess.Popen[str], config: Path, port: int, how: signal.Signals) -> None:
    assert process.stdout
    assert process.stderr
    starting, ready = (json.loads(process.stdout.readline()) for _ in range(2))
    assert (starting["event"], ready["event"]) == ("starting", "ready")
    assert (ready["from_drafts"], ready["tokens"]) == (47, 48)
    assert (ready["accepted"], ready["drafted"]) == (78, 94), "two replies: one loads it, one shows"
    asked = subprocess.run(
        command(["run", "p", "--route", "native", "--config", str(_with_port(config, port)), "--json", "Count."]),
        capture_output=True,
        text=True,
        check=True,
        env=environment({}),
    )
    first, *_, last = (json.loads(line) for line in asked.stdout.splitlines())
    assert first["detail"] == f"native, by http://127.0.0.1:{port}"
    assert (last["route"], last["eval_count"], last["notices"]) == ("native", 48, [])
    process.send_signal(how)
    *_, stopped = (json.loads(line) for line in process.stdout.read().splitlines())
    assert "Traceback" not in process.stderr.read()
    assert process.wait(timeout=30) == (130 if how is signal.SIGINT else 0)
    assert (stopped["event"], stopped["replies"], stopped["accepted"]) == ("stopped", 3, 117)


def _with_port(config: Path, port: int) -> Path:
    file = config.with_name("other.toml")
    file.write_text(CONFIG.replace("[endpoints", f'native = "http://127.0.0.1:{port}"\n[endpoints'))
    return file


def _running(fake_ollama: Fake) -> list[int]:
    """What of the server's processes is left."""
    started = json.loads((fake_ollama("").parent / "started").read_text()) if _started(fake_ollama) else {"pids": []}
    return [pid for pid in started["pids"] if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # nobody's child any more, and not buried yet
    except psutil.NoSuchProcess:
        return False


def _started(fake_ollama: Fake) -> bool:
    return (fake_ollama("").parent / "started").exists()
