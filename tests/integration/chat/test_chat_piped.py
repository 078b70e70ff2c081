"""A piped chat over a server whose replies are written down, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from specollama.cli import app
from specollama.pairs.conversation import ChatHistory, ChatTurn
from specollama.pairs.history_store import ConversationStore, SavedConversation
from tests.support.serving import Answer, Receive, Replayed, Send, lines, replayed, serving, whole

Say = Callable[..., Result]


@dataclass
class Ollama(Replayed):
    """`meanwhile`: what others do while a reply is asked for."""

    meanwhile: Callable[[], object] = lambda: None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["path"] == "/api/chat":
            self.meanwhile()
        await super().__call__(scope, receive, send)


def reply(*words: str, thinking: str = "", reason: str = "stop") -> Answer:
    thought = [{"message": {"role": "assistant", "content": "", "thinking": thinking}, "done": False}]
    said = [{"message": {"role": "assistant", "content": word}, "done": False} for word in words]
    last = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason}
    return lines(*(thought if thinking else []), *said, {**last, "prompt_eval_count": 2, "eval_count": len(words)})


def broken(*words: str) -> Answer:
    return Answer(reply(*words).chunks[: len(words)], kind=reply().kind)


@pytest.fixture
def ollama() -> Ollama:
    answers = replayed(
        version=whole({"version": "0.33.0"}),
        tags=whole({"models": [{"name": "target:latest", "digest": "ab" * 32}]}),
        ps=whole({"models": []}),
        show=whole({"details": {"format": "gguf"}, "model_info": {}, "capabilities": ["completion"]}),
    ).answers
    return Ollama(answers)


@pytest.fixture
def say(
    ollama: Ollama, places: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Result]]:
    """Says lines to a chat whose replies are these, in turn."""
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    monkeypatch.chdir(tmp_path)
    with serving(ollama) as url:
        pair = ["--target", f"target@{url}", "--draft", f"target@{url}", "--route", "plain", "--history"]

        def said(*typed: str, answers: list[Answer], flags: list[str] | None = None) -> Result:
            ollama.answers["/api/chat"] = answers
            return CliRunner().invoke(app, ["chat", *pair, *(flags or [])], input="".join(f"{t}\n" for t in typed))

        yield said


def talk(*said: str) -> ChatHistory:
    return ChatHistory(
        turns=[ChatTurn("user" if place % 2 == 0 else "assistant", text) for place, text in enumerate(said)]
    )


def kept() -> list[str]:
    """What the conversation that was kept last has in it."""
    found = ConversationStore().last()
    return [turn.content for turn in found.history.turns] if found else []


def sent(ollama: Ollama) -> list[list[dict[str, Any]]]:
    return [body["messages"] for body in ollama.bodies if body.get("messages")]


@pytest.mark.parametrize("fragment", [[], ["Gr"]])
def test_a_retry_that_a_fault_breaks_off_leaves_the_answer_as_it_was(
    say: Say, ollama: Ollama, fragment: list[str]
) -> None:
    shown = say("Colour?", "/retry", "Why?", answers=[reply("Blue."), broken(*fragment), reply("Light.")])
    assert shown.exit_code == 1
    assert "(the answer before stays)\n" in shown.stderr
    assert [each["content"] for each in sent(ollama)[-1]] == ["Colour?", "Blue.", "Why?"]
    assert kept() == ["Colour?", "Blue.", "Why?", "Light."]


def test_a_retry_that_is_answered_takes_the_answers_place(say: Say) -> None:
    assert say("Colour?", "/retry", answers=[reply("Blue."), reply("Green.")]).exit_code == 0
    assert kept() == ["Colour?", "Green."]


def test_images_that_wait_are_not_the_retried_questions(say: Say, ollama: Ollama, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(b"red")
    typed = ("Colour?", "And ./red.png?", "/retry", "Why?")
    say(*typed, answers=[reply("Blue."), broken(), broken(), reply("Light.")])
    assert [each.get("images") for each in sent(ollama)[-2]] == [None]
    assert [each.get("images") for each in sent(ollama)[-1]] == [None, None, ["cmVk"]]


def test_saving_under_another_name_makes_a_copy_and_the_chat_goes_on_under_its_own(say: Say) -> None:
    typed = ("Colour?", "/save tale", "/save other", "Why?", "/save", "/save tale")
    shown = say(*typed, answers=[reply("Blue."), reply("Light.")])
    assert shown.exit_code == 0
    told = [line for line in shown.stderr.splitlines() if "speculation" not in line]
    assert told == ["kept as tale", "a copy is kept as other; this one goes on as tale", "kept as tale", "kept as tale"]
    turns = {each.name: each.turns for each in ConversationStore().summaries()}
    assert turns == {"tale": 4, "other": 2}


def test_a_copy_does_not_take_the_name_of_another_conversation(say: Say) -> None:
    ConversationStore().save(SavedConversation(talk("Hi.", "Hello."), name="other"))
    shown = say("Colour?", "/save tale", "/save other", answers=[reply("Blue.")])
    assert "another conversation is called other" in shown.stderr
    assert {each.name: each.title for each in ConversationStore().summaries()} == {"tale": "Colour?", "other": "Hi."}


def test_a_chat_whose_name_another_conversation_took_is_kept_without_one(say: Say, ollama: Ollama) -> None:
    ConversationStore().save(SavedConversation(talk("Hi.", "Hello."), name="tale"))
    mine = ConversationStore().save(SavedConversation(talk("Mine.")))

    def taken() -> None:
        ConversationStore().delete("tale")
        ConversationStore().save(replace(mine, name="tale"))

    ollama.meanwhile = taken
    shown = say("Colour?", answers=[reply("Blue.")], flags=["--load", "tale"])
    assert shown.exit_code == 0
    assert "(another conversation is called tale by now: this one is kept as 3)\n" in shown.stderr
    assert kept() == ["Hi.", "Hello.", "Colour?", "Blue."]
    assert [turn.content for turn in ConversationStore().load("tale").history.turns] == ["Mine."]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (reply(), "no answer came\n"),
        (reply(thinking="Hm.", reason="stop"), "no answer came (1 tokens of thinking)\n"),
        (
            reply(thinking="Hm.", reason="length"),
            "no answer came (1 tokens of thinking); /set parameter num_predict N allows more tokens\n",
        ),
    ],
)
def test_a_reply_without_an_answer_is_told_of(say: Say, answer: Answer, told: str) -> None:
    shown = say("Colour?", answers=[answer])
    assert shown.exit_code == 1
    assert told in shown.stderr
    assert kept() == []
    again = say("Colour?", "/retry", answers=[reply("Blue."), answer])
    assert f"{told}(the answer before stays)\n" in again.stderr
    assert kept() == ["Colour?", "Blue."]


@pytest.mark.parametrize(("command", "file"), [("export", "a.md"), ("trace", "a.html"), ("trace", "last-reply.html")])
def test_a_file_that_is_there_is_written_over_only_where_that_is_forced(say: Say, command: str, file: str) -> None:
    Path(file).write_text("mine")
    asked = f"/{command}" if file == "last-reply.html" else f"/{command} {file}"
    shown = say("Colour?", asked, answers=[reply("Blue.")])
    assert f"{file}: exists; name another file, or /{command} --force FILE writes over it\n" in shown.stderr
    assert Path(file).read_text() == "mine"
    forced = asked.replace(f"/{command}", f"/{command} --force")
    assert f"written to {file}\n" in say("Colour?", forced, answers=[reply("Blue.")]).stderr
    assert Path(file).read_text() != "mine"


def test_an_export_says_the_pair_and_the_settings_though_nothing_is_kept(say: Say) -> None:
    flags = ["--no-history", "--temperature", "0.5"]
    assert say("Colour?", "/export a.json", answers=[reply("Blue.")], flags=flags).exit_code == 0
    written = json.loads(Path("a.json").read_text())
    assert (kept(), written["options"]["options"]) == ([], {"temperature": 0.5})
    assert written["pair"]["target"].startswith("target@")
