"""Prompts of several categories, from a file or the built-in set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from specollama.errors import UsageError, one_line

BUILT_IN = "built-in"
"""Name of the built-in set, shown in place of a file name."""

_Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's messages, one a turn. `category`: the kind of text that they ask for."""

    id: str
    category: str
    turns: tuple[str, ...]


class _Line(BaseModel):
    """A line in Spec-Bench's schema; other keys, such as `reference`, are ignored."""

    model_config = ConfigDict(extra="ignore")

    question_id: int | str | None = None
    category: _Said = "all"
    turns: list[_Said] = Field(min_length=1)


def built_in() -> list[Prompt]:
    """Four prompts each of code, edit (copy-heavy), maths, summary of a long text, chat and translation."""
    text = (files("specollama.tools.bench") / "prompts.jsonl").read_text(encoding="utf-8")
    return _from_lines(text, BUILT_IN)


def load(path: Path) -> list[Prompt]:
    """The prompts of a file or folder.

    `*.jsonl`: an object a line, `{"question_id", "category", "turns": [...]}`; without an id it is called by the
    number of its line. Any other file: a prompt a line. A folder: each file in it is a prompt. Raises UsageError
    naming the file and, in a JSONL file, the line.
    """
    try:
        if path.is_dir():
            found = [_whole(file) for file in sorted(path.iterdir()) if file.is_file()]
            prompts = [prompt for prompt in found if prompt]
        else:
            text = path.read_text(encoding="utf-8-sig")
            prompts = _from_lines(text, str(path)) if path.suffix == ".jsonl" else _a_line_each(text)
    except OSError as error:
        raise UsageError(one_line(f"--prompts {path}: {error.strerror or error}")) from error
    except UnicodeDecodeError as error:
        raise UsageError(one_line(f"--prompts {path}: not UTF-8 (byte {error.start})")) from error
    if not prompts:
        raise UsageError(one_line(f"--prompts {path}: no prompts in it"))
    return prompts


def pick_evenly(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """The first `limit` prompts when one of each kind is taken in turn; in the order in which they were given."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.category, []).append(prompt)
    dealt = [prompt for turn in zip_longest(*kinds.values()) for prompt in turn if prompt is not None]
    chosen = {id(prompt) for prompt in dealt[:limit]}
    return [prompt for prompt in prompts if id(prompt) in chosen]


def _from_lines(text: str, name: str) -> list[Prompt]:
    # at \n alone: a prompt may hold U+2028, at which str.splitlines cuts too
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    prompts, seen = list[Prompt](), dict[str, int]()
    for number, line in numbered:
        prompt = _from_line(line, number, name)
        if prompt.id in seen:
            fault = f"the question_id {prompt.id} is line {seen[prompt.id]}'s already"
            raise UsageError(one_line(f"--prompts {name}, line {number}: {fault}"))
        seen[prompt.id] = number
        prompts.append(prompt)
    return prompts


def _from_line(line: str, number: int, name: str) -> Prompt:
    try:
        read = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        fault = one_line(f"{key + ': ' if key else ''}{first['msg']}")
        raise UsageError(one_line(f"--prompts {name}, line {number}: {fault}")) from error
    return Prompt(str(number if read.question_id in (None, "") else read.question_id), read.category, tuple(read.turns))


def _a_line_each(text: str) -> list[Prompt]:
    numbered = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    return [Prompt(str(number), "all", (line,)) for number, line in numbered if line]


def _whole(file: Path) -> Prompt | None:
    said = file.read_text(encoding="utf-8-sig").strip()
    return Prompt(file.name, "all", (said,)) if said else None
