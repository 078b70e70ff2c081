"""`--log-level` over a whole reply: a secret prompt, a secret token, and a reply that is nobody else's."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.calls import Call, own_config
from tests.support.scripted_ollama import song
from tests.support.serving import serving

PROMPT, TOKEN = "xyzzy-prompt", "xyzzy-token"


@pytest.mark.parametrize("way", ["flag", "variable"])
@pytest.mark.parametrize("route", ["lanes", "greedy", "plain"])
def test_a_reply_is_logged_line_by_line_without_its_texts_and_without_the_token(
    call: Call, monkeypatch: pytest.MonkeyPatch, way: str, route: str
) -> None:
    monkeypatch.setenv("TOWER_TOKEN", TOKEN)
    flags = ["--log-level", "debug"] if way == "flag" else []
    if way == "variable":
        monkeypatch.setenv("SPECOLLAMA_LOG", "DEBUG")
    with serving(song()) as url:
        own_config(
            f'[endpoints.e]\nurl = "{url}"\ntoken_env = "TOWER_TOKEN"\n'
            f'[pairs.p]\ntarget = {{ model = "target@e" }}\ndraft = {{ model = "draft@e" }}\nroute = "{route}"\n'
        )
        shown = call(*flags, "run", "--temperature", "0", "--system", PROMPT, PROMPT)
    assert shown.code == 0
    records = [line for line in shown.err.splitlines() if " specollama." in line]
    assert all(re.match(r"\S+ \S+ (DEBUG|INFO) specollama\.(http|reply): \S", line) for line in records)
    path = "/api/chat" if route == "plain" else "/api/generate"
    assert any(f"POST {url}{path}: 200, " in line for line in records)
    assert any("specollama.reply: speculation: o" in line for line in records)
    assert "specollama.reply: reply ended" in records[-1] or "specollama.reply: reply ended" in records[-2]
    words = [word for word in shown.out.split() if len(word) > 4]
    assert words
    assert not [secret for secret in (PROMPT, TOKEN, *words) if secret in shown.err]


def test_an_unknown_level_is_refused_with_those_there_are(call: Call) -> None:
    shown = call("--log-level", "loud", "pairs")
    assert shown.code == 2
    assert all(level in shown.err for level in ("debug", "info", "warning", "error"))


def test_a_call_without_the_flag_logs_nothing_though_one_before_did(call: Call) -> None:
    with serving(song()) as url:
        flags = ["run", "--target", f"target@{url}", "--route", "plain", PROMPT]
        assert " specollama.http: " in call("--log-level", "info", *flags).err
        assert " specollama." not in call(*flags).err


def test_in_a_process_of_its_own_a_fault_is_one_line_unless_a_log_is_asked_for() -> None:
    """Python's logging shows warnings by itself where a package has no handler, though not under pytest."""
    words = [sys.executable, "-m", "specollama", "run", "--target", "m@http://127.0.0.1:1", "--draft", "lookup", "hi"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: can't reach http://127.0.0.1:1")
    assert len(ended.stderr.splitlines()) == 1
