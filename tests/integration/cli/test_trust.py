"""A specollama.toml that lies in the working directory is used only once somebody has allowed it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pexpect
import pytest

from specollama import AsyncClient, Client
from specollama.config import trust
from specollama.config.loading import Config
from specollama.errors import ConfigError
from specollama.server.proxy.serve import Proxy
from tests.support.calls import Call, command, environment

COMMANDS = (
    ["run", "private"],
    ["run", "--target", "m@stranger", "--route", "plain", "private"],
    ["chat"],
    ["serve", "--port", "0"],
    ["batch", "prompts.jsonl", "--out", "run"],
    ["review", "prompts.jsonl"],
    ["pairs"],
    ["pairs", "suggest"],
    ["pairs", "suggest", "--write"],
    ["pairs", "quality"],
    ["doctor"],
    ["tune"],
    ["native", "p"],
    ["export", "p", "--to", "vllm"],
    ["bench"],
)


class Stranger(ThreadingHTTPServer):
    """A server that remembers every request with its headers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Listening)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Listening(BaseHTTPRequestHandler):
    server: Stranger

    def do_GET(self) -> None:
        self.server.heard.append((self.path, dict(self.headers)))
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test looks at `heard`."""


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    """A server to which only the file of the working directory leads, with the token that it asks for."""
    monkeypatch.setenv("MY_SECRET", "hush")
    with Stranger() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Path("specollama.toml").write_text(
            f'[endpoints.stranger]\nurl = "{server.url}"\ntoken_env = "MY_SECRET"\n'
            '[pairs.p]\ntarget = { model = "m", endpoint = "stranger" }\ndraft = "d"\n'
        )
        Path("prompts.jsonl").write_text('{"id": "a", "prompt": "private"}\n')
        yield server
        server.shutdown()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_without_a_terminal_it_is_refused_and_nothing_is_sent(
    call: Call, stranger: Stranger, words: list[str], tmp_path: Path
) -> None:
    shown = call(*words)
    assert shown.code == 2
    assert shown.err == (
        f"error: {tmp_path}/specollama.toml: isn't trusted, and it decides where prompts and tokens go: read it, then "
        "run `specollama trust`, or name it with --config\n"
    )
    assert shown.out == ""
    assert stranger.heard == []


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_python_clients_refuse_it(stranger: Stranger, client: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="isn't trusted"):
        client()
    assert stranger.heard == []


@pytest.mark.parametrize("named", ["flag", "variable", "trust"])
def test_a_file_that_is_named_or_trusted_is_used(
    call: Call, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    if named == "variable":
        monkeypatch.setenv("SPECOLLAMA_CONFIG", "specollama.toml")
    if named == "trust":
        assert call("trust").err == "specollama.toml: trusted as it is now\n"
    call("run", *(("--config", "specollama.toml") if named == "flag" else ()), "public")
    assert stranger.heard[0][1]["Authorization"] == "Bearer hush"


def test_a_change_ends_the_trust(call: Call, stranger: Stranger) -> None:
    call("trust")
    with Path("specollama.toml").open("a") as file:
        file.write("# more\n")
    assert "isn't trusted" in call("run", "private").err
    assert stranger.heard == []


def test_trust_is_revoked(call: Call, stranger: Stranger) -> None:
    call("trust", "specollama.toml")
    assert call("trust", "--revoke").err == "specollama.toml: not trusted any more\n"
    assert "isn't trusted" in call("run", "private").err
    assert call("trust", "--revoke").err == "specollama.toml: wasn't trusted\n"
    assert stranger.heard == []


def test_trust_is_of_one_place(call: Call, stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in another folder, and behind a link there, are another file; a linked folder is the same one."""
    call("trust")
    for name in ("copy", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "copy" / "specollama.toml").write_bytes(Path("specollama.toml").read_bytes())
    (tmp_path / "link" / "specollama.toml").symlink_to(tmp_path / "specollama.toml")
    (tmp_path / "same").symlink_to(tmp_path)
    for name in ("copy", "link"):
        monkeypatch.chdir(tmp_path / name)
        assert "isn't trusted" in call("pairs").err
    assert stranger.heard == []
    assert trust.configuration(None, {}, tmp_path / "same").file == tmp_path / "same" / "specollama.toml"


