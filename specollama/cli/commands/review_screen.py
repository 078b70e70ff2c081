"""View of an item for its reviewer. Unprintable characters appear as escapes: they hide no text, steer no terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from specollama.backends.ollama.schema import Message
from specollama.cli.terminal.output import count_text
from specollama.tools.review.log_entries import ItemAnswered, Piece
from specollama.tools.review.state import ReviewItem, RunState

KEYS = {
    "a": "approve",
    "r": "reject",
    "e": "edit",
    "g": "regenerate",
    "p": "regenerate plain",
    "s": "skip",
    "q": "quit",
}
_MARK = "bold underline yellow"
_LISTED = 5  # low-confidence places that are written out


def printable(text: str) -> str:
    """The text with what isn't printable, line ends and tabs aside, as escapes."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def screen(state: RunState, item: ReviewItem, place: str, mark_below: float) -> RenderableType:
    """`place`: which of how many it is. `mark_below`: the probability below which a token is marked."""
    assert item.answer is not None
    return Group(
        Rule(Text(printable(f"{item.id} · {place}"), style="bold"), style="dim"),
        *(_message(Message.model_validate(message)) for message in item.answer.messages),
        *_metadata(item.answer),
        *_reply(item, mark_below),
        Text(printable(_figures(item, item.answer)), style="dim"),
        *_decisions(state, item),
    )


def keys() -> Text:
    """The available keys."""
    return Text("  ").join(Text.assemble((key, "bold cyan"), " ", (what, "")) for key, what in KEYS.items())


def _message(message: Message) -> RenderableType:
    images = f" (and {len(message.images)} images)" if message.images else ""
    return Padding(Text(f"{printable(message.role)}: {printable(message.content)}{images}", style="dim"), (0, 0, 1, 0))


def _metadata(answer: ItemAnswered) -> Iterator[RenderableType]:
    if answer.metadata:
        yield Text(
            printable(", ".join(f"{key}: {value}" for key, value in answer.metadata.items())), style="dim italic"
        )


def _reply(item: ReviewItem, mark_below: float) -> Iterator[RenderableType]:
    assert item.answer is not None
    if item.answer.thinking:
        yield Text(
            f"thought {count_text(len(item.answer.thinking.split()), 'word')} first, which don't go out", style="dim"
        )
    if item.edits:
        yield Padding(_difference(item.edits[-1].difference), (0, 0, 1, 0))
        yield Padding(Text(printable(item.text) or "(empty)"), (0, 0, 1, 0))
        yield Text("edited: the marks of confidence were the reply's, and are left out", style="dim")
        return
    yield Padding(marked(item.answer.pieces, mark_below) if item.text else Text("(empty)"), (0, 0, 1, 0))
    yield Text(printable(confidence(item.answer, mark_below)), style="dim")


def marked(pieces: Sequence[Piece], mark_below: float) -> Text:
    """The reply with its low-confidence places marked; the space before a word isn't."""
    shown = Text()
    for piece in pieces:
        text = printable(piece.text)
        space = len(text) - len(text.lstrip(" "))
        shown.append(text[:space])
        shown.append(text[space:], _MARK if _low(piece, mark_below) else "")
    return shown


def confidence(answer: ItemAnswered, mark_below: float) -> str:
    """Which places are marked, and of how much of the reply nothing is known."""
    if not answer.pieces:
        return "low-confidence places: none, the reply is empty"
    known = [piece for piece in answer.pieces if piece.logprob is not None]
    low = sorted((piece for piece in known if _low(piece, mark_below)), key=lambda piece: piece.logprob or 0.0)
    unknown = len(answer.pieces) - len(known)
    route = answer.stats.get("route", "")
    if not known:
        return f"low-confidence places: not known (the route {route} told no probabilities here)"
    places = ", ".join(map(_place, low[:_LISTED])) + (", ..." if len(low) > _LISTED else "")
    words = f"{count_text(len(low), 'place')} below {mark_below:.0%}{': ' + places if places else ''}"
    return words + (f"; not known for {unknown} of {len(answer.pieces)} (route {route})" if unknown else "")


def _low(piece: Piece, mark_below: float) -> bool:
    return piece.logprob is not None and math.exp(piece.logprob) < mark_below


def _place(piece: Piece) -> str:
    other = f" (or {piece.other[0]!r} {math.exp(piece.other[1]):.0%})" if piece.other else ""
    return f"{piece.text!r} {math.exp(piece.logprob or 0.0):.0%}{other}"


def _figures(item: ReviewItem, answer: ItemAnswered) -> str:
    stats = answer.stats
    rate, speed, reason = stats.get("acceptance_rate"), stats.get("tokens_per_second"), stats.get("reason")
    parts = [
        f"{stats.get('route')}" + (f" ({reason})" if reason else ""),
        f"{stats.get('eval_count')} tokens" + (", cut off by num_predict" if answer.done_reason == "length" else ""),
        "" if rate is None else f"{rate:.0%} accepted",
        "" if speed is None else f"{speed:.1f} tok/s",
        f"attempt {answer.attempt}",
        "" if answer.seed is None else f"seed {answer.seed}",
        f"sha256 {item.digest[:12]}",
    ]
    return " · ".join(part for part in parts if part)


def _decisions(state: RunState, item: ReviewItem) -> Iterator[RenderableType]:
    if item.approvals:
        names = ", ".join(item.approvals.values())
        yield Text(printable(f"approved by {names} ({len(item.approvals)} of {state.quorum})"), style="green")
    for name, reason in item.rejections.values():
        yield Text(printable(f"rejected by {name}: {reason}"), style="red")


def _difference(lines: str) -> Text:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    shown = [Text(printable(line), style=styles.get(line[:1], "dim")) for line in lines.split("\n")[2:]]
    return Text("\n").join(shown)
