"""What a person sees who made a mistake, or whose server did: one line that says what to do, and no traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.calls import Call, own_config

ANY = ["--target", "x", "--draft", "y"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*ANY], "no prompt: give it as the last argument, or pipe it in"),
        ([*ANY, ""], "no prompt: give it as the last argument, or pipe it in"),
        ([*ANY, " \n "], "no prompt: give it as the last argument, or pipe it in"),
        ([*ANY, "why", "is", "it"], "too many arguments: 'it'; put the prompt in quotes"),
        (["--draft", "y", "hi"], "--draft is given without --target"),
        (
            ["--target", "x y", "--draft", "y", "hi"],
            '--target = "x y": must be MODEL or MODEL@SERVER, as qwen2.5-coder:32b@http://tower:11434',
        ),
        (
            ["--target", "x@ftp://tower", "--draft", "y", "hi"],
            '--target = "x@ftp://tower": the scheme must be http or https',
        ),
        (
            [*ANY, "--route", "fast", "hi"],
            '--route = "fast": must be one of auto, local, lanes, scoring, greedy, native, plain',
        ),
        ([*ANY, "--rule", "greedy", "hi"], '--rule = "greedy": must be one of auto, rejection, match'),
        (
            [*ANY, "--lookahead", "-3", "hi"],
            '--lookahead = "-3": must be "auto", a whole number from 0, or a list of such from 1, round by round',
        ),
        (
            [*ANY, "--keep-alive", "soon", "hi"],
            '--keep-alive = "soon": must be a duration, as "30m", or a number of seconds (below 0: for ever)',
        ),
        ([*ANY, "--temperature", "nan", "hi"], "--temperature = nan: must be a number"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(call: Call, arguments: list[str], says: str) -> None:
    shown = call("run", *arguments)

    assert (shown.code, shown.out, shown.err) == (2, "", f"error: {says}\n")


@pytest.mark.parametrize("piped", ["", "\n \n", None])
def test_nothing_piped_in_is_no_prompt(call: Call, piped: str | None) -> None:
    shown = call("run", *ANY, piped=piped)

    assert (shown.code, shown.err) == (2, "error: no prompt: give it as the last argument, or pipe it in\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--temperature", "hot", "hi"], "Invalid value for '--temperature'"),
        (["run", "--seed", "1.5", "hi"], "Invalid value for '--seed'"),
        (["run", "--temperatur", "0", "hi"], "No such option: --temperatur"),
        (["run", "--system"], "Option '--system' requires an argument"),
        (["rnu"], "No such command 'rnu'"),
    ],
)
def test_an_option_that_cant_be_read_is_named(call: Call, arguments: list[str], says: str) -> None:
    shown = call(*arguments)

    assert (shown.code, shown.out) == (2, "")
    assert says in shown.err
    assert "Traceback" not in shown.err


def test_without_any_pair_the_first_steps_are_told(call: Call, tmp_path: Path) -> None:
    shown = call("run", "hi")

    assert shown.code == 2
    assert shown.err == (
        "error: no pair is given: run `specollama init`, or give --target MODEL[@SERVER] and --draft MODEL[@SERVER], "
        f"or write a configuration file, ./specollama.toml or {tmp_path}/no-settings/specollama/config.toml\n"
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two pairs, none the default."""
    own_config(
        '[pairs.coder]\ntarget = { model = "big" }\ndraft = { model = "small" }\n'
        '[pairs.prose]\ntarget = { model = "big" }\ndraft = { model = "small" }\n'
    )
    return tmp_path / "specollama.toml"


def test_an_unknown_pair_gets_near_names(call: Call, file: Path) -> None:
    shown = call("run", "codr", "hi")

    assert shown.code == 2
    assert shown.err == f"error: {file}: there is no pair codr, did you mean coder? allowed: coder, prose\n"


def test_a_lone_prompt_without_a_default_pair_gets_the_names_there_are(call: Call, file: Path) -> None:
    shown = call("run", "Why is the sky blue?")

    assert shown.code == 2
    assert shown.err == (
        f'error: {file}: there is no default pair; name one of coder, prose, or set default_pair = "coder"\n'
    )