def test_a_file_of_a_folder_above_is_not_looked_for(
    call: Call, stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert "no pair is given" in call("run", "private").err
    assert stranger.heard == []


def test_a_link_whose_file_is_changed_is_asked_about_again(call: Call, stranger: Stranger) -> None:
    Path("specollama.toml").rename("real.toml")
    Path("specollama.toml").symlink_to("real.toml")
    call("trust")
    with Path("real.toml").open("a") as file:
        file.write("# more\n")
    assert "isn't trusted" in call("run", "private").err
    assert stranger.heard == []


def test_a_file_that_is_swapped_while_it_is_asked_about_is_not_used(tmp_path: Path) -> None:
    """What was answered is what is parsed; what lies there by then is asked about the next time."""
    file = tmp_path / "specollama.toml"
    file.write_text('[pairs.asked]\ntarget = { model = "m" }\ndraft = "d"\n')
    other = '[pairs.swapped]\ntarget = { model = "m" }\ndraft = "d"\n'

    def yes(question: str) -> bool:
        assert question == f"{file} decides where prompts and tokens go. Trust it?"
        file.write_text(other)
        return True

    assert list(trust.configuration(None, {}, tmp_path, yes).table.pairs) == ["asked"]
    with pytest.raises(ConfigError, match="isn't trusted"):
        trust.configuration(None, {}, tmp_path)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_at_a_terminal_it_is_asked_about_once(stranger: Stranger, tmp_path: Path, answer: str) -> None:
    first, *rest = command(["pairs", "--json"])
    question = f"{tmp_path}/specollama.toml decides where prompts and tokens go. Trust it? [y/N]: "
    for asks in (True, False):
        child = pexpect.spawn(first, rest, env=environment({"COLUMNS": "300"}), dimensions=(24, 300), timeout=60)
        if asks:
            child.expect_exact(question)
            assert stranger.heard == [], "asked before anything is sent"
            child.sendline(answer)
        shown = child.read().decode()
        child.close()
        assert ("isn't trusted" in shown) == (answer == "n")
        assert asks or question not in shown
    assert bool(stranger.heard) == (answer == "y")


def test_what_was_answered_is_kept_for_the_user_alone(call: Call, stranger: Stranger, tmp_path: Path) -> None:
    call("trust")
    kept = tmp_path / "state" / "specollama" / "trusted.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert list(json.loads(kept.read_text())) == [str(tmp_path / "specollama.toml")]


@pytest.mark.parametrize("spoilt", ["", "[]", "{", '{"PLACE": true}', '{"PLACE": {"trusted": true}}'])
def test_answers_that_can_not_be_read_trust_nothing(
    call: Call, stranger: Stranger, tmp_path: Path, spoilt: str
) -> None:
    kept = tmp_path / "state" / "specollama" / "trusted.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(spoilt.replace("PLACE", str(tmp_path / "specollama.toml")))
    assert "isn't trusted" in call("run", "private").err
    assert stranger.heard == []


def test_a_file_that_is_not_there_can_not_be_trusted(call: Call) -> None:
    shown = call("trust")
    assert (shown.code, shown.err) == (2, "error: specollama.toml: can't be read: No such file or directory\n")


def test_what_is_written_for_the_user_stays_trusted_and_nothing_else_does(tmp_path: Path) -> None:
    file, before, after = tmp_path / "specollama.toml", "# a\n", "# b\n"
    file.write_text(after)
    trust.trust_own_change(file, before, after)
    with pytest.raises(ConfigError, match="isn't trusted"):
        trust.configuration(None, {}, tmp_path)
    trust.trust_own_change(file, "", after)
    assert trust.configuration(None, {}, tmp_path) == Config(file, named=False)
    file.write_text("# c\n")
    trust.trust_own_change(file, after, "# c\n")
    assert trust.configuration(None, {}, tmp_path).file == file


def test_a_server_that_reads_it_again_keeps_the_trusted_one(tmp_path: Path) -> None:
    file = tmp_path / "specollama.toml"
    file.write_text("[serve]\nmax_requests = 7\n")
    trust.trust(file)
    proxy = Proxy(trust.configuration(None, {}, tmp_path), dict(os.environ))
    file.write_text("[serve]\nmax_requests = 8\n")
    asyncio.run(proxy.reload())
    assert proxy.current.serve.max_requests == 7
    trust.trust(file)
    asyncio.run(proxy.reload())
    assert proxy.current.serve.max_requests == 8
