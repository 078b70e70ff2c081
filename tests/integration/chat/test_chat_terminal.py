"""`specollama chat` at a terminal, as a person sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specollama.config import trust
from specollama.pairs.history_store import ConversationStore
from specollama.pairs.trace.records import read_trace
from specollama.server.embedded.serve import RunningServer
from tests.support.screen import Screen
from tests.support.scripted_ollama import ScriptedOllama

Chat = Callable[..., Screen]


def pair(url: str, route: str = "lanes") -> list[str]:
    return ["--target", f"target@{url}", "--draft", f"draft@{url}", "--route", route, "--temperature", "0"]


def asked(server: ScriptedOllama) -> list[dict[str, Any]]:
    """The messages of the last conversation that was rendered or answered."""
    messages = [call.body["messages"] for call in server.calls if call.body.get("messages")][-1]
    assert isinstance(messages, list)
    return messages


def test_a_reply_is_shown_as_markdown_once_with_its_counts_below(chat: Chat, letter_url: str) -> None:
    screen = chat(*pair(letter_url))
    screen.wait(r"Ctrl-D leaves\n>>>")
    shown = screen.say("Write.", r"Add them\.")
    assert "Here is a short function." in shown
    assert shown.count("def add(a, b):") == 1
    assert "**" not in shown
    assert "```" not in shown
    screen.wait(r"· \d+ of 4096 tokens · on \(lanes, lookahead 1-7\) · .*\d+ of \d+ drafted tokens accepted")
    assert b"\x1b[2J" not in screen.raw, "the screen is never cleared"
    screen.type("\x04")
    assert screen.left() == 0


def test_the_last_reply_can_be_looked_into_and_all_of_them_traced(
    chat: Chat, letter_url: str, places: dict[str, str], tmp_path: Path
) -> None:
    screen = chat(*pair(letter_url), "--trace", "t.jsonl")
    screen.wait(">>>")
    screen.say("One.", r"Add them\.")
    screen.say("Two.", r"Add them\.")
    screen.say("/trace page.html", r"written to page\.html")
    first, second = read_trace(tmp_path / "t.jsonl")
    assert (first.head.texts, second.rounds[0].drafted[0].text) == (False, None)
    [last] = read_trace(Path(places["XDG_STATE_HOME"]) / "specollama" / "last-reply.jsonl")
    assert "".join(token.text or "" for token in last.tokens).startswith("Here is a **short** function.")
    assert len(last.tokens) == len(second.tokens)
    assert "**short**" in (tmp_path / "page.html").read_text()


def test_tokens_have_the_colour_of_their_origin_and_none_under_no_color(chat: Chat, letter_url: str) -> None:
    screen = chat(*pair(letter_url), "--show-origin")
    screen.wait(">>>")
    shown = screen.say("Write.", r"2\. Add them\.")
    assert "**short**" in shown, "as it was written"
    assert screen.colours("Here") == {"green"}
    assert "red" in {
        colour
        for word in re.findall(r"\w+", "function def add return Read both numbers Add")
        for colour in screen.colours(word)
    }
    screen.say("/set theme colourblind", "theme: colourblind")
    screen.say("Again.", r"2\. Add them\.")
    assert screen.colours("Here") == {"blue"}
    bare = chat(*pair(letter_url), "--show-origin", NO_COLOR="1")
    bare.wait(">>>")
    bare.say("Write.", r"2\. Add them\.")
    assert bare.colours("Here") == {"default"}
    assert not re.search(rb"\x1b\[[0-9;]*3[1-6]m", bare.raw)


def test_thinking_is_apart_and_can_be_folded(chat: Chat, letter_url: str) -> None:
    screen = chat(*pair(letter_url, "plain"))
    screen.wait(">>>")
    assert re.search(r"Hm\.\n\nHere is a short function\.", screen.say("Write.", r"Add them\."))
    screen.say("/set fold on", "fold: on")
    shown = screen.say("Again.", r"Add them\.")
    assert "Hm." not in shown
    assert re.search(r"\(thought for \d+\.\d s, 1 tokens; /show thinking\)\nHere is", shown)
    assert "Hm." in screen.say("/show thinking", "thinking\n")


def test_several_lines_are_one_message_however_they_come(chat: Chat, letter: ScriptedOllama, letter_url: str) -> None:
    screen = chat(*pair(letter_url))
    screen.wait(">>>")
    screen.enter('"""')
    screen.enter("One,")
    screen.say('two."""', r"Add them\.")
    assert asked(letter)[-1]["content"] == "One,\ntwo."
    screen.type("\x1b[200~three,\r\nfour,\r\nfive\x1b[201~")  # as a terminal hands over what was pasted
    screen.say("", r"Add them\.")
    assert asked(letter)[-1]["content"] == "three,\nfour,\nfive"
    screen.type("six,\x1b\r")
    screen.say("seven", r"Add them\.")
    assert asked(letter)[-1]["content"] == "six,\nseven"
    screen.type("\x1b[A\x1b[A")
    screen.say("", r"Add them\.")
    assert asked(letter)[-1]["content"] == "six,\nseven", "the arrow gives back what was typed"


