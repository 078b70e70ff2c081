"""The lines of a trace: one JSON object each, told apart by `type`.

A reply is one `reply`, then `status`, `round` and `token` as they came, and one `end`. The lines of a reply follow each
other, however many replies a file has. All durations and times are nanoseconds, times (`at`) since the reply was asked
for. Texts are there only where they were asked for (`texts` of `reply`); without them nothing of what was said or
written can be learnt from a trace but how long it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from specollama.errors import UsageError, one_line


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ReplyLine(Line):
    """A reply was asked for."""

    type: Literal["reply"] = "reply"
    version: Literal[1] = 1
    id: str
    """Of this reply: hexadecimal, random."""
    time: str
    """When it was asked for: ISO 8601, UTC."""
    label: str = ""
    """Which one of several it is: a bench's side and prompt, say."""
    pair: str | None = None
    """Its name in the configuration."""
    target: str = ""
    drafts: list[str] = []
    texts: bool = False
    """Whether the lines carry texts."""


class StatusLine(Line):
    """Whether it is speculated, and how or why not."""

    type: Literal["status"] = "status"
    at: int
    speculation: bool
    detail: str


class DraftedToken(Line):
    """One drafted token. `confidence`: how sure the drafter was of its best token there, 0 to 1."""

    text: str | None = None
    confidence: float | None = None


class RoundLine(Line):
    """A round was judged. `tested` and `accepted` count drafted tokens; `sent` is how many of them were scored."""

    type: Literal["round"] = "round"
    at: int
    """When the verdict was there; scoring ends here, and drafting ended where scoring began."""
    round: int
    """The first is 1; 0 where nothing was drafted."""
    source: str = ""
    """The drafter."""
    drafting: int
    scoring: int
    drafted: list[DraftedToken] = []
    sent: int = 0
    tested: int = 0
    accepted: int = 0
    emitted: int = 0
    """Tokens that it brought: accepted, recovered and bonus."""


class Alternative(Line):
    """One of the target's most probable tokens. `logprob`: natural logarithm, before temperature and cuts."""

    text: str | None = None
    logprob: float | None = None


class TokenLine(Line):
    """A piece of the reply was shown: mostly one token's text."""

    type: Literal["token"] = "token"
    at: int
    round: int = 0
    """The round that it came of; 0: none."""
    origin: Literal["accepted", "recovered", "bonus", "plain"]
    length: int
    """Characters."""
    text: str | None = None
    thinking: bool = False
    confidence: float | None = None
    """How sure the drafter was at this place; none where nothing was drafted there."""
    logprob: float | None = None
    """The target's own, of this token."""
    top: list[Alternative] = []
    """The target's most probable tokens at this place, so far as they were told."""


class EndLine(Line):
    """The reply is over. `reason` none: it broke off, by `fault` or because it was stopped."""

    type: Literal["end"] = "end"
    at: int
    reason: Literal["stop", "length"] | None = None
    fault: str = ""
    stats: dict[str, Any] = {}
    """The counters, as `specollama run --json` gives them last."""


AnyLine = Annotated[ReplyLine | StatusLine | RoundLine | TokenLine | EndLine, Field(discriminator="type")]
_READER: TypeAdapter[AnyLine] = TypeAdapter(AnyLine)


def line_schema() -> dict[str, Any]:
    """The JSON schema of one line."""
    return _READER.json_schema()


class TracedReply(BaseModel):
    """One reply's lines, sorted by kind."""

    head: ReplyLine
    statuses: list[StatusLine] = []
    rounds: list[RoundLine] = []
    tokens: list[TokenLine] = []
    end: EndLine | None = None

    @property
    def duration(self) -> int:
        """Nanoseconds, as far as it is known."""
        times = [line.at for line in self.rounds] + [line.at for line in self.tokens]
        return max([*times, self.end.at if self.end else 0])


def read_trace(file: Path, told: Callable[[str], None] = lambda fault: None) -> list[TracedReply]:
    """All replies of a trace that can be read. Of a line that is none `told` is called with where it is and why.

    Such a line is left by a process that was killed while it wrote: what belongs to it, up to the next line of type
    `reply`, is left out. Raises UsageError naming the file where no reply can be read, and the first line that is none.
    """
    faults: list[str] = []
    replies = group_replies(_lines(file, faults.append))
    if not replies:
        nothing = one_line(f"{file}: there is no whole reply in it; a trace begins with a line of type reply")
        raise UsageError(faults[0] if faults else nothing)
    for fault in faults:
        told(f"{fault}; left out, up to the next reply")
    return replies


def group_replies(lines: Iterable[Line]) -> list[TracedReply]:
    """Lines as replies; those before the first reply begins are left out."""
    replies: list[TracedReply] = []
    for line in lines:
        if isinstance(line, ReplyLine):
            replies.append(TracedReply(head=line))
        elif replies:
            _sort(line, replies[-1])
    return replies


def _sort(line: Line, reply: TracedReply) -> None:
    if isinstance(line, EndLine):
        reply.end = line
    elif isinstance(line, TokenLine):
        reply.tokens.append(line)
    elif isinstance(line, RoundLine):
        reply.rounds.append(line)
    elif isinstance(line, StatusLine):
        reply.statuses.append(line)


def _lines(file: Path, told: Callable[[str], None]) -> Iterator[AnyLine]:
    """The lines that can be read; after one that can't, those from the next reply on."""
    try:
        texts = file.read_bytes().split(b"\n")  # a text may have other line ends in it
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from None
    torn = False
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = _READER.validate_json(text)
        except ValidationError as error:
            if not torn:
                told(one_line(f"{file}, line {number}: not a line of a trace: {_why(error)}"))
            torn = True
        else:
            torn = torn and not isinstance(line, ReplyLine)
            if not torn:
                yield line


def _why(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where + ': ' if where else ''}{fault['msg']}"