def test_a_wrong_file_is_told_by_its_name_the_key_and_what_is_allowed(call: Call, file: Path) -> None:
    own_config(file.read_text() + 'rout = "auto"\n')
    shown = call("run", "coder", "hi")

    assert shown.code == 2
    assert shown.err == (
        f'error: {file}: pairs.prose.rout = "auto": unknown key, did you mean route? '
        "allowed: batch_threads, draft, draft_ahead, intercept, keep_alive, kv_type, lanes, lookahead, native, "
        "options, requantize, route, rule, target\n"
    )


def test_a_file_that_isnt_there_is_told_with_what_named_it(call: Call, tmp_path: Path) -> None:
    shown = call("run", "--config", "nowhere.toml", "hi")

    assert shown.code == 2
    assert shown.err == f"error: {tmp_path}/nowhere.toml: there is no such file (set by --config)\n"


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_target_that_is_down_is_told_with_its_address_and_where_that_was_set(
    call: Call, nobody: str, embedded_url: str
) -> None:
    shown = call("run", "--target", f"target@{nobody}", "--draft", f"draft@{embedded_url}", "hi")

    assert shown.code == 1
    assert shown.err == (
        f"error: can't reach {nobody} (from --target): Connection refused; is Ollama running there? (`ollama serve`)\n"
    )


def test_an_address_of_the_environment_is_told_as_such(
    call: Call, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", nobody)
    shown = call("run", *ANY, "hi")

    assert shown.code == 1
    assert f"can't reach {nobody} (from OLLAMA_HOST)" in shown.err


def test_a_name_that_no_network_knows_is_told_as_such(call: Call) -> None:
    shown = call("run", "--target", "target@nowhere.invalid", "--route", "plain", "hi")

    assert shown.code == 1
    assert "can't reach http://nowhere.invalid:11434 (from --target): " in shown.err
    assert "Errno" not in shown.err
    assert shown.err.count("\n") == 1


def test_a_draft_that_is_down_turns_the_reply_plain_and_says_so(call: Call, nobody: str, embedded_url: str) -> None:
    shown = call(
        *("run", "--target", f"target@{embedded_url}", "--draft", f"draft@{nobody}"),
        *("--temperature", "0", "--num-predict", "4", "Name the planets"),
    )

    assert shown.code == 0
    assert shown.out.strip()
    assert shown.err.startswith("speculation: off (")
    assert f"can't reach {nobody} (from --draft)" in shown.err
    assert shown.err.count("\n") == 1


def test_a_missing_target_gets_near_names_and_the_line_that_pulls_it(call: Call, embedded_url: str) -> None:
    shown = call("run", "--target", f"targte@{embedded_url}", "--draft", f"draft@{embedded_url}", "hi")

    assert (shown.code, shown.out) == (1, "")
    assert shown.err == (
        f"error: {embedded_url} has no model 'targte' (there: target:latest); get it with `ollama pull targte`\n"
    )


def test_a_missing_draft_is_shown_with_the_same_advice(call: Call, embedded_url: str) -> None:
    shown = call("run", "--target", f"target@{embedded_url}", "--draft", f"drafts@{embedded_url}", "hi")

    assert (shown.code, shown.out) == (1, "")
    assert shown.err == (
        f"error: {embedded_url} has no model 'drafts' (there: draft:latest); get it with `ollama pull drafts`\n"
    )


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_pairs_whose_only_server_is_down_end_with_1(call: Call, flags: list[str]) -> None:
    model = 'endpoint = "down"'
    own_config(
        '[endpoints.down]\nurl = "http://127.0.0.1:9"\n[pairs.p]\n'
        f'target = {{ model = "t", {model} }}\ndraft = {{ model = "d", {model} }}\n'
    )
    shown = call("pairs", *flags)
    assert shown.code == 1
    assert "http://127.0.0.1:9" in shown.out
    assert shown.err == ""
