"""Files of version 0.1.0 open in the present one: a configuration, conversations, a run of review, a pair's state.

tests/data/version_0_1 was written by that version and is never written again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import profiling
from specollama.config.loading import load_config
from specollama.pairs.history_store import ConversationStore
from specollama.spec_decode.types import Route
from specollama.tools.review.run_folder import open_existing_run, verify_log

WRITTEN = Path(__file__).parent.parent / "data" / "version_0_1"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy, since opening some of them writes beside them."""
    return shutil.copytree(WRITTEN, tmp_path / "files")


def test_a_conversation_of_version_0_1_is_loaded_with_its_pair_settings_and_counters(files: Path) -> None:
    kept = ConversationStore(files / "conversations.sqlite3").load("colours")
    question, answer = kept.history.turns
    assert (kept.history.system, question.content, question.images) == ("Be brief.", "Which colour?", ("cmVk",))
    assert (answer.content, answer.thinking, answer.stats) == (
        "Red.",
        "It looks red.",
        {"route": "local", "accepted": 3},
    )
    assert (kept.pair, kept.options) == ({"pair": "coder"}, {"route": "local", "options": {"seed": 7}})


def test_a_run_of_version_0_1_is_sound_and_goes_on(files: Path) -> None:
    _, faults = verify_log(files / "run")
    assert faults == []
    with open_existing_run(files / "run", "Bob") as run:
        assert [run.state.items[id].text for id in ("a", "b")] == ["Blue.", "Grün.\n"]
        assert [run.state.status(run.state.items[id]) for id in ("a", "b")] == ["approved", "open"]


def test_the_state_of_a_pair_of_version_0_1_keeps_its_costs_and_its_calibration(files: Path) -> None:
    kept, why = profiling.load(files / "planner.json")
    assert why == ""
    assert kept.models["k"].passes == {1: 0.075, 8: 0.169}
    assert (kept.drafters["match 0.0 q05"].hits, kept.lengths) == ([1.0] * 20, {})


def test_a_configuration_of_version_0_1_loads(files: Path) -> None:
    pair = load_config(files / "config.toml").pair(None, {})
    assert (pair.route, len(pair.drafts)) == (Route.AUTO, 2)
