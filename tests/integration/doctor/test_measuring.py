"""What is found of servers: made ones, whose passes are known, and real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.server.embedded.serve import ServeSettings, serve_models
from specollama.tools.doctor.findings import LanesFinding
from specollama.tools.doctor.pair_status import requests_of
from specollama.tools.doctor.slot_benchmark import measure_slots
from tests.support.calls import Call, own_config
from tests.support.passes import PASS, PassingOllama
from tests.support.serving import Replayed, serving, whole

NOWHERE = "http://127.0.0.1:9"


async def measured(url: str, target: str = "target") -> LanesFinding:
    here = Endpoint(url, "a test")
    settings = PairSettings(None, ModelRef(target, here), (ModelRef("draft", here),))
    async with OllamaServer(url) as server:
        ours, theirs = await fetch_model_info(server, target), await fetch_model_info(server, "draft")
        return await measure_slots(requests_of(settings, ours, ours), ours, requests_of(settings, theirs, ours), theirs)


async def looked(url: str, right: Callable[[LanesFinding], bool]) -> LanesFinding:
    """Another program's work may look like a pass: what is found in one of three looks is enough."""
    for _ in range(2):
        if right(found := await measured(url)):
            return found
    return await measured(url)


@pytest.mark.parametrize(
    ("made", "unified"),
    [(PassingOllama(), True), (PassingOllama(unified=False), False), (PassingOllama(slots=1), None)],
)
async def test_slots_and_whether_they_share_passes_are_seen_by_the_time(
    made: PassingOllama, unified: bool | None
) -> None:
    with serving(made) as url:
        found = await looked(url, lambda found: found.slots > made.slots / 2 and found.unified is unified)
    assert made.slots / 2 < found.slots <= made.slots, "the first of them begin a pass alone"
    assert found.unified is unified
    assert found.step > 0.9 * PASS
    assert min(found.rows.values()) > 0.9 * PASS
    assert found.resident
    assert found.logprobs
    assert not found.itself


@pytest.mark.parametrize(
    ("made", "shows"),
    [
        (PassingOllama(evicting=True), {"resident": False, "logprobs": True, "itself": False}),
        (PassingOllama(logprobs="none"), {"resident": True, "logprobs": False, "itself": False}),
        (PassingOllama(logprobs="first"), {"resident": True, "logprobs": True, "itself": True}),
    ],
)
async def test_eviction_and_what_is_told_of_tokens_are_seen(made: PassingOllama, shows: dict[str, bool]) -> None:
    with serving(made) as url:
        found = await measured(url)
    assert {name: getattr(found, name) for name in shows} == shows


@contextmanager
def real(models: dict[str, Path], settings: ServeSettings) -> Iterator[str]:
    """The small model twice, once under the target's name: what is looked at is the engine."""
    with serve_models({"target": models["target"], "draft": models["draft"]}, settings) as server:
        yield server.url


@pytest.mark.parametrize(("parallel", "unified"), [(8, False), (1, True)])
async def test_a_real_engine_is_found_as_it_was_set_up(models: dict[str, Path], parallel: int, unified: bool) -> None:
    is_so = None if parallel == 1 else unified
    with real(models, ServeSettings(num_ctx=256, parallel=parallel, unified=unified)) as url:
        found = await looked(url, lambda found: found.unified is is_so and (found.slots > 1) == (parallel > 1))
    assert found.unified is is_so
    assert (found.slots > 1) == (parallel > 1)
    assert found.slots <= parallel
    assert found.keeps
    assert found.resident
    assert found.logprobs
    assert not found.itself


# The command


class NoRoom(PassingOllama):
    """Its models can't be loaded."""

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        if path in ("/api/generate", "/api/chat") and not body.get("_debug_render_only"):
            return 500, [{"error": f"no room for {body['model']}"}]
        return await super()._answer(path, body)


def config(target: str, draft: str = "", **keys: str) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f"""
[endpoints.one]
url = "{target}"
[endpoints.two]
url = "{draft or target}"
[pairs.p]
target = {{ model = "target", endpoint = "one" }}
draft = {{ model = "draft", endpoint = "two" }}
native = "{NOWHERE}"
{lines}"""


