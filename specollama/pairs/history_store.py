"""Saved conversations: an SQLite file in the user's data directory, readable by the user alone."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from specollama.config import paths, private_file
from specollama.errors import RunError, UsageError, one_line
from specollama.pairs.conversation import ChatHistory, ChatTurn

VERSION = 1
_T = TypeVar("_T", dict[str, Any], list[Any])
_LONGEST = 18  # digits of a number that SQLite can hold
_SCHEMA = """
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE, title TEXT NOT NULL, system TEXT, pair TEXT NOT NULL,
    options TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, revision INTEGER NOT NULL
);
CREATE TABLE turns (
    conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE, place INTEGER NOT NULL,
    role TEXT NOT NULL, content TEXT NOT NULL, thinking TEXT NOT NULL, images TEXT NOT NULL, stats TEXT,
    stopped INTEGER NOT NULL, PRIMARY KEY (conversation, place)
);
"""


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A saved conversation in a list. `updated`: ISO 8601, UTC."""

    id: int
    name: str | None
    title: str
    pair: str
    updated: str
    turns: int


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """A conversation with what it was held with: `pair` as given on the command line, `options` as they were set.

    `revision` counts how often it was kept; None: not yet.
    """

    history: ChatHistory
    pair: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    id: int | None = None
    revision: int | None = None
    created: str = ""


class ConversationStore:
    """The kept conversations. Raises RunError naming the file where it can't be read or written."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or paths.data_folder() / "conversations.sqlite3"

    def save(self, kept: SavedConversation) -> SavedConversation:
        """Keep it as it is now. What another chat kept of it meanwhile stays: it is kept beside it then, as a new one.

        Raises UsageError when another conversation has its name.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._open() as db:
            holder = self._holder(db, kept.name)
            if holder not in (None, kept.id):
                raise UsageError(f"another conversation is called {kept.name}")
            values = (
                kept.name,
                kept.history.title,
                kept.history.system,
                json.dumps(kept.pair),
                json.dumps(kept.options),
                now,
            )
            done = None
            if kept.id is not None:
                done = db.execute(
                    "UPDATE conversations SET name = ?, title = ?, system = ?, pair = ?, options = ?, updated = ?, "
                    "revision = revision + 1 WHERE id = ? AND revision = ? AND created = ?",
                    (*values, kept.id, kept.revision, kept.created),  # a number may be another one's after a deletion
                )
            if done is None or not done.rowcount:
                name = kept.name if holder is None else None  # else the one that stays has it
                inserted = db.execute(
                    "INSERT INTO conversations (name, title, system, pair, options, updated, created, revision) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
                    (name, *values[1:], now),
                )
                kept = replace(kept, name=name, id=inserted.lastrowid, revision=1, created=now)
            else:
                kept = replace(kept, revision=(kept.revision or 0) + 1)
            db.execute("DELETE FROM turns WHERE conversation = ?", (kept.id,))
            rows = [(kept.id, place, *_row(turn)) for place, turn in enumerate(kept.history.turns)]
            db.executemany("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return kept

    def load(self, key: str) -> SavedConversation:
        """By name or number. Raises UsageError where there is none."""
        with self._open() as db:
            return self._read(db, _find(db, key))

    def last(self) -> SavedConversation | None:
        """The conversation that was saved last."""
        with self._open() as db:
            found = db.execute("SELECT * FROM conversations ORDER BY updated DESC, id DESC LIMIT 1").fetchone()
            return None if found is None else self._read(db, found)

    def summaries(self, text: str = "") -> list[ConversationSummary]:
        """The latest first; with `text` those that have it in name, title, or in what was said."""
        pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        with self._open() as db:
            rows = db.execute(
                "SELECT c.id, c.name, c.title, c.pair, c.updated, count(t.place) AS turns "
                "FROM conversations c LEFT JOIN turns t ON t.conversation = c.id "
                "WHERE c.name LIKE ?1 ESCAPE '\\' OR c.title LIKE ?1 ESCAPE '\\' OR EXISTS "
                "(SELECT 1 FROM turns s WHERE s.conversation = c.id AND s.content LIKE ?1 ESCAPE '\\') "
                "GROUP BY c.id ORDER BY c.updated DESC, c.id DESC",
                (pattern,),
            ).fetchall()
        return [
            ConversationSummary(row["id"], row["name"], row["title"], _listed_pair(row), row["updated"], row["turns"])
            for row in rows
        ]

    def delete(self, key: str) -> str:
        """Delete a conversation, damaged or not. Returns its title. Raises UsageError where there is none."""
        with self._open() as db:
            found = _find(db, key)
            db.execute("DELETE FROM conversations WHERE id = ?", (found["id"],))
        return str(found["title"])

    def _read(self, db: sqlite3.Connection, row: sqlite3.Row) -> SavedConversation:
        try:
            return _kept(db, row)
        except _DamagedColumn as error:
            name = row["name"] or row["id"]
            raise RunError(
                one_line(
                    f"{self.file}: conversation {name} is damaged ({error} isn't what was written); "
                    f"`specollama chats delete {name}` deletes it"
                )
            ) from None

    def _holder(self, db: sqlite3.Connection, name: str | None) -> int | None:
        """The conversation that has the name."""
        found = db.execute("SELECT id FROM conversations WHERE name = ?", (name,)).fetchone()
        return None if found is None else int(found["id"])

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection within one transaction, which is undone when something is raised."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(self.file, timeout=5)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA foreign_keys = ON")
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    self._prepare(db)
                    yield db
        except (OSError, sqlite3.Error) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            anew = "move it away to begin anew, or " if type(error) is sqlite3.DatabaseError else ""  # it is none
            raise RunError(
                one_line(f"{self.file}: conversations can't be kept there: {why}; {anew}use --no-history")
            ) from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise RunError(f"{self.file}: written by a later specollama; use that one, or --no-history")
        if version == 0:
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")