def test_what_is_typed_is_completed_and_edited(
    chat: Chat, letter: ScriptedOllama, letter_url: str, tmp_path: Path
) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "written elsewhere" > "$1"\n')
    editor.chmod(0o755)
    (tmp_path / "red.png").write_bytes(b"red")
    screen = chat(*pair(letter_url), EDITOR=str(editor))
    screen.wait(">>>")
    screen.type("/look\t")
    screen.say(" 3", "lookahead: 3")
    screen.type("\x07")  # Ctrl-G
    screen.wait(">>> written elsewhere")
    screen.say("", r"Add them\.")
    assert asked(letter)[-1]["content"] == "written elsewhere"
    screen.say("/edit", r"written elsewhere\n(?s:.*)Add them\.")
    assert [each["content"] for each in asked(letter)][0::2] == ["written elsewhere"] * 2
    screen.type("look at ./re\t")
    shown = screen.say(" please", r"Add them\.")
    assert "with the image red.png" in shown
    assert "speculation: off (images" in shown
    assert asked(letter)[-1] == {"role": "user", "content": "look at please", "images": ["cmVk"]}


def test_what_was_said_can_be_taken_back_and_asked_anew(chat: Chat, letter: ScriptedOllama, letter_url: str) -> None:
    screen = chat(*pair(letter_url), "--system", "Be brief.")
    screen.wait(">>>")
    screen.say("One.", r"Add them\.")
    screen.say("/retry", r"Add them\.")
    assert [message["content"] for message in asked(letter)] == ["Be brief.", "One."]
    screen.say("/set system Be long.", "the system message is set")
    screen.enter("/undo")
    screen.wait(r"taken back: One\.\n>>> One\.")
    screen.say(" Two.", r"Add them\.")
    assert [message["content"] for message in asked(letter)] == ["Be long.", "One. Two."]
    screen.say("/copy", "characters given to the terminal's clipboard")
    assert b"\x1b]52;c;" in screen.raw


def test_each_setting_is_set_and_shown(chat: Chat, letter: ScriptedOllama, letter_url: str) -> None:
    screen = chat(*pair(letter_url))
    screen.wait(">>>")
    for line, says in (
        ("/set parameter num_predict 30", "num_predict = 30"),
        ("/set parameter stop A B", r'stop = \["A", "B"\]'),
        ("/show parameters", r'num_predict +30\nstop +\["A", "B"\]'),
        ("/set parameter stop", "stop: as the pair has it"),
        ("/set parameter temperatur 1", "temperatur = 1: unknown option, did you mean temperature"),
        ("/set parameter temperature hot", 'temperature = "hot": must be a number'),
        ("/set format json", "answers in JSON"),
        ("/set think off", "think: off"),
        ("/set verbose", "verbose: on"),
        ("/set wordwrap off", "wordwrap: off"),
        ("/set markdown off", "markdown: off"),
        ("/route plain", "route: plain"),
        ("/route fast", r'route = "fast": must be one of auto, local, '),
        ("/lookahead", "lookahead: auto"),
        ("/pair", r"there are: embedded"),
        ("/pair nowhere", "there is no pair nowhere"),
        ("/show info", r"model +target\nserver +http://127"),
        ("/origin", "origin: on"),
        ("/nothing", "unknown command /nothing; /help lists them"),
    ):
        screen.say(line, says)
    shown = screen.say("Write.", "tokens per second")
    assert "speculation: off" in shown
    sent = [call.body for call in letter.calls if call.generates][-1]
    assert (sent["options"], sent["format"], sent["think"]) == ({"temperature": 0, "num_predict": 30}, "json", False)
    assert sent["truncate"] is False, "what doesn't fit is refused rather than cut"


