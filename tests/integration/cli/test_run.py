"""`specollama run` over a real pair: what is asked, and what goes where."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import httpx
import pytest

from specollama.backends.ollama.schema import SAMPLING_OPTIONS
from specollama.cli.commands.run import run
from tests.support.calls import Call, own_config, pair_flags

PLANETS = "Name the planets"


def answer(http: httpx.Client, prompt: str, system: str | None = None, num_predict: int = 12) -> str:
    """What the target alone says."""
    said = [{"role": "system", "content": system}] if system else []
    body = {
        "model": "target",
        "messages": [*said, {"role": "user", "content": prompt}],
        "options": {"temperature": 0, "num_predict": num_predict},
        "stream": False,
    }
    return str(http.post("/api/chat", json=body).json()["message"]["content"])


def test_the_reply_is_the_targets_own_on_stdout_and_the_status_one_line_on_stderr(
    call: Call, pair: list[str], http: httpx.Client
) -> None:
    shown = call("run", *pair, "--num-predict", "12", PLANETS)

    assert shown.code == 0
    assert shown.out == answer(http, PLANETS) + "\n"
    assert shown.err == "speculation: on (greedy, lookahead 1-7; near-ties: gaps below 0.08 (F32))\n"


def test_a_target_alone_runs_plain_and_the_status_says_why(call: Call, embedded_url: str, http: httpx.Client) -> None:
    shown = call(
        *("run", "--target", f"target@{embedded_url}", "--route", "plain"),
        *("--temperature", "0", "--num-predict", "12", PLANETS),
    )

    assert shown.out == answer(http, PLANETS) + "\n"
    assert shown.err == "speculation: off (route plain was asked for)\n"


def test_the_server_may_come_from_ollama_host(
    call: Call, embedded_url: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", embedded_url.removeprefix("http://"))
    shown = call(
        *("run", "--target", "target", "--draft", "draft", "--route", "greedy"),
        *("--temperature", "0", "--num-predict", "12", PLANETS),
    )

    assert shown.out == answer(http, PLANETS) + "\n"


@pytest.fixture
def pairs_file(embedded_url: str, tmp_path: Path) -> Path:
    file = tmp_path / "pairs.toml"
    file.write_text(f"""
        default_pair = "short"
        [endpoints.here]
        url = "{embedded_url}"
        [pairs.short]
        target = {{ model = "target", endpoint = "here" }}
        draft = {{ model = "draft", endpoint = "here" }}
        route = "greedy"
        options = {{ temperature = 0, num_predict = 4 }}
        [pairs.long]
        target = {{ model = "target", endpoint = "here" }}
        draft = {{ model = "draft", endpoint = "here" }}
        route = "greedy"
        options = {{ temperature = 0, num_predict = 12 }}
    """)
    return file


def test_a_pair_of_the_file_is_run_by_its_name(call: Call, pairs_file: Path, http: httpx.Client) -> None:
    shown = call("run", "--config", str(pairs_file), "long", PLANETS)

    assert shown.out == answer(http, PLANETS, num_predict=12) + "\n"


def test_a_lone_prompt_goes_to_the_default_pair(call: Call, pairs_file: Path, http: httpx.Client) -> None:
    shown = call("run", "--config", str(pairs_file), PLANETS)

    assert shown.out == answer(http, PLANETS, num_predict=4) + "\n"


def test_flags_win_over_the_file(call: Call, pairs_file: Path, http: httpx.Client) -> None:
    shown = call("run", "--config", str(pairs_file), "long", PLANETS, "--num-predict", "2", "--route", "plain")

    assert shown.out == answer(http, PLANETS, num_predict=2) + "\n"
    assert shown.err == "speculation: off (route plain was asked for)\n"


@pytest.mark.parametrize("place", ["the working directory", "the variable"])
def test_the_file_is_found_without_a_flag(
    call: Call, pairs_file: Path, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "the variable":
        monkeypatch.setenv("SPECOLLAMA_CONFIG", str(pairs_file))
    else:
        own_config(pairs_file.read_text())

    assert call("run", PLANETS).out == answer(http, PLANETS, num_predict=4) + "\n"


def test_a_prompt_may_be_piped_in_to_a_pair(call: Call, pairs_file: Path, http: httpx.Client) -> None:
    shown = call("run", "--config", str(pairs_file), "long", piped=f"{PLANETS}\n")

    assert shown.out == answer(http, PLANETS, num_predict=12) + "\n"


def test_piped_text_comes_before_the_prompt_that_is_given(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "12", "Repeat this list.", piped="red, blue, green\n")

    assert shown.out == answer(http, "red, blue, green\n\nRepeat this list.") + "\n"


def test_the_system_message_is_part_of_the_question(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "12", "--system", "Answer in French.", PLANETS)

    assert shown.out == answer(http, PLANETS, system="Answer in French.") + "\n"
    assert shown.out != answer(http, PLANETS) + "\n"


def test_each_stop_text_ends_the_reply_before_itself(call: Call, pair: list[str], http: httpx.Client) -> None:
    whole = answer(http, "Count: one, two, three,", num_predict=24)
    stop = whole.split()[4]
    shown = call("run", *pair, "--num-predict", "24", "--stop", "@@", "--stop", stop, "Count: one, two, three,")

    assert shown.out == whole[: whole.index(stop)] + "\n"


def test_a_seed_gives_the_same_reply_twice_and_another_seed_another(call: Call, embedded_url: str) -> None:
    def reply(seed: int) -> str:
        flags = pair_flags(embedded_url, temperature=1.5)
        return call("run", *flags, "--seed", str(seed), "--num-predict", "16", "Write a poem").out

    assert reply(7) == reply(7) != reply(8)


def test_json_gives_one_event_a_line_and_the_counters_last(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "12", "--json", PLANETS)
    first, *texts, last = [json.loads(line) for line in shown.out.splitlines()]

    told = "greedy, lookahead 1-7; near-ties: gaps below 0.08 (F32)"
    assert first == {"event": "status", "speculation": True, "detail": told}
    assert {event["event"] for event in texts} == {"text"}
    assert "".join(event["text"] for event in texts) == answer(http, PLANETS)
    assert {event["origin"] for event in texts} <= {"accepted", "recovered", "bonus"}
    assert last["event"] == "done"
    assert last["done_reason"] == "length"
    assert last["eval_count"] == 12
    assert last["accepted"] + last["recovered"] + last["bonus"] == 12
    assert isinstance(last["total_duration"], int)
    assert last["total_duration"] > last["first_token_duration"] > 1_000_000  # nanoseconds
    assert shown.err == ""


def test_stats_go_to_stderr_after_the_reply(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "12", "--stats", PLANETS)
    status, *counters = shown.err.splitlines()

    assert shown.out == answer(http, PLANETS) + "\n"
    assert status.startswith("speculation: on")
    assert "tokens                12" in counters
    assert {"route", "rounds", "drafted", "accepted", "acceptance rate", "mean accepted length", "rows asked"} <= {
        line.split("  ")[0] for line in counters
    }


def test_no_control_codes_leave_when_the_output_is_a_pipe(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "12", "--show-origin", "--stats", PLANETS)

    assert shown.out == answer(http, PLANETS) + "\n"
    assert "\x1b" not in shown.err


def test_a_prompt_in_any_script_is_asked_as_it_is(call: Call, pair: list[str], http: httpx.Client) -> None:
    prompt = "Repeat exactly: 🙂 é 日本 مرحبا"
    shown = call("run", *pair, "--num-predict", "24", prompt)

    assert shown.out == answer(http, prompt, num_predict=24) + "\n"


def test_bytes_that_are_no_text_are_marked_and_not_a_crash(call: Call, pair: list[str], http: httpx.Client) -> None:
    shown = call("run", *pair, "--num-predict", "6", "caf\udcff")

    assert shown.out == answer(http, "caf\ufffd", num_predict=6) + "\n"


def test_a_prompt_that_the_context_cant_hold_is_an_error_that_says_its_size(call: Call, pair: list[str]) -> None:
    shown = call("run", *pair, "--num-predict", "2", piped="word " * 3000)
    status, error = shown.err.splitlines()

    assert (shown.code, shown.out) == (1, "")
    assert status.startswith("speculation: off (")
    assert error.startswith("error: ")
    assert "1024 tokens" in error


def test_every_sampling_option_of_ollama_has_a_flag() -> None:
    assert {*inspect.signature(run).parameters} >= SAMPLING_OPTIONS
