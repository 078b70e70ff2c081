"""Conversations, and what is kept of them."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specollama.cli import app
from specollama.errors import RunError, UsageError
from specollama.pairs.conversation import ChatHistory, ChatTurn
from specollama.pairs.history_store import (
    ConversationStore,
    SavedConversation,
    as_markdown,
    as_object,
    export_conversation,
)
from specollama.pairs.trace.recorder import last_trace_file


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """New directories of the user's, by the variables that name them."""
    names = ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    return {name: str(tmp_path / name.lower()) for name in names}


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "data" / "conversations.sqlite3")


def talk(*said: str, system: str | None = None) -> ChatHistory:
    return ChatHistory(
        system, [ChatTurn("user" if place % 2 == 0 else "assistant", text) for place, text in enumerate(said)]
    )


def test_a_conversation_comes_back_as_it_was(store: ConversationStore) -> None:
    turns = [
        ChatTurn("user", "Which colour?", ("cmVk",)),
        ChatTurn("assistant", "Red.", thinking="It looks red.", stats={"route": "local", "accepted": 3}),
        ChatTurn("user", "And this one?"),
        ChatTurn("assistant", "Gre", stopped=True),
    ]
    kept = store.save(
        SavedConversation(
            ChatHistory("Be brief.", turns), {"pair": "coder"}, {"route": "local", "options": {"seed": 7}}
        )
    )
    assert store.load(str(kept.id)) == kept
    assert store.last() == kept


def test_it_is_found_by_name_by_number_and_by_what_was_said(store: ConversationStore) -> None:
    tale = store.save(SavedConversation(talk("Tell me a tale.", "There was 100 % fog."), name="fog"))
    store.save(SavedConversation(talk("Add 2 and 2.", "4")))
    assert store.load("fog").id == store.load(str(tale.id)).id == tale.id
    assert [each.title for each in store.summaries()] == ["Add 2 and 2.", "Tell me a tale."]
    assert [each.name for each in store.summaries("00 % F")] == ["fog"]
    assert store.summaries("100_%") == []
    for key in ("tale", "9" * 30):
        with pytest.raises(UsageError, match=f"no conversation is called {key}, or has that number"):
            store.load(key)


def test_the_last_one_is_the_last_one_though_another_is_called_by_its_number(store: ConversationStore) -> None:
    store.save(SavedConversation(talk("a", "b"), name="2"))
    last = store.save(SavedConversation(talk("c", "d")))
    assert (last.id, store.last()) == (2, last)


def test_it_is_one_conversation_however_often_it_is_kept(store: ConversationStore) -> None:
    kept = store.save(SavedConversation(talk("a", "b")))
    kept.history.turns += [ChatTurn("user", "c"), ChatTurn("assistant", "d")]
    kept = store.save(kept)
    kept.history.undo()
    again = store.save(kept)
    assert again.id == kept.id
    assert [turn.content for turn in store.load(str(kept.id)).history.turns] == ["a", "b"]
    assert len(store.summaries()) == 1


def test_two_chats_that_go_on_with_one_conversation_lose_nothing_of_either(store: ConversationStore) -> None:
    kept = store.save(SavedConversation(talk("a", "b"), name="shared"))
    ours, theirs = store.load("shared"), store.load("shared")
    theirs.history.turns += [ChatTurn("user", "theirs")]
    ours.history.turns += [ChatTurn("user", "ours")]
    assert store.save(theirs).id == kept.id
    beside = store.save(ours)
    assert (beside.id, beside.name) != (kept.id, "shared")
    assert [store.load(str(id_)).history.turns[-1].content for id_ in (kept.id, beside.id)] == ["theirs", "ours"]


def test_a_conversation_that_got_the_number_of_a_deleted_one_is_not_overwritten(store: ConversationStore) -> None:
    ours = store.save(SavedConversation(talk("ours", "b")))
    store.delete(str(ours.id))
    theirs = store.save(SavedConversation(talk("theirs", "d")))
    assert (theirs.id, theirs.revision) == (ours.id, ours.revision)
    store.save(ours)
    assert sorted(each.title for each in store.summaries()) == ["ours", "theirs"]


