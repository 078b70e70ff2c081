"""The examples that need no server: each runs, and says what its page promises."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_drafter_of_ones_own_drafts_for_any_target(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_drafter.py"))["main"]()
    assert capsys.readouterr().out == "To be, or not to be.\n5 of 5 drafted tokens accepted in 2 rounds\n"


def test_a_target_of_ones_own_verifies_any_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_target.py"))["main"]()
    text, counters = capsys.readouterr().out.splitlines()
    assert text == "1 2 3 4 5 6 7 8 9 10"
    assert int(counters.split(" of ")[0]) > 0