def diagnosed(call: Call, text: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    own_config(text)
    shown = call("doctor", "p", "--json", *arguments)
    [pair] = json.loads(shown.out)["pairs"]
    return shown.code, pair


def test_the_advice_names_the_variables_that_are_missing(call: Call) -> None:
    with serving(PassingOllama(slots=1)) as url:
        code, found = diagnosed(call, config(url))
        words = call("doctor", "p", "--service", "systemd")
    assert code == 0, "it can be speculated, if in vain"
    [advice] = [each for each in found["advice"] if each["environment"]]
    assert advice["environment"] == {
        "OLLAMA_NUM_PARALLEL": "8",
        "LLAMA_ARG_KV_UNIFIED": "1",
        "LLAMA_ARG_CACHE_IDLE_SLOTS": "0",
    }
    assert found["lanes"]["slots"] == 1
    assert {each["route"] for each in found["routes"]} == {"local", "native", "lanes", "greedy", "plain"}
    for said in ("one request at a time", "80% (assumed", 'Environment="LLAMA_ARG_KV_UNIFIED=1"', "best"):
        assert said in words.out


def test_a_pair_that_fails_while_it_is_measured_takes_no_other_with_it(call: Call) -> None:
    alone = '[pairs.alone]\ntarget = { model = "target", endpoint = "one" }\nroute = "plain"\n'
    with serving(NoRoom()) as url:
        own_config(config(url) + alone)
        shown = call("doctor", "--measure")
        told = json.loads(call("doctor", "--measure", "--json").out)["pairs"]
    assert (shown.code, shown.err) == (0, "")
    assert "(assumed: real prompts told nothing: " in shown.out
    assert [pair["name"] for pair in told] == ["p", "alone"]
    assert told[0]["unasked"].endswith("no room for target")
    assert told[1]["unasked"] == "the pair has no draft"
    assert "no room for " in told[0]["lanes"]
    assert told[1]["lanes"] == "no draft model is served"
    assert all(pair["routes"] for pair in told)


def test_what_was_not_measured_changes_no_configuration(call: Call) -> None:
    with serving(NoRoom()) as url:
        text = config(url, route='"lanes"')
        own_config(text)
        shown = call("tune", "p")
    assert shown.code == 0
    assert "pairs.p: left as it is, since nothing was learnt of its route (" in shown.out
    assert Path("specollama.toml").read_text() == text


def test_a_server_that_fails_is_a_fault_of_its_pair(call: Call) -> None:
    class Failing(PassingOllama):
        async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
            return (500, [{"error": "disk full"}]) if path == "/api/show" else await super()._answer(path, body)

    with serving(Failing()) as url:
        code, found = diagnosed(call, config(url))
    assert code == 1
    assert "disk full" in found["advice"][0]["what"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (PassingOllama(models=("target",)), "draft isn't there"),
        (PassingOllama(show={"remote_host": "https://ollama.com"}), "target is a cloud model"),
        (PassingOllama(show={"details": {"format": "safetensors"}}), "target runs on the MLX engine"),
        (PassingOllama(version="0.11.4"), "the target's server can't render a chat without answering it"),
    ],
)
def test_what_prevents_speculation_is_exit_code_1(call: Call, made: PassingOllama, said: str) -> None:
    with serving(made) as url:
        code, found = diagnosed(call, config(url))
        words = call("doctor", "p")
    assert code == words.code == 1
    assert found["advice"][0]["what"].startswith(said)
    assert found["advice"][0]["prevents"] is True
    assert len([line for line in words.out.splitlines() if line.startswith("fault: ")]) == 1


def test_a_server_that_is_down_is_one_line(call: Call) -> None:
    own_config(config(NOWHERE))
    shown = call("doctor", "p")
    assert shown.code == 1
    [name, line] = shown.out.split("\n\n")[0].splitlines()
    assert name == "p"
    assert line.startswith(f"fault: can't reach {NOWHERE}")
    assert ": start it (`ollama serve`), or correct " in line
    assert line.endswith("specollama.toml: endpoints.one.url")


def test_without_pairs_the_server_is_looked_at(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(PassingOllama()) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        shown = call("doctor")
        told = json.loads(call("doctor", "--json").out)
    assert shown.code == 0
    assert shown.out.startswith(f"{url}, Ollama 0.33.0 (llama-server)")
    assert "specollama pairs suggest" in shown.out
    assert told["server"]["models"] == ["target:latest", "draft:latest"]
    monkeypatch.setenv("OLLAMA_HOST", NOWHERE)
    down = call("doctor")
    assert (down.code, len(down.out.splitlines())) == (1, 1)


def test_a_real_pair_with_one_cache_is_diagnosed(call: Call, embedded_url: str) -> None:
    code, found = diagnosed(call, config(embedded_url))
    if not found["lanes"]["unified"]:  # another program's work may look like a pass
        code, found = diagnosed(call, config(embedded_url))
    assert code == 0
    assert found["lanes"]["unified"] is True
    assert 1 < found["lanes"]["slots"] <= 8
    assert (found["tokenizers"], found["templates"], found["delimiters"]) == ("same", "same", "fit")
    assert found["thinking"] == "doesn't think"
    assert found["context_lengths"] == [1024, 1024]
    assert set(found["lanes"]["rows"]) == {"2", "4", "8"}
    assert found["target_server"]["version"] == "0.33.0"


def test_a_served_pair_that_is_in_the_store_is_weighed_in_process_as_well(call: Call, store: Path) -> None:
    manifests = store / "manifests" / "registry.ollama.ai" / "library"
    digests = {name: sha256((manifests / name / "latest").read_bytes()).hexdigest() for name in ("target", "draft")}
    with serving(PassingOllama(digests=digests)) as url:
        code, found = diagnosed(call, config(url))
    assert code == 0
    assert set(found["local"]["passes"]) >= {"1", "8"}
    by_route = {each["route"]: each for each in found["routes"]}
    assert by_route["local"]["speedup"] >= 1
    assert by_route["native"]["speedup"] > 0
    assert found["native"] == {"url": NOWHERE, "running": False, "obstacle": ""}


def test_the_bench_takes_no_plain_replies_for_the_engines_own(call: Call) -> None:
    with serving(PassingOllama()) as url:
        own_config(config(url))
        shown = call("bench", "p", "--routes", "plain,native", "--limit", "1", "--repeat", "1")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith(f"error: can't reach {NOWHERE} (from ")
    assert shown.err.endswith("; start it with `specollama native p`\n")


@pytest.mark.parametrize("api", ['api = "vllm"', ""])
def test_another_engines_pair_is_no_fault(call: Call, api: str) -> None:
    """Found out where the configuration doesn't say it."""
    models = whole({"object": "list", "data": [{"id": "target", "object": "model", "owned_by": "vllm"}]})
    with serving(Replayed({"/v1/models": [models]})) as url, serving(PassingOllama()) as near:
        said = f', endpoint = "one"{", " + api if api else ""}'
        code, found = diagnosed(call, config(url, near).replace(', endpoint = "one"', said))
    assert code == 0
    assert [each["what"] for each in found["advice"]] == ["target is served by vllm, whose route is scoring"]