def test_what_is_kept_beside_another_has_the_name_that_was_asked_for(store: ConversationStore) -> None:
    store.save(SavedConversation(talk("a", "b"), name="shared"))
    ours, theirs = store.load("shared"), store.load("shared")
    store.save(theirs)
    beside = store.save(replace(ours, name="ours"))
    assert (store.load("ours"), store.load("shared").id) == (beside, theirs.id)


def test_a_name_is_one_conversations(store: ConversationStore) -> None:
    store.save(SavedConversation(talk("a", "b"), name="x"))
    other = store.save(SavedConversation(talk("c", "d")))
    with pytest.raises(UsageError, match="another conversation is called x"):
        store.save(replace(other, name="x"))


def test_what_is_deleted_is_gone_with_all_that_was_said(store: ConversationStore) -> None:
    kept = store.save(SavedConversation(talk("a", "b")))
    store.delete(str(kept.id))
    with sqlite3.connect(store.file) as db:
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (0,)
    db.close()


def test_nobody_else_can_read_it(store: ConversationStore) -> None:
    store.save(SavedConversation(talk("a", "b")))
    assert store.file.stat().st_mode & 0o077 == 0
    assert store.file.parent.stat().st_mode & 0o077 == 0


def test_a_file_that_is_none_of_ours_is_one_line_and_stays(store: ConversationStore) -> None:
    store.file.parent.mkdir()
    store.file.write_text("not a database, and long enough to be looked at" * 9)
    with pytest.raises(RunError, match=r"conversations.sqlite3: conversations can't be kept there: .*move it away"):
        store.summaries()
    assert store.file.read_text().startswith("not a database")


def test_a_file_that_can_not_be_used_at_the_moment_is_not_to_be_moved_away(store: ConversationStore) -> None:
    store.file.mkdir(parents=True)
    with pytest.raises(RunError, match=r"conversations.sqlite3: .*: Is a directory; use --no-history$"):
        store.summaries()
    store.file.rmdir()
    store.save(SavedConversation(talk("a", "b")))
    with sqlite3.connect(store.file) as db:
        db.execute("DROP TABLE turns")  # an operation that fails, as one does while another program writes
    db.close()
    with pytest.raises(RunError, match=r"conversations.sqlite3: .*: no such table: .*; use --no-history$") as fault:
        store.summaries()
    assert "move it away" not in str(fault.value)


def test_a_later_versions_file_is_left_alone(store: ConversationStore) -> None:
    store.save(SavedConversation(talk("a", "b")))
    with sqlite3.connect(store.file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RunError, match="written by a later specollama"):
        store.summaries()


def test_it_is_exported_as_json_and_as_markdown(store: ConversationStore, tmp_path: Path) -> None:
    stats = {"route": "local", "acceptance_rate": 0.75}
    turns = [ChatTurn("user", "Hi.", ("cmVk",)), ChatTurn("assistant", "*Hello.*", stats=stats, stopped=True)]
    kept = store.save(SavedConversation(ChatHistory("Be kind.", turns), {"target": "t", "draft": "d"}))
    export_conversation(kept, tmp_path / "a.json", lambda _: False, force="--force")
    assert json.loads((tmp_path / "a.json").read_text()) == as_object(kept)
    assert (tmp_path / "a.json").stat().st_mode & 0o077 == 0
    assert as_object(kept)["turns"][1] == {"role": "assistant", "content": "*Hello.*", "stopped": True, "stats": stats}
    text = as_markdown(kept)
    for part in (
        "# Hi.",
        "t + d",
        "## System\n\nBe kind.",
        "## User (1 images)",
        "*Hello.*",
        "*(stopped)*",
        "75% accepted",
    ):
        assert part in text
    none = ChatTurn("assistant", "Bye.", stats={"route": "local", "acceptance_rate": 0.0})
    assert "*local, 0% accepted*" in as_markdown(SavedConversation(ChatHistory(turns=[none])))
    with pytest.raises(UsageError, match=r"a.txt: must end in .json or .md"):
        export_conversation(kept, tmp_path / "a.txt", lambda _: False, force="--force")


