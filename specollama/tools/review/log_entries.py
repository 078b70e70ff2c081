"""The entries of a run's log. The whole state of a run follows from them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PairCall(Entry):
    """How the command named the pair, so that it can be opened again."""

    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    flags: dict[str, Any] = {}


class RunOpened(Entry):
    """The first entry, but for a `LogRepaired`. `settings`: the pair's; `seed`: what those of the items come from."""

    kind: Literal["opened"] = "opened"
    version: str
    call: PairCall
    settings: dict[str, Any]
    prompts: str
    prompts_sha256: str
    items: tuple[str, ...]
    quorum: int = Field(ge=1)
    seed: int


class Piece(Entry):
    """A piece of a reply: a token mostly. `logprob` is the target's, of this token; None where it isn't known."""

    text: str
    origin: str
    logprob: float | None = None
    other: tuple[str, float] | None = None
    """The most probable other token, with its log-probability."""


class ItemAnswered(Entry):
    """A reply. `attempt`: 1, and one more each time that it was regenerated. `seed` None: fresh randomness."""

    kind: Literal["answered"] = "answered"
    id: str
    attempt: int
    messages: list[dict[str, Any]]
    """As Ollama's chat takes them."""
    options: dict[str, Any]
    metadata: dict[str, Any]
    seed: int | None
    text: str
    thinking: str
    done_reason: str
    pieces: tuple[Piece, ...]
    stats: dict[str, Any]
    target: str
    target_digest: str
    """As the target's server lists it; "" for a file."""
    prompt_digest: str
    digest: str


class ItemFailed(Entry):
    """No reply to an item, and why."""

    kind: Literal["failed"] = "failed"
    id: str
    error: str


class ItemApproved(Entry):
    kind: Literal["approved"] = "approved"
    id: str
    digest: str
    """Of the text that the reviewer saw; so in the next two."""


class ItemRejected(Entry):
    kind: Literal["rejected"] = "rejected"
    id: str
    digest: str
    reason: str


class ItemEdited(Entry):
    kind: Literal["edited"] = "edited"
    id: str
    digest: str
    text: str
    difference: str
    """From the text before, as a unified diff."""


class ItemSent(Entry):
    """An item on its way out, and the digest of the text that goes."""

    id: str
    digest: str


class ReleaseAnnounced(Entry):
    """Written before the output appears under its name. `sha256`: of the whole file; `draft`: its name until then."""

    kind: Literal["releasing"] = "releasing"
    file: str
    draft: str
    sha256: str
    items: tuple[ItemSent, ...]


class ReleaseDone(Entry):
    """What the last `releasing` announced is there, or was there, as a person says."""

    kind: Literal["released"] = "released"
    file: str


class ReleaseWithdrawn(Entry):
    """A person's word that what the last `releasing` announced never went out: its items may be released again."""

    kind: Literal["withdrawn"] = "withdrawn"
    file: str


class CommandStarted(Entry):
    """Written before an outbound command is run."""

    kind: Literal["running"] = "running"
    id: str
    digest: str
    command: tuple[str, ...]


class CommandEnded(Entry):
    """How an outbound command ended. `code` None: it never began, for the reason `error`."""

    kind: Literal["ran"] = "ran"
    id: str
    code: int | None
    error: str = ""
    stdout: str = ""
    """The end of it; so in the next."""
    stderr: str = ""


class CommandMarked(Entry):
    """A person's word on a command whose outcome isn't known, or that failed."""

    kind: Literal["marked"] = "marked"
    id: str
    sent: bool


class LogRepaired(Entry):
    """Bytes cut off the log: of an entry that a killed process hadn't finished, or those that a repair set aside."""

    kind: Literal["recovered"] = "recovered"
    cut: int


AnyEntry = Annotated[
    RunOpened
    | ItemAnswered
    | ItemFailed
    | ItemApproved
    | ItemRejected
    | ItemEdited
    | ReleaseAnnounced
    | ReleaseDone
    | ReleaseWithdrawn
    | CommandStarted
    | CommandEnded
    | CommandMarked
    | LogRepaired,
    Field(discriminator="kind"),
]


class LogLine(Entry):
    """A line of the log. `prev`: SHA-256 of the line before, without its line end; "" in the first."""

    n: int
    prev: str
    at: str
    """RFC 3339, UTC."""
    who: str
    entry: AnyEntry


def text_digest(text: str) -> str:
    """SHA-256 of a text, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
