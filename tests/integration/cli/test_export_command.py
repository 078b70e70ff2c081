"""`specollama export`: the whole command, on real files' own metadata."""

from __future__ import annotations

import os
from pathlib import Path

from specollama.server.embedded.default_models import default_models
from tests.support.calls import Call


def files() -> list[str]:
    models = default_models()
    return ["--target", str(models["target"]), "--draft", str(models["draft"])]


def test_the_set_up_goes_to_stdout_and_the_real_files_pass_the_engines_checks(call: Call) -> None:
    outcome = call("export", "--to", "llama-server", *files(), "--tokens", "6")
    assert (outcome.code, outcome.err) == (0, "")
    assert "--spec-type draft-simple" in outcome.out
    assert str(default_models()["draft"]) in outcome.out
    assert "--spec-draft-n-max 6" in outcome.out


def test_models_on_an_ollama_are_its_files_on_that_machine(call: Call, embedded_url: str) -> None:
    named = ["--target", f"target@{embedded_url}", "--draft", f"draft@{embedded_url}"]
    outcome = call("export", "--to", "llama-server", *named)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"# the files are on {embedded_url}" in outcome.out
    assert f"-md {default_models()['draft']}" in outcome.out
    outcome = call("export", "--to", "ollama", *named)
    assert outcome.code == 2
    assert f"{default_models()['target']} isn't in a model store" in outcome.err
    outcome = call("export", "--to", "ollama", "--target", f"nothing@{embedded_url}", "--draft", named[3])
    assert outcome.code == 1
    assert f"{embedded_url} has no model 'nothing'" in outcome.err


def test_files_are_written_to_a_folder_and_never_over_others(call: Call, tmp_path: Path) -> None:
    asked = ["export", "--to", "tensorrt-llm", *files(), "--target-hf", "Big/M", "--draft-hf", "Small/M"]
    outcome = call(*asked, "--out", str(tmp_path / "out"))
    assert (outcome.code, outcome.out) == (0, "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tensorrt-llm.yaml", "tensorrt-llm.sh"}
    assert os.access(tmp_path / "out" / "tensorrt-llm.sh", os.X_OK)
    assert call(*asked, "--out", str(tmp_path / "out")).code == 0
    outcome = call(*asked, "--tokens", "9", "--out", str(tmp_path / "out"))
    assert outcome.code == 2
    assert "tensorrt-llm.yaml is there already, with something else in it" in outcome.err


def test_a_mistake_is_one_line_with_what_to_do(call: Call) -> None:
    outcome = call("export", "--to", "vlm", *files())
    assert outcome.code == 2
    assert outcome.err.startswith("error: --to vlm: there is no such engine, did you mean vllm?")
    outcome = call("export", "--to", "vllm", *files())
    assert outcome.code == 2
    assert "isn't known; give it as --target-hf OWNER/NAME" in outcome.err
    outcome = call("export", "--to", "vllm", "--target", files()[1], "--draft", "lookup")
    assert outcome.code == 2
    assert "has no draft model that an engine could run" in outcome.err
