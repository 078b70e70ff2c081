"""`specollama init`: the first pair of a new user, found, written, and tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect
import pytest

from specollama.cli.terminal import completion
from specollama.config.loading import load_config, user_file
from specollama.config.settings import FileRef, PromptLookup
from tests.support.calls import Call, command, environment
from tests.support.passes import PassingOllama
from tests.support.serving import serving

NOWHERE = "http://127.0.0.1:9"
SIZES = {"big": 9 * 10**9, "small": 10**9, "other": 4 * 10**9}


@dataclass
class Installed(PassingOllama):
    """An Ollama with models of some sizes; all look as if they had one tokenizer, but tell no vocabulary."""

    models: tuple[str, ...] = tuple(SIZES)
    show: dict[str, Any] = field(default_factory=lambda: {"model_info": {"tokenizer.ggml.model": "gpt2"}})

    def _listed(self, name: str) -> dict[str, Any]:
        return {**super()._listed(name), "size": SIZES[name]}


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(Installed()) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        yield url


def test_yes_takes_the_first_choice_and_makes_it_the_default_of_the_users_configuration(
    call: Call, ollama: str
) -> None:
    shown = call("init", "--yes", "--no-try")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.splitlines()[0].startswith("1. big with small: ")
    written = load_config(user_file()).pair(None, {"OLLAMA_HOST": ollama})
    assert (written.name, written.target.model, str(written.draft)) == ("big", "big", "small")
    assert not Path("specollama.toml").exists()


def test_enter_takes_the_first_choice_at_a_terminal(ollama: str) -> None:
    program, *arguments = command(["init", "--no-try"])
    process = pexpect.spawn(program, arguments, env=environment({}), encoding="utf-8", timeout=60, dimensions=(24, 200))
    process.expect("Which one")
    process.sendline("")
    process.expect('default_pair = "big"')
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0


def test_another_choice_and_what_is_in_the_file_stays(call: Call, ollama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text('# mine\n[pairs.own]\ntarget = { model = "a" }\ndraft = "lookup"\n')
    monkeypatch.setattr("specollama.cli.terminal.output.can_ask", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 2)
    assert call("init", "--no-try").code == 0
    assert user_file().read_text().startswith("# mine\n")
    known = load_config(user_file())
    assert set(known.table.pairs) == {"own", "other"}
    assert known.table.default_pair == "other"


def test_a_model_without_a_draft_is_offered_with_lookup(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Installed(models=("big",))) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        assert call("init", "--yes", "--no-try").code == 0
    assert load_config(user_file()).pair(None, {}).drafts == (PromptLookup.LOOKUP,)


def test_without_a_terminal_nothing_is_chosen_unasked(call: Call, ollama: str) -> None:
    shown = call("init")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "error: init asks at a terminal; give --yes to take the first choice\n"
    assert not user_file().exists()


def test_without_ollama_one_line_says_how_to_get_one_and_the_embedded_pair_is_taken(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", NOWHERE)
    shown = call("init", "--yes", "--no-try")
    assert shown.code == 0
    first = shown.err.splitlines()[0]
    assert first.startswith(f"can't reach {NOWHERE}")
    assert "https://ollama.com/download" in first
    assert load_config(user_file()).table.default_pair == "embedded"


def test_without_ollama_and_without_the_packages_of_the_embedded_pair_it_fails_in_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", NOWHERE)
    monkeypatch.setattr("specollama.cli.commands.init.can_open_embedded", lambda: False)
    shown = call("init", "--yes")
    assert (shown.code, len(shown.err.splitlines())) == (1, 1)
    assert "pip install 'specollama[local,embedded]'" in shown.err
    assert not user_file().exists()


def test_a_file_that_comes_before_the_users_own_is_told(call: Call, ollama: str) -> None:
    Path("specollama.toml").write_text("")
    assert f"{os.getcwd()}/specollama.toml is used instead" in call("init", "--yes", "--no-try").err


def test_the_pair_is_tried_both_ways_and_both_speeds_are_shown(
    call: Call, embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", embedded_url)
    monkeypatch.setattr("specollama.cli.commands.init._TOKENS", 4)
    shown = call("init", "--yes")
    assert shown.code == 0, shown.err
    [line] = [line for line in shown.err.splitlines() if line.startswith("speculative ")]
    assert "tokens/s by route " in line
    assert ", plain " in line


def test_embedded_is_a_pair_in_the_commands_that_take_one(call: Call) -> None:
    shown = call("pairs", "embedded")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "embedded")
    reply = call("run", "embedded", "Say hello.", "--num-predict", "2", "--stats")
    assert reply.code == 0
    assert "route " in reply.err
    assert "no configuration file defines this pair" in call("tune", "embedded").err


def test_a_pair_of_the_file_named_embedded_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[pairs.embedded]\ntarget = { path = "x.gguf" }\ndraft = "lookup"\n')
    known = load_config(file)
    assert not known.is_embedded("embedded")
    assert known.pair("embedded", {}).target == FileRef(tmp_path / "x.gguf")


@pytest.mark.parametrize("arguments", [["run", "hi"], ["chat"], ["pairs"], []], ids=str)
def test_without_any_pair_init_is_named(call: Call, arguments: list[str]) -> None:
    shown = call(*arguments)
    assert "specollama init" in shown.out + shown.err


def test_a_target_alone_gets_the_best_draft_that_its_server_has(call: Call, ollama: str) -> None:
    shown = call("run", "--target", "big", "--num-predict", "2", "hi")
    assert shown.code == 0
    assert shown.err.splitlines()[0] == "draft: small (the best that is installed; --draft names another)"
    elsewhere = call("run", "--target", f"big@{ollama}", "--num-predict", "2", "hi")
    assert elsewhere.err.startswith(f"draft: small@{ollama} (")


def test_a_target_alone_without_a_fitting_model_gets_lookup(call: Call, ollama: str) -> None:
    shown = call("run", "--target", "small", "--num-predict", "2", "hi")
    assert shown.code == 0
    assert shown.err.startswith("draft: lookup (no installed model has its tokenizer")


def test_a_target_alone_whose_server_is_down_fails_in_one_line(call: Call) -> None:
    shown = call("run", "--target", f"big@{NOWHERE}", "hi")
    assert (shown.code, len(shown.err.splitlines())) == (1, 1)
    assert NOWHERE in shown.err


def test_a_wrong_flag_is_told_before_a_draft_is_looked_for(call: Call) -> None:
    shown = call("run", "--target", f"big@{NOWHERE}", "--route", "fast", "hi")
    assert (shown.code, shown.err.startswith('error: --route = "fast"')) == (2, True)


def test_tab_offers_the_models_of_the_server(ollama: str) -> None:
    assert completion.models("") == ["big", "small", "other"]
    assert completion.models("s") == ["small"]