def pair_text(pair: Mapping[str, str]) -> str:
    """The pair as it was given: its name, or target and draft."""
    named = pair.get("pair") or " + ".join(pair[key] for key in ("target", "draft") if key in pair)
    return named or "the default pair"


def _row(turn: ChatTurn) -> tuple[Any, ...]:
    stats = None if turn.stats is None else json.dumps(turn.stats)
    return turn.role, turn.content, turn.thinking, json.dumps(turn.images), stats, turn.stopped


class _DamagedColumn(Exception):
    """A column of the database doesn't hold what was written there; its text names the column."""


def _find(db: sqlite3.Connection, key: str) -> sqlite3.Row:
    """The row of a conversation, by name or number. Raises UsageError where there is none."""
    found = db.execute("SELECT * FROM conversations WHERE name = ?", (key,)).fetchone()
    if found is None and key.isascii() and key.isdigit() and len(key) <= _LONGEST:
        found = db.execute("SELECT * FROM conversations WHERE id = ?", (int(key),)).fetchone()
    if not isinstance(found, sqlite3.Row):
        raise UsageError(one_line(f"no conversation is called {key}, or has that number"))
    return found


def _kept(db: sqlite3.Connection, row: sqlite3.Row) -> SavedConversation:
    """Raises _DamagedColumn."""
    turns = db.execute("SELECT * FROM turns WHERE conversation = ? ORDER BY place", (row["id"],)).fetchall()
    system = None if row["system"] is None else _text(row, "system")
    return SavedConversation(
        history=ChatHistory(system, [_turn(turn) for turn in turns]),
        pair={name: str(value) for name, value in _json(row, "pair", dict).items()},
        options=_json(row, "options", dict),
        name=row["name"],
        id=row["id"],
        revision=row["revision"],
        created=row["created"],
    )


def _turn(row: sqlite3.Row) -> ChatTurn:
    stats = None if row["stats"] is None else _json(row, "stats", dict)
    images = _json(row, "images", list)
    if not all(isinstance(image, str) for image in images):
        raise _DamagedColumn("images")
    texts = {name: _text(row, name) for name in ("role", "content", "thinking")}
    return ChatTurn(texts["role"], texts["content"], tuple(images), texts["thinking"], stats, bool(row["stopped"]))


def _json(row: sqlite3.Row, column: str, kind: type[_T]) -> _T:
    try:
        value = json.loads(row[column])
    except (TypeError, ValueError, RecursionError):
        raise _DamagedColumn(column) from None
    if not isinstance(value, kind):
        raise _DamagedColumn(column)
    return value


def _text(row: sqlite3.Row, column: str) -> str:
    if not isinstance(row[column], str):
        raise _DamagedColumn(column)
    return str(row[column])


def _listed_pair(row: sqlite3.Row) -> str:
    """The pair in a list: a damaged conversation is listed, too."""
    try:
        return pair_text({name: str(value) for name, value in _json(row, "pair", dict).items()})
    except _DamagedColumn:
        return "(damaged)"


def as_object(kept: SavedConversation) -> dict[str, Any]:
    """A conversation as one JSON object."""
    with_images = [
        {
            "role": turn.role,
            "content": turn.content,
            **({"images": list(turn.images)} if turn.images else {}),
            **({"thinking": turn.thinking} if turn.thinking else {}),
            **({"stopped": True} if turn.stopped else {}),
            **({"stats": turn.stats} if turn.stats is not None else {}),
        }
        for turn in kept.history.turns
    ]
    head = {"id": kept.id, "name": kept.name, "title": kept.history.title, "created": kept.created}
    return {
        **head,
        "pair": dict(kept.pair),
        "options": dict(kept.options),
        "system": kept.history.system,
        "turns": with_images,
    }


def as_markdown(kept: SavedConversation) -> str:
    """A conversation to read."""
    lines = [f"# {kept.history.title or 'An empty conversation'}", ""]
    lines += [f"{pair_text(kept.pair)}{', ' + kept.created if kept.created else ''}", ""]
    if kept.history.system:
        lines += ["## System", "", kept.history.system, ""]
    for turn in kept.history.turns:
        images = f" ({len(turn.images)} images)" if turn.images else ""
        lines += [f"## {turn.role.capitalize()}{images}", "", turn.content, ""]
        if turn.stopped:
            lines += ["*(stopped)*", ""]
        stats = turn.stats or {}
        if (rate := stats.get("acceptance_rate")) is not None:
            lines += [f"*{stats['route']}, {rate:.0%} accepted*", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def export_conversation(kept: SavedConversation, file: Path, overwrite: private_file.Overwrite, *, force: str) -> None:
    """Write it as JSON or Markdown, by the file's ending. Raises UsageError for another one, or where it can't be.

    The other arguments are those of `private_file.write_new`.
    """
    if file.suffix not in (".json", ".md"):
        raise UsageError(one_line(f"{file}: must end in .json or .md"))
    text = (
        json.dumps(as_object(kept), ensure_ascii=False, indent=2) + "\n"
        if file.suffix == ".json"
        else as_markdown(kept)
    )
    try:
        private_file.write_new(file, text, overwrite, force=force)
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error
