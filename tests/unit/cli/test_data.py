"""`specollama data`: what is kept on this disk, and its deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import requantize
from specollama.cli.terminal import output
from specollama.tools.stored_data import KINDS
from tests.support.calls import Call


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file of 100 bytes of each kind, where specollama writes it."""
    places = {
        "drafts": "cache/specollama/drafts/a-q4_0.gguf",
        "embedded": "cache/specollama/smol.F32.abc.gguf",
        "vocabularies": "cache/specollama/vocabularies/server/sha.gguf",
        "probes": "cache/specollama/probes/a.json",
        "costs": "state/specollama/planner/a.json",
        "trace": "state/specollama/last-reply.jsonl",
        "trust": "state/specollama/trusted.json",
        "conversations": "data/specollama/conversations.sqlite3",
        "typed": "data/specollama/typed",
    }
    found = {kind: tmp_path / place for kind, place in places.items()}
    for file in found.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 100)
    return found


def a_copy(source: Path) -> Path:
    """A copy of a draft model, as `write_copy` leaves it: the copy and the name of its model."""
    copy = requantize.copy_path(source)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(b"GGUF")
    requantize.source_path(copy).write_text(str(source))
    return copy


@pytest.fixture
def gone(tmp_path: Path) -> Path:
    """A copy whose model was deleted, beside one whose model is there."""
    for name in ("here.gguf", "gone.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    a_copy(tmp_path / "here.gguf")
    copy = a_copy(tmp_path / "gone.gguf")
    (tmp_path / "gone.gguf").unlink()
    return copy


def answer(monkeypatch: pytest.MonkeyPatch, yes: bool) -> list[str]:
    """A terminal at which every question gets this answer; the questions."""
    asked = list[str]()
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr(output, "ask_yes_no", lambda question: asked.append(question) or yes)
    return asked


def test_every_kind_is_listed_with_its_size_and_its_place(call: Call, files: dict[str, Path], tmp_path: Path) -> None:
    shown = call("data")
    assert (shown.code, shown.err) == (0, "")
    rows = {line.split()[0]: line for line in shown.out.splitlines()}
    assert set(KINDS) <= set(rows)
    assert all("100 bytes" in rows[kind] for kind in KINDS)
    assert str(files["conversations"].parent) in rows["conversations"]
    assert shown.out.splitlines()[-1] == (
        f"900 bytes in all; the configuration is in {tmp_path / 'no-settings' / 'specollama'}"
    )


def test_on_a_new_machine_nothing_is_there(call: Call) -> None:
    told = json.loads(call("data", "--json").out)
    assert [each["kind"] for each in told] == [*KINDS, "gone"]
    assert {each["size"] for each in told} == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_kind_is_gone_and_the_others_stay(call: Call, files: dict[str, Path], kind: str) -> None:
    shown = call("data", "--delete", kind, "--yes")
    assert (shown.code, shown.out, shown.err) == (0, "", f"{kind}: deleted 100 bytes\n")
    assert [name for name, file in files.items() if not file.exists()] == [kind]
    assert call("data", "--delete", kind, "--yes").err == f"{kind}: nothing is there\n"


def test_without_a_terminal_nothing_is_deleted_unasked(call: Call, files: dict[str, Path]) -> None:
    shown = call("data", "--delete", "conversations")
    assert (shown.code, len(shown.err.splitlines())) == (2, 1)
    assert "--yes" in shown.err
    assert files["conversations"].exists()


@pytest.mark.parametrize("yes", [True, False])
def test_at_a_terminal_the_user_is_asked(
    call: Call, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, yes: bool
) -> None:
    asked = answer(monkeypatch, yes)
    shown = call("data", "--delete", "typed", "--delete", "trace")
    assert shown.code == 0
    assert asked == [
        "Delete lines typed in chats (100 bytes)?",
        "Delete the trace of the last reply of a chat (100 bytes)?",
    ]
    assert files["typed"].exists() is files["trace"].exists() is not yes


def test_an_unknown_kind_gets_near_names(call: Call) -> None:
    shown = call("data", "--delete", "draft", "--yes")
    assert shown.code == 2
    assert "--delete draft: no such kind, did you mean drafts?" in shown.err


def test_copies_of_models_that_are_gone_are_offered(call: Call, gone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "specollama data --delete gone" in call("data").err
    assert gone.exists(), "nobody could be asked"
    asked = answer(monkeypatch, yes=True)
    call("data")
    assert len(asked) == 1
    assert asked[0].startswith("Delete copies of draft models that are gone")
    assert not gone.exists()
    assert not requantize.source_path(gone).exists()
    assert len(list(gone.parent.glob("*.gguf"))) == 1, "the one whose model is there"


def test_a_copy_of_a_model_that_has_changed_is_gone_too(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"old")
    copy = a_copy(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(b"a new one")
    call("data", "--delete", "gone", "--yes")
    assert not copy.exists()


def test_a_copy_that_names_no_model_is_not_taken_for_gone(call: Call, files: dict[str, Path]) -> None:
    assert call("data").err == ""
    call("data", "--delete", "gone", "--yes")
    assert files["drafts"].exists()


def test_a_link_among_the_files_is_deleted_and_not_what_it_leads_to(
    call: Call, files: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"mine")
    (files["drafts"].parent / "link.gguf").symlink_to(tmp_path / "mine.gguf")
    call("data", "--delete", "drafts", "--yes")
    assert list(files["drafts"].parent.iterdir()) == []
    assert (tmp_path / "mine.gguf").exists()