def test_what_is_typed_is_kept_where_the_conversation_is(chat: Chat, letter_url: str, places: dict[str, str]) -> None:
    file = Path(places["XDG_DATA_HOME"]) / "specollama" / "typed"
    for flags, kept in ((["--no-history"], ["+/route"]), ([], ["+/route", "+/stats", "+/set history on", "+/route"])):
        screen = chat(*pair(letter_url), *flags)
        screen.wait(">>>")
        for line, says in (("/stats", "no reply"), ("/set history on", "is kept"), ("/route", "route: lanes")):
            screen.say(line, says)
        screen.type("\x04")
        assert screen.left() == 0
        assert [line for line in file.read_text().splitlines() if line.startswith("+")] == kept


def test_a_context_that_is_nearly_full_is_told_before_and_a_full_one_is_asked_nothing(
    chat: Chat, letter: ScriptedOllama, letter_url: str
) -> None:
    letter.context_length = 40
    screen = chat(*pair(letter_url, "plain"))
    screen.wait(">>>")
    screen.say("One.", r"the context is \d\d% full \(\d\d of 40 tokens\): /set parameter num_ctx 80")
    letter.prompt_tokens = 30
    screen.say("Two.", r"the context is full")
    calls = len(letter.calls)
    screen.enter("Three.")
    screen.wait(r"this doesn't fit any more \(\d\d of 40 tokens\): (?s:.*)\n>>> Three\.")
    assert len(letter.calls) == calls


def test_without_a_pair_it_says_in_three_lines_what_to_do_and_offers_the_embedded_one(chat: Chat) -> None:
    screen = chat()
    screen.wait(r"try that now\? \[Y/n\]:")
    lines = screen.text.split("\n")
    assert lines[0] == "no pair is given, and no configuration file defines one"
    assert lines[1].startswith("with Ollama: specollama init")
    assert lines[2].startswith("without it:  specollama chat embedded")
    screen.enter("n")
    assert screen.left() == 2


def test_a_conversation_from_the_first_word_to_the_next_day(
    chat: Chat, embedded: RunningServer, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed, streamed, stopped, gone on with, by another pair, resized, saved, resumed, exported: a real model."""
    (tmp_path / "specollama.toml").write_text(
        f'default_pair = "one"\n[endpoints.here]\nurl = "{embedded.url}"\n'
        '[pairs.one]\ntarget = { model = "target", endpoint = "here" }\n'
        'draft = { model = "draft", endpoint = "here" }\n'
        'route = "greedy"\n[pairs.one.options]\ntemperature = 0\n'
        '[pairs.two]\ntarget = { model = "draft", endpoint = "here" }\nroute = "plain"\n'
        "[pairs.two.options]\ntemperature = 0\n"
    )
    monkeypatch.setenv("XDG_STATE_HOME", places["XDG_STATE_HOME"])
    trust.trust(tmp_path / "specollama.toml")
    screen = chat("--num-predict", "300", cache="shared")
    screen.wait(">>>")
    screen.enter("Write a long story about a lighthouse.")
    screen.wait(r"lighthouse(?s:.*)\n(?s:.*)on \(greedy, lookahead 1-7\) · .*\d+ of \d+ drafted tokens")
    screen.type("\x03")
    stopped = screen.wait(r"\(stopped\)\n>>>")
    screen.say("/set parameter num_predict 12", "num_predict = 12")
    screen.say("Name three colours.", r"\n\w+")
    screen.resize(40, 60)
    screen.say("/pair two", "now with two; the conversation goes on")
    screen.say("And one more.", r"speculation: off \(.*\)\n(?s:.*)\w+")
    screen.say("/save tale", "kept as tale")
    screen.type("\x04")
    assert screen.left() == 0

    kept = ConversationStore(Path(places["XDG_DATA_HOME"]) / "specollama" / "conversations.sqlite3").load("tale")
    assert [turn.role for turn in kept.history.turns] == ["user", "assistant"] * 3
    first, second, third = kept.history.turns[1::2]
    assert first.stopped
    assert " ".join(first.content.split()[:4]) in " ".join(stopped.split()), "what was seen is what is kept"
    assert (second.stats or {})["route"] == "greedy"
    assert (third.stats or {})["route"] == "plain"
    assert (second.stats or {})["tested"] > 0

    again = chat("-c", cache="shared")
    again.wait(r"tale: Write a long story about a lighthouse\. \(6 turns\)")
    again.say("/show pair", r"pair +two\n")
    again.say("/export tale.json", "written to tale.json")
    again.say("/trace page.html", "no reply yet")
    again.enter("/bye")
    assert again.left() == 0
    exported = json.loads((tmp_path / "tale.json").read_text())
    assert [turn["content"] for turn in exported["turns"]] == [turn.content for turn in kept.history.turns]
