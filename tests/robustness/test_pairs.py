"""`specollama pairs`: what is found of each pair, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import GenerateReply, ShowReply
from specollama.backends.ollama.slot_probe import ROWS, SlotProbe, cache_file, count_slots, load, save
from specollama.backends.timings import DOUBTED_FOR
from specollama.pairs.feasibility import why_not_lanes
from specollama.pairs.pair import Pair
from specollama.spec_decode.types import Route, SamplingOptions
from specollama.tools.doctor.pair_status import PairFinding, pair_status
from tests.support.hearing import question, settings
from tests.support.misbehaving import Changed, Misbehaving
from tests.support.scripted_ollama import Call, ScriptedOllama

Server = Callable[..., Misbehaving]
NOWHERE = "http://127.0.0.1:9"


async def look(target: str, draft: str | None = None, *, measure: bool = False, **chosen: Any) -> PairFinding:
    given = {"route": Route.AUTO, "lookahead": "auto", **chosen}
    return await pair_status(settings(target, draft, idle_timeout=1, **given), {}, measure=measure)


async def test_a_sound_pair_that_was_not_measured(scripted_url: str) -> None:
    found = await look(scripted_url)
    assert found.target.reachable
    assert found.target.there
    assert found.target.version == "0.33.0"
    assert (found.route, found.slots) == ("auto", None)
    assert found.reason == "not measured yet: the first reply does it, or --measure"
    assert found.tokenizers == "the server doesn't give the model's vocabulary"


async def test_a_pair_with_one_tokenizer(embedded_url: str) -> None:
    assert (await look(embedded_url)).tokenizers == "same"


async def test_C20_the_first_token_that_differs_is_told_with_both_texts(embedded_url: str, serve: Any) -> None:
    def changed(line: dict[str, Any]) -> dict[str, Any]:
        tokens = line["model_info"].get("tokenizer.ggml.tokens")
        if tokens:
            tokens[139] = "zebra"
        return line

    def digest(line: dict[str, Any]) -> dict[str, Any]:
        for model in line["models"]:
            model["digest"] = "13" * 32
        return line

    class Other(Changed):
        def line(self, call: Call, line: dict[str, Any]) -> dict[str, Any]:
            return digest(line) if call.path == "/api/tags" else changed(line) if call.path == "/api/show" else line

    found = await look(embedded_url, serve(Misbehaving(embedded_url, Other(changed))))
    assert found.tokenizers.startswith("different, drafts are put into the target's tokens: token 139 is ")
    assert found.tokenizers.endswith("'zebra' for the draft")


def test_C22_what_only_the_longer_vocabulary_has_is_padding() -> None:
    words = [f"word {number}" for number in range(300)]
    assert first_difference(words, [*words, *("" for _ in range(128))]) is None
    assert first_difference([*words, "pad"], words) is None
    assert first_difference(words, [*words[:139], "other", *words[140:]]) == 139


@pytest.mark.parametrize("side", ["target", "draft"])
async def test_a_server_that_is_not_there(scripted_url: str, side: str) -> None:
    found = await (look(NOWHERE, scripted_url) if side == "target" else look(scripted_url, NOWHERE))
    lost = found.target if side == "target" else found.draft
    assert lost
    assert not lost.reachable
    assert not lost.there
    assert found.route == ("none" if side == "target" else "plain")
    assert found.reason == lost.fault
    assert found.reason.startswith(f"can't reach {NOWHERE}")


@pytest.mark.parametrize("side", ["target", "draft"])
async def test_a_model_that_is_not_there(scripted: ScriptedOllama, scripted_url: str, side: str) -> None:
    scripted.models = {name: model for name, model in scripted.models.items() if name != side}
    found = await look(scripted_url)
    lost = found.target if side == "target" else found.draft
    assert lost
    assert lost.reachable
    assert not lost.there
    assert f"get it with `ollama pull {side}`" in found.reason


async def test_a_model_that_was_made_anew_is_known_anew_after_a_while(
    scripted: ScriptedOllama, scripted_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("specollama.pairs.served_models.monotonic", lambda: now[0])
    async with Pair(settings(scripted_url), {}) as pair:
        assert (await pair.sampling(question())).top_k == 40
        anew = replace(scripted.models["target"], digest="ab" * 32, show={"parameters": "top_k 3"})
        scripted.models = {**scripted.models, "target": anew}
        now[0] = 60.0
        assert (await pair.sampling(question())).top_k == 3
        assert (await pair.model_infos())[0].digest == "ab" * 32


async def test_a_target_alone(scripted_url: str) -> None:
    chosen = replace(settings(scripted_url, route=Route.AUTO), drafts=())
    found = await pair_status(chosen, {})
    assert (found.draft, found.route, found.reason) == (None, "plain", "no draft model")


async def test_a_target_alone_that_is_not_there_runs_not_at_all() -> None:
    chosen = replace(settings(NOWHERE, route=Route.AUTO), drafts=())
    found = await pair_status(chosen, {})
    assert found.route == "none"
    assert found.reason.startswith(f"can't reach {NOWHERE}")


async def test_a_route_that_is_set_is_taken(scripted_url: str) -> None:
    found = await look(scripted_url, route=Route.LANES)
    assert (found.route, found.reason) == ("lanes", "set by the configuration")


async def test_a_model_that_can_not_be_speculated(scripted: ScriptedOllama, scripted_url: str) -> None:
    scripted.models = {
        **scripted.models,
        "target": replace(scripted.models["target"], show={"details": {"format": "safetensors"}}),
    }
    found = await look(scripted_url)
    assert (found.route, found.reason) == ("plain", "target runs on the MLX engine")


async def test_C29_one_slot_is_seen_by_its_timing(scripted_url: str, serve: Any) -> None:
    def waited(line: dict[str, Any]) -> dict[str, Any]:
        """The rows wait for each other: what the durations leave out."""
        rows[0] += 1
        waiting = (rows[0] - 1) % ROWS * 50_000_000
        return {**line, "total_duration": 51_000_000 + waiting, "prompt_eval_duration": 49_000_000}

    rows = [0]
    server = Misbehaving(scripted_url, Changed(waited, lambda call: call.is_row), slots=1)
    found = await look(serve(server), measure=True)
    assert found.slots == 1
    assert found.route == "plain"
    assert found.reason.startswith("the target works on one request at a time: 4 rows and their draft cost ")


async def test_C23_a_measurement_is_kept_until_digest_or_version_change(
    scripted: ScriptedOllama, scripted_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def known() -> bool:
        return (await look(scripted_url)).measured is not None

    assert not await known()
    await look(scripted_url, measure=True)
    assert await known()
    scripted.models = {**scripted.models, "draft": replace(scripted.models["draft"], digest="ab" * 32)}
    assert not await known(), "the draft was pulled again"
    await look(scripted_url, measure=True)
    assert await known()
    scripted.version = "0.33.1"
    assert not await known(), "the server was updated"


PROBE = SlotProbe(
    round_trip=0.001,
    step=0.1,
    reading=0.001,
    rows=0.15,
    equal_rows=0.12,
    draft=0.05,
    slots=4,
    resident=True,
    holes=False,
    row_tokens=1,
)


@pytest.mark.parametrize("spoiled", ["", "{", '{"step": 1}', "\x00"])
async def test_a_measurement_that_can_not_be_read_is_none(tmp_path: Path, spoiled: str) -> None:
    file = tmp_path / "probes" / "x.json"
    save(PROBE, file)
    assert load(file) == PROBE
    file.write_text(spoiled)
    assert load(file) is None


async def test_a_failed_measurement_is_kept_for_minutes_and_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "probes" / "x.json"
    save("it took too long", file)
    assert load(file) == "it took too long; tried again in 10 minutes"
    later = time() + DOUBTED_FOR + 1
    monkeypatch.setattr("specollama.backends.ollama.slot_probe.time", lambda: later)
    assert load(file) is None


async def test_a_doubtful_measurement_is_kept_for_minutes_and_a_sound_one_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubtful, sound = tmp_path / "doubtful.json", tmp_path / "sound.json"
    probe = PROBE.model_copy(update={"until": time() + DOUBTED_FOR, "rows": 0.4})
    save(probe, doubtful)
    save(PROBE, sound)
    assert (load(doubtful), load(sound)) == (probe, PROBE)
    said = why_not_lanes(probe, 100, 8)
    assert said is not None
    assert said.endswith("cost 4.5 target steps (timed in a busy moment, measured anew in 10 minutes)")
    later = time() + DOUBTED_FOR + 1
    monkeypatch.setattr("specollama.backends.ollama.slot_probe.time", lambda: later)
    assert (load(doubtful), load(sound)) == (None, PROBE)


async def test_a_measurement_of_yesterday_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "probes" / "x.json"
    save(PROBE, file)
    os.utime(file, (0, 0))
    assert load(file) is None


async def test_without_digests_nothing_is_kept() -> None:
    async with OllamaServer(NOWHERE) as server:
        model = ModelInfo("m", server, (0, 33, 0), ShowReply())
    assert cache_file(RequestTemplate("m", SamplingOptions()), model, model) is None
    save(PROBE, None)
    assert load(None) is None


@pytest.mark.parametrize(
    ("changes", "tokens", "reason"),
    [
        ({}, 100, None),
        ({"holes": True}, 100, "tokens come without log-probabilities"),
        ({"resident": False}, 100, "draft and target evict each other: the server's memory doesn't hold both"),
        ({"rows": 0.4}, 100, "lanes don't pay here: 4 rows and their draft cost 4.5 target steps"),
        ({"rows": 0.4, "slots": 1}, 100, "the target works on one request at a time: 4 rows and their draft cost 4.5"),
        ({"draft": 0.2}, 100, "lanes don't pay here: 4 rows and their draft cost 3.5 target steps"),
        ({}, 100_000, "8 lanes would read the prompt of 100000 tokens for 700.0 s first"),
        ({"step": 0.0}, 100, "lanes don't pay here: 4 rows and their draft cost an unknown number of target steps"),
    ],
)
def test_C24_lanes_only_where_what_was_measured_says_that_they_pay(
    changes: dict[str, Any], tokens: int, reason: str | None
) -> None:
    said = why_not_lanes(PROBE.model_copy(update=changes), tokens, 8)
    assert said is None if reason is None else said is not None and said.startswith(reason)


def run(config: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "specollama.toml"
    file.write_text(config)
    command = [sys.executable, "-m", "specollama", "pairs", "--config", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_json_has_all_pairs(scripted_url: str, tmp_path: Path) -> None:
    config = f"""
