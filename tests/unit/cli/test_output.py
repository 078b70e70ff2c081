"""How events are shown: lines are whole, whatever comes in between."""

from __future__ import annotations

import json

import pytest

from specollama.cli.terminal import output
from specollama.spec_decode.events import Done, Status, Text, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin


def test_thinking_goes_to_stderr_and_its_line_ends_before_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show = output.text_display(origin=False, stats=False)
    show(Text("So", Origin.PLAIN, thinking=True))
    show(Text(" many", Origin.PLAIN, thinking=True))
    show(Text("Eight.", Origin.PLAIN))
    show(Done(DoneReason.STOP, Stats()))

    assert capsys.readouterr() == ("Eight.\n", "So many\n")


def test_a_status_in_mid_reply_waits_for_the_reply_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    show = output.text_display(origin=False, stats=False)
    show(Status(on=True, detail="lanes"))
    show(Text("Mer", Origin.ACCEPTED))
    show(Status(on=False, detail="the draft's server went away"))
    assert capsys.readouterr().err == "speculation: on (lanes)\n"

    show(Text("cury", Origin.PLAIN))
    show(Done(DoneReason.STOP, Stats()))
    assert capsys.readouterr() == ("cury\n", "speculation: off (the draft's server went away)\n")


def test_a_reply_that_breaks_off_is_left_as_it_is_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show = output.text_display(origin=False, stats=False)
    show(Text("Mer", Origin.ACCEPTED))
    show(Status(on=False, detail="the draft's server went away"))
    show.end()

    assert capsys.readouterr() == ("Mer", "speculation: off (the draft's server went away)\n")


def test_markup_in_a_reply_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    show = output.text_display(origin=True, stats=False)
    show(Text("[bold]a[/] :smile: \x07", Origin.ACCEPTED))
    show(Done(DoneReason.STOP, Stats()))

    assert capsys.readouterr().out.startswith("[bold]a[/] :smile: ")


def test_no_control_character_is_in_json_and_its_meaning_stays(capsys: pytest.CaptureFixture[str]) -> None:
    controls = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x2070)]))
    output.json_display()(Text(f"Grün 雪 {controls}\x9b2J", Origin.PLAIN))
    shown = capsys.readouterr().out

    assert not {*controls} & {*shown.removesuffix("\n")}
    assert "Grün 雪" in shown
    assert json.loads(shown)["text"] == f"Grün 雪 {controls}\x9b2J"


def test_names_of_emoji_in_what_is_said_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.stdout().print("written to :smile:.json")
    output.stderr().print("in :key:/run")

    assert capsys.readouterr() == ("written to :smile:.json\n", "in :key:/run\n")


def test_control_characters_steer_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as at a terminal
    show = output.text_display(origin=False, stats=False)
    show(Text("\x1b[2Ja\u202e\n", Origin.PLAIN))
    show(Text("\u202ethought", Origin.PLAIN, thinking=True))
    show(ToolCalls(({"function": {"name": "\u202ef"}},)))
    show(Done(DoneReason.STOP, Stats()))

    shown = capsys.readouterr()
    assert shown.out.startswith("␛[2Ja\\u202e\n")
    assert "\u202e" not in shown.out + shown.err


def test_in_a_pipe_the_answer_is_what_the_model_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    show = output.text_display(origin=False, stats=False)
    show(Text("\x1b[2Ja\u202e\n", Origin.PLAIN))
    show(Done(DoneReason.STOP, Stats()))

    assert capsys.readouterr().out.startswith("\x1b[2Ja\u202e\n")
