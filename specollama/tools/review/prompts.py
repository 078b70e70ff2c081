"""Prompts of a batch: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from specollama.backends.ollama.schema import Message
from specollama.config.schema import OptionsTable, Table, table_error
from specollama.config.validation import ConfigLocation, validate_table
from specollama.errors import UsageError, one_line
from specollama.tools.review.hash_chain import hash_of


@dataclass(frozen=True, slots=True)
class BatchItem:
    """An item before it is answered. `options`: Ollama's, over the pair's own."""

    id: str
    messages: Sequence[Message]
    options: dict[str, Any]
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The items of a file, in its order, and the SHA-256 of the file."""

    name: str
    sha256: str
    items: Sequence[BatchItem]


class _Said(Table):
    key_word: ClassVar[str] = "key"
    role: str = Field(examples=['"user"'])
    content: str = Field(examples=['"Why is the sky blue?"'])
    images: list[str] | None = None


class _Prompt(Table):
    """A line: `prompt`, or else `messages`. Without an id it is called by the number of its line."""

    id: str | int | None = None
    prompt: str | None = None
    messages: list[_Said] | None = None
    options: OptionsTable = OptionsTable()
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_said(self) -> Self:
        if self.id == "":
            raise table_error("must not be empty", "id")
        if (self.prompt is None) == (self.messages is None):
            raise table_error("give either prompt or messages", "prompt")
        said = self.messages if self.messages is not None else [_Said(role="user", content=self.prompt or "")]
        if not any(message.role == "user" and (message.content.strip() or message.images) for message in said):
            raise table_error("the user says nothing in it", "prompt" if self.messages is None else "messages")
        return self


def load(path: Path) -> PromptFile:
    """The prompts of a JSONL file: `{"id", "prompt" | "messages", "options", "metadata"}` a line.

    Raises UsageError naming the file, the line and the key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(one_line(f"{path}: {error.strerror or error}")) from error
    numbered = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    items, seen = list[BatchItem](), dict[str, int]()
    for number, line in numbered:
        item = _item(line, number, path)
        if item.id in seen:
            raise UsageError(one_line(f"{path}, line {number}: the id {item.id} is line {seen[item.id]}'s already"))
        seen[item.id] = number
        items.append(item)
    if not items:
        raise UsageError(f"{path}: no prompts in it")
    return PromptFile(str(path), hash_of(content), items)


def _item(line: bytes, number: int, path: Path) -> BatchItem:
    place = ConfigLocation(Path(f"{path}, line {number}"))
    try:
        body = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair can be written, but is no text
    except (ValueError, RecursionError) as error:
        raise UsageError(one_line(f"{place}: not JSON in UTF-8: {error}")) from error
    if not isinstance(body, dict):
        raise UsageError(f"{place}: must be an object, as " + '{"id": "a", "prompt": "Why is the sky blue?"}')
    read = validate_table(_Prompt, body, place)
    said = read.messages if read.messages is not None else [_Said(role="user", content=read.prompt or "")]
    messages = [Message.model_validate(message.model_dump()) for message in said]
    id = str(number) if read.id is None else one_line(str(read.id))
    return BatchItem(id, messages, read.options.model_dump(exclude_none=True), dict(read.metadata))