def test_kept_conversations_are_listed_found_exported_and_deleted(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", places["XDG_DATA_HOME"])
    monkeypatch.setenv("XDG_STATE_HOME", places["XDG_STATE_HOME"])
    monkeypatch.chdir(tmp_path)

    def chats(*words: str) -> str:
        return CliRunner().invoke(app, ["chats", *words]).stdout

    assert chats("list") == "no conversation is kept yet\n"
    ConversationStore().save(SavedConversation(talk("Tell a \x1b[2Jtale.", "Fog."), {"pair": "coder"}, name="fog"))
    ConversationStore().save(SavedConversation(talk("Add 2 and 2.", "4")))
    assert re.fullmatch(r"2  \S+ \S+  -  Add 2 and 2\.\n1  \S+ \S+  fog  Tell a \\x1b\[2Jtale\.\n", chats("list"))
    assert [each["id"] for each in json.loads(chats("list", "Fog", "--json"))] == [1]
    assert chats("list", "sun") == "no conversation has 'sun' in it\n"
    assert chats("export", "fog").endswith("## Assistant\n\nFog.\n")
    assert json.loads(chats("export", "fog", "--json"))["pair"] == {"pair": "coder"}
    assert "# Tell a \x1b[2Jtale." in chats("export", "fog")
    with monkeypatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")
        assert "# Tell a ␛[2Jtale." in chats("export", "fog")
    steering = ConversationStore().save(SavedConversation(talk("Hi.\x9b2J", "Ho.")))
    for words in (["list", "Hi", "--json"], ["export", str(steering.id), "--json"]):
        assert "Hi.\\u009b2J" in chats(*words)
    chats("delete", str(steering.id))
    last_trace_file().parent.mkdir(parents=True)
    last_trace_file().write_text("Fog.")
    chats("delete", "fog")
    assert not last_trace_file().exists(), "it may be of what was deleted"
    assert [each["id"] for each in json.loads(chats("list", "--json"))] == [2]


def test_a_conversation_that_goes_on_steers_no_terminal_and_ends_for_no_wrong_file(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", places["XDG_DATA_HOME"])
    monkeypatch.chdir(tmp_path)
    nowhere = {"target": "t@http://127.0.0.1:9", "draft": "d@http://127.0.0.1:9"}
    ConversationStore().save(SavedConversation(talk("Hi.", "\x1b[2JHello."), nowhere))
    shown = CliRunner().invoke(app, ["chat", "-c"], input="/export ~nobody.here/a.md\n/export a.md\n")
    assert shown.exit_code == 0
    assert shown.stderr.splitlines() == [
        *("number 1: Hi. (2 turns)", "it ended: ...␛[2JHello."),
        *("~nobody.here/a.md: No such file or directory", "written to a.md"),
    ]


HELD = {"target": "t@http://127.0.0.1:9", "draft": "d@http://127.0.0.1:9"}
OPTIONS = {"route": "lanes", "lookahead": 3, "options": {"temperature": 0.5, "num_ctx": 512}}


def shown_pair(*arguments: str, typed: str = "") -> dict[str, str]:
    """What `/show` says of the pair and its parameters, when a chat was begun so."""
    shown = CliRunner().invoke(app, ["chat", *arguments], input=f"{typed}/show pair\n/show parameters\n").stderr
    return dict(re.findall(r"^(\w+) +(.*)$", shown, re.MULTILINE))


@pytest.fixture
def tale(places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ConversationStore:
    """Where one conversation is kept, which was held with settings of its own."""
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    monkeypatch.chdir(tmp_path)
    ConversationStore().save(SavedConversation(talk("Hi.", "Hello."), HELD, OPTIONS, name="tale"))
    return ConversationStore()


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        *((["-c"], ""), (["--load", "tale"], "")),
        ([*("--target", HELD["target"], "--draft", HELD["draft"])], "/set parameter temperature 1\n/load tale\n"),
        (["--target", "x@http://127.0.0.1:9", "--draft", "y@http://127.0.0.1:9", "--route", "plain"], "/load tale\n"),
    ],
)
def test_a_conversation_goes_on_with_its_own_settings_however_it_is_taken_up(
    tale: ConversationStore, arguments: list[str], typed: str
) -> None:
    shown = shown_pair(*arguments, "--seed", "3", typed=typed)
    wanted = {"route": "lanes", "lookahead": "3", "temperature": "0.5", "num_ctx": "512", "seed": "3"}
    assert {name: shown.get(name) for name in wanted} == wanted
    assert shown["target"].startswith("t")


def test_another_pair_is_not_given_the_route_and_lookahead_of_the_one_before(tale: ConversationStore) -> None:
    shown = shown_pair("-c", "--target", "x@http://127.0.0.1:9", "--draft", "y@http://127.0.0.1:9")
    assert (shown["target"][0], shown["route"], shown["lookahead"]) == ("x", "auto", "auto")
    assert shown["temperature"] == "0.5"


def test_what_was_held_with_a_pair_that_is_gone_goes_on_with_the_one_that_is_open(tale: ConversationStore) -> None:
    tale.save(SavedConversation(talk("a", "b"), {"pair": "gone"}, OPTIONS, name="lost"))
    shown = shown_pair("--load", "tale", "--route", "plain", typed="/load lost\n")
    assert (shown["target"][0], shown["route"], shown["lookahead"]) == ("t", "plain", "auto")
    assert shown["temperature"] == "0.5"


def test_save_keeps_the_settings_too(tale: ConversationStore) -> None:
    typed = "/set parameter temperature 0.25\n/save copy\n"
    shown_pair("--load", "tale", "--no-history", typed=typed)
    assert tale.load("copy").options["options"] == {"temperature": 0.25, "num_ctx": 512}


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        *(("Hi.\n", 1), ("Hi.\n/stats\n/bye\n", 1), ("/stats\n", 0), ("/load nowhere\n", 0)),
        ("What is ./big.png?\n", 1),
    ],
)
def test_a_piped_chat_of_which_a_message_failed_ends_with_1(
    tale: ConversationStore, tmp_path: Path, typed: str, code: int
) -> None:
    with (tmp_path / "big.png").open("wb") as file:
        file.truncate(101 * 2**20)
    shown = CliRunner().invoke(app, ["chat", "--load", "tale", "--no-history"], input=typed)
    assert shown.exit_code == code
    assert ("big.png: larger than 100 MB\n" in shown.stderr) == ("big.png" in typed)


# the conversation itself


def test_a_question_without_an_answer_is_forgotten_and_its_images_wait() -> None:
    conversation = ChatHistory(images=["cmVk"])
    conversation.add_question("Which colour?", ["Ymx1ZQ=="])
    assert conversation.messages[-1].images == ["cmVk", "Ymx1ZQ=="]
    assert not conversation.add_answer(ChatTurn("assistant", ""))
    assert (conversation.turns, conversation.images) == ([], ["cmVk", "Ymx1ZQ=="])


def test_undo_takes_a_question_with_its_answer_back() -> None:
    conversation = talk("a", "b", "c", "d", system="s")
    question = conversation.undo()
    assert question is not None
    assert question.content == "c"
    assert [message.content for message in conversation.messages] == ["s", "a", "b"]
    assert conversation.undo() is not None
    assert conversation.undo() is None


def test_thinking_is_not_sent_again() -> None:
    sent = ChatTurn("assistant", "Red.", thinking="Hm.").message()
    assert sent.body() == {"role": "assistant", "content": "Red."}