[endpoints.here]
url = "{scripted_url}"
[endpoints.nowhere]
url = "{NOWHERE}"
[pairs.sound]
target = {{ model = "target", endpoint = "here" }}
draft = {{ model = "draft", endpoint = "here" }}
[pairs.lost]
target = {{ model = "target", endpoint = "nowhere" }}
draft = {{ model = "draft", endpoint = "here" }}
"""
    done = run(config, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    sound, lost = json.loads(done.stdout)
    assert sound["name"] == "sound"
    assert sound["target"]["there"] is sound["draft"]["there"] is True
    assert sound["slots"] is None
    assert lost["target"]["reachable"] is False
    assert lost["route"] == "none"
    words = run(config, tmp_path).stdout
    for said in ("sound", "lost", "can't reach", "not measured"):
        assert said in words
    assert [each["name"] for each in json.loads(run(config, tmp_path, "--json", "lost").stdout)] == ["lost"]


@pytest.mark.parametrize(
    ("config", "arguments"),
    [("", []), ("", ["x"]), ('[pairs.a]\ntarget = {model = "t", endpoint = "e"}\n[endpoints.e]\nurl = "h"', ["b"])],
)
def test_pairs_that_are_not_there_are_a_mistake(tmp_path: Path, config: str, arguments: list[str]) -> None:
    done = run(config, tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def timed(*spans_and_works: tuple[int, int]) -> list[GenerateReply]:
    return [
        GenerateReply(done=True, total_duration=span, prompt_eval_duration=work, eval_duration=0)
        for span, work in spans_and_works
    ]


@pytest.mark.parametrize(
    ("replies", "slots"),
    [
        (timed((10, 10), (20, 10), (30, 10), (40, 10)), 1),  # one after another
        (timed((10, 10), (10, 10), (10, 10), (10, 10)), 4),  # all at once
        (timed((7, 7), (20, 13), (20, 13), (20, 13)), 3),  # the first alone, since the engine was idle
        (timed((10, 10), (10, 10), (20, 10), (20, 10)), 2),
    ],
)
def test_slots_are_the_requests_whose_work_overlaps(replies: list[GenerateReply], slots: int) -> None:
    assert count_slots(replies) == slots
