"""`specollama pairs suggest` and `specollama tune`, with the small real models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specollama.config.loading import load_config
from specollama.spec_decode.types import Route
from tests.support.calls import Call, own_config
from tests.support.passes import PassingOllama
from tests.support.serving import serving

NOWHERE = "http://127.0.0.1:9"
CONFIG = """\
# ours
[endpoints.here]
url = "{url}"  # where it is
"""


def test_the_installed_pair_is_found_and_written_beside_what_is_there(call: Call, embedded_url: str) -> None:
    file = own_config(CONFIG.format(url=embedded_url))
    shown = call("pairs", "suggest")
    assert shown.code == 0
    assert shown.out.startswith("target with draft: ")
    assert shown.out.endswith("x by their sizes; tokenizers same\n")
    told = json.loads(call("pairs", "suggest", "--write", "--json").out)
    [pair] = told["pairs"]
    assert (pair["target"]["name"], pair["draft"]["name"], pair["tokenizers"]) == ("target", "draft", "same")
    assert told["added"] == ["target"]
    assert file.read_text().startswith(CONFIG.format(url=embedded_url))
    written = load_config(file).pair("target", {})
    assert (written.target.model, str(written.draft)) == ("target", "draft")
    assert json.loads(call("pairs", "suggest", "--write", "--json").out)["added"] == [], "it is there"
    assert call("pairs").out.startswith("target\n"), "shown without `show`"


def test_what_is_installed_makes_no_pair(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(PassingOllama(models=("qwen2.5:32b",))) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        shown = call("pairs", "suggest")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "no two of these models make a pair: a draft has the target's tokenizer, and a third of its size or less",
        "qwen2.5:32b would have a better draft:",
        "    ollama pull qwen2.5:0.5b",
    ]


def test_one_server_of_two_is_down(call: Call) -> None:
    with serving(PassingOllama()) as url:
        own_config(f'[endpoints.a]\nurl = "{url}"\n[endpoints.b]\nurl = "{NOWHERE}"\n')
        shown = call("pairs", "suggest")
    assert shown.code == 0
    assert shown.err.startswith(f"can't reach {NOWHERE}")
    own_config(f'[endpoints.b]\nurl = "{NOWHERE}"\n')
    down = call("pairs", "suggest", "--write")
    assert (down.code, down.out, len(down.err.splitlines())) == (1, "", 1)


def test_a_pair_is_tuned_to_this_machine(call: Call, models: dict[str, Path], tmp_path: Path) -> None:
    """The same weights twice: whatever gains here is written, and what passes cost is kept for the next reply."""
    written = f"""\
[pairs.p]
target = {{ path = "{models["target"]}" }}  # large
draft = {{ path = "{models["draft"]}" }}
lookahead = 1
options = {{ num_ctx = 512 }}
"""
    file = own_config(written)
    dry = call("tune", "p", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert file.read_text() == written
    told = json.loads(dry.out)
    curves = told["tuned"]["costs"]
    assert {str(models["target"].name), str(models["draft"].name)} == set(curves)
    assert all(after["1"] > 0 for before, after in curves.values())
    acceptance = told["tuned"]["found"]["acceptance"]
    assert acceptance["tested"] >= 50
    assert list((tmp_path / "state").rglob("planner/*.json"))
    by_route = {each["route"]: each["speedup"] for each in told["tuned"]["found"]["routes"]}
    assert by_route["lanes"] is None
    wanted = {change["key"]: change["after"] for change in told["changed"]}
    assert wanted.get("route") == ("local" if by_route["local"] >= 1.05 else None)
    assert wanted.get("lookahead") == ("auto" if by_route["local"] >= 1.05 else None)


def test_there_has_to_be_a_file_to_write_to(call: Call) -> None:
    shown = call("tune")
    assert (shown.code, len(shown.err.splitlines())) == (2, 1)
    own_config(f'[pairs.p]\ntarget = {{ model = "t@{NOWHERE}" }}\ndraft = "d@{NOWHERE}"\n')
    down = call("tune", "p")
    assert (down.code, len(down.err.splitlines())) == (1, 1)
    assert down.err.startswith(f"error: can't reach {NOWHERE}")


def test_a_pair_of_files_that_are_not_there(call: Call) -> None:
    own_config('[pairs.p]\ntarget = { path = "gone.gguf" }\ndraft = "lookup"\n')
    shown = call("doctor", "p")
    assert shown.code == 1
    assert "gone.gguf: No such file or directory" in shown.out
    assert load_config(Path("specollama.toml")).pair("p", {}).route is Route.AUTO


def test_a_pair_of_another_engine_is_left_as_it_is(call: Call) -> None:
    text = '[pairs.p]\ntarget = { model = "t", endpoint = "e", api = "vllm" }\ndraft = "lookup"\n'
    text += f'[endpoints.e]\nurl = "{NOWHERE}"\n'
    own_config(text)
    shown = call("tune", "p")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("error: t is served by vllm, whose route is scoring: its costs are measured with")
    assert Path("specollama.toml").read_text() == text
