"""`specollama pairs quality`: how drafts fare by kind and by forecast, and what routes would gain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specollama.cli.commands.quality import show_quality
from specollama.cli.terminal import output
from specollama.spec_decode.expected_speedup import constant_rate
from specollama.spec_decode.metrics import Forecast, Stats
from specollama.tools.doctor.acceptance_probe import (
    AcceptanceCounts,
    PairAcceptance,
    acceptance_profile,
    counts_of_reply,
)
from specollama.tools.doctor.route_forecast import ASSUMED_PROFILE
from tests.support.calls import Call


def test_what_is_expected_rests_on_forecasts_where_there_are_any() -> None:
    fared = AcceptanceCounts(2, 1, [Forecast(0.95, True), Forecast(0.1, False)])
    found = acceptance_profile(fared)
    assert found.tested == 2
    assert [(chance.probability, chance.share) for chance in found.bins] == [(0.0, 0.5), (1.0, 0.5)]
    assert acceptance_profile(AcceptanceCounts(4, 3)) == constant_rate(0.75, 4)
    assert acceptance_profile(AcceptanceCounts()) == ASSUMED_PROFILE


def test_kinds_add_up() -> None:
    whole = AcceptanceCounts()
    whole.add(counts_of_reply(Stats(tested=5, accepted=4, forecasts=[Forecast(0.5, True)])))
    whole.add(counts_of_reply(Stats(reason="lookahead is 0")))
    whole.add(AcceptanceCounts(1, 1))
    assert (whole.tested, whole.accepted, len(whole.forecasts), whole.plain_reasons) == (6, 5, 1, {"lookahead is 0"})


def test_a_kind_is_shown_as_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {name: AcceptanceCounts(4, 3) for name in ("[/maths]", ":smile:", "[red]code")}
    show_quality(output.stdout(), PairAcceptance(kinds, AcceptanceCounts(12, 9), []))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]] == list(kinds)


def test_a_pair_is_asked_and_told_of(call: Call, models: dict[str, Path], tmp_path: Path) -> None:
    asked, draft = tmp_path / "asked.txt", str(models["draft"])
    asked.write_text("Count from one to twenty.\n")
    words = ["--target", draft, "--draft", draft, "--prompts", str(asked), "--num-predict", "16"]
    told = call("pairs", "quality", *words, "--lookahead", "4", "--json")
    assert told.code == 0, told.err
    shown = json.loads(told.out)
    assert list(shown["kinds"]) == ["all"]
    quality = shown["all"]["quality"]
    assert shown["all"]["tested"] >= shown["all"]["accepted"] > 0
    assert quality["constant"] == pytest.approx(quality["acceptance_rate"] * (1 - quality["acceptance_rate"]))
    assert {route["route"] for route in shown["routes"]} == {"local", "native", "lanes", "greedy", "plain"}
    assert call("pairs", "quality", *words, "--lookahead", "0").err == "error: nothing was drafted: lookahead is 0\n"
