"""A database of conversations in which something was changed: one line, and the other conversations stay usable."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from specollama.errors import RunError
from specollama.pairs.conversation import ChatHistory, ChatTurn
from specollama.pairs.history_store import ConversationStore, SavedConversation


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    """Two conversations, of which the first has a name."""
    store = ConversationStore(tmp_path / "conversations.sqlite3")
    turns = [ChatTurn("user", "Hi."), ChatTurn("assistant", "Hello.", stats={"route": "local"})]
    store.save(SavedConversation(ChatHistory("Be brief.", turns), {"pair": "coder"}, name="tale"))
    store.save(SavedConversation(ChatHistory(None, list(turns))))
    return store


@pytest.mark.parametrize("value", ["{", "[" * 100_000, "7", "null", b"\xff", 7, "NaN"])
@pytest.mark.parametrize("column", ["pair", "options", "images", "stats"])
def test_bad_json_in_a_column_is_one_line_that_names_it(
    store: ConversationStore, column: str, value: str | bytes | int
) -> None:
    damage(store, column, value)
    with pytest.raises(RunError) as fault:
        store.load("tale")
    assert str(fault.value) == (
        f"{store.file}: conversation tale is damaged ({column} isn't what was written); "
        "`specollama chats delete tale` deletes it"
    )


@pytest.mark.parametrize(
    ("column", "value"), [("content", b"x"), ("system", b"\xff"), ("images", "[7]"), ("role", b"")]
)
def test_a_text_that_is_none_is_one_line(store: ConversationStore, column: str, value: object) -> None:
    damage(store, column, value)
    with pytest.raises(RunError, match=rf"damaged \({column} isn't"):
        store.load("tale")


def test_the_others_are_listed_and_opened_and_the_damaged_one_can_be_deleted(store: ConversationStore) -> None:
    damage(store, "pair", "{")
    assert [(each.id, each.pair) for each in store.summaries()] == [(2, "the default pair"), (1, "(damaged)")]
    assert store.load("2").history.turns[0].content == "Hi."
    assert store.delete("tale") == "Hi."
    assert [each.id for each in store.summaries()] == [2]


def damage(store: ConversationStore, column: str, value: object) -> None:
    table, key = ("conversations", "id") if column in ("pair", "options", "system") else ("turns", "conversation")
    place = " AND place = 1" if table == "turns" else ""
    with closing(sqlite3.connect(store.file)) as db, db:
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = 1{place}", (value,))
