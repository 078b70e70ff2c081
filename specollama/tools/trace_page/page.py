"""A reply as one HTML page: no resource from elsewhere, and nothing of the reply is ever markup or script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from specollama.pairs.trace.records import RoundLine, TokenLine, TracedReply
from specollama.spec_decode.events import decode_rate, first_burst

_HEIGHT, _BAR = 74, 26  # pixels: of the timeline, and of a block
_WIDTH, _ROUND_WIDTH = 1100, 12  # pixels: of the timeline at least, and of a round on average
_LEFT = 8
_TICKS = 10
_ORIGINS = ("accepted", "recovered", "bonus", "plain")


@dataclass(frozen=True, slots=True)
class RoundBlock:
    """A round on the time axis, in nanoseconds: waiting from `begin`, then drafting, then verifying until `end`."""

    begin: int
    drafting: int  # when it began
    scoring: int
    end: int

    @property
    def waiting(self) -> int:
        return self.drafting - self.begin


def round_blocks(rounds: list[RoundLine]) -> list[RoundBlock]:
    """The rounds over time. A gap between two rounds is the target decoding alone, or other work."""
    found, before = [], max(0, rounds[0].at - rounds[0].scoring - rounds[0].drafting) if rounds else 0
    for line in rounds:
        scoring = max(before, line.at - line.scoring)
        drafting = max(before, scoring - line.drafting)
        found.append(RoundBlock(before, drafting, scoring, max(line.at, scoring)))
        before = found[-1].end
    return found


def page(reply: TracedReply) -> str:
    """The page of one reply."""
    style, script = (
        files("specollama.tools.trace_page").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    axis = round_blocks(reply.rounds)
    parts = {
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "title": escape(f"Reply of {reply.head.pair or reply.head.target or 'a pair'}"),
        "subtitle": escape(" · ".join(_about(reply))),
        "status": escape("; ".join(_statuses(reply))),
        "totals": "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in _totals(reply, axis)
        ),
        "legend": " ".join(f'<span class="{origin}">{origin}</span>' for origin in _ORIGINS),
        "timeline": _timeline(reply, axis),
        "tokens": "".join(_token(number, line) for number, line in enumerate(reply.tokens)),
        "data": _data(reply, axis),
    }
    template = files("specollama.tools.trace_page").joinpath("page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)  # in one go: no text is searched


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and no script runs but the page's own."""
    return f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _about(reply: TracedReply) -> Iterator[str]:
    head = reply.head
    yield f"target {head.target}"
    if head.drafts:
        yield f"draft {', '.join(head.drafts)}"
    if head.label:
        yield head.label
    yield head.time
    if not head.texts:
        yield "texts weren't kept: each character is a dot"


def _statuses(reply: TracedReply) -> Iterator[str]:
    for line in reply.statuses:
        yield f"speculation: {'on' if line.speculation else 'off'} ({line.detail})"
    if reply.end is None:
        yield "the trace ends before the reply"
    elif reply.end.reason is None:
        yield f"broke off{': ' + reply.end.fault if reply.end.fault else ''}"


def _totals(reply: TracedReply, axis: list[RoundBlock]) -> Iterator[tuple[str, str]]:
    stats = reply.end.stats if reply.end else {}
    drafted = [line for line in reply.rounds if line.round]
    tested, accepted = sum(line.tested for line in drafted), sum(line.accepted for line in drafted)
    yield "tokens", str(stats.get("eval_count", len(reply.tokens)))
    yield "total", _seconds(reply.duration)
    if reply.tokens:
        yield "first token", _seconds(reply.tokens[0].at)
    if rate := rate_of(reply):
        yield "tokens per second, decoding", f"{rate:.1f}"
    if drafted:
        yield "rounds", str(len(drafted))
        yield "accepted of tested", f"{accepted} of {tested} ({accepted / tested:.0%})" if tested else "none tested"
        yield "per round", f"{sum(line.emitted for line in drafted) / len(drafted):.2f}"
    if axis:
        yield "draft", _seconds(sum(line.drafting for line in reply.rounds))
        yield "verify", _seconds(sum(line.scoring for line in reply.rounds))
        yield "waiting", _seconds(sum(block.waiting for block in axis) + max(0, reply.duration - axis[-1].end))
        yield "before the first round", _seconds(axis[0].begin)


def rate_of(reply: TracedReply) -> float | None:
    """Of decoding."""
    if not reply.tokens:
        return None
    burst = first_burst(line.round for line in reply.tokens)
    tokens = reply.end.stats.get("eval_count", 0) if reply.end else 0
    return decode_rate(tokens or len(reply.tokens), burst, (reply.duration - reply.tokens[0].at) / 1e9)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.2f} s"


def _token(number: int, line: TokenLine) -> str:
    text = "·" * line.length if line.text is None else line.text
    classes = line.origin + (" thinking" if line.thinking else "")
    return f'<span data-i="{number}" class="{classes}" tabindex="-1">{escape(text)}</span>'


def _timeline(reply: TracedReply, axis: list[RoundBlock]) -> str:
    if not axis:
        return '<p class="status">no rounds: the target wrote alone</p>'
    width = max(_WIDTH, _ROUND_WIDTH * len(axis))
    start, end = axis[0].begin, max(axis[-1].end, reply.duration)  # opening and reading come before, and may take long
    scale = (width - 2 * _LEFT) / max(1, end - start)
    keys = "".join(
        f'<g><rect class="{kind}" x="{_LEFT + 70 * place}" y="6" width="9" height="9"/>'
        f'<text x="{_LEFT + 13 + 70 * place}" y="14">{kind}</text></g>'
        for place, kind in enumerate(("draft", "verify", "waiting"))
    )
    lines = enumerate(zip(reply.rounds, axis, strict=True))
    drawn = "".join(_block(number, line, block, start, scale) for number, (line, block) in lines)
    ticks = "".join(_ticks(start, end, width, scale))
    return (
        f'<svg width="{width}" height="{_HEIGHT}" role="img" aria-label="rounds over time">{keys}{ticks}{drawn}</svg>'
    )


def _block(number: int, line: RoundLine, block: RoundBlock, start: int, scale: float) -> str:
    top = 22

    def rect(kind: str, begin: int, end: int) -> str:
        x, width = _LEFT + (begin - start) * scale, (end - begin) * scale
        return f'<rect class="{kind}" x="{x:.2f}" y="{top}" width="{max(width, 0.0):.2f}" height="{_BAR}"/>'

    return (
        f'<g class="round" data-i="{number}" data-n="{line.round}">'
        + rect("waiting", block.begin, block.drafting)
        + rect("draft", block.drafting, block.scoring)
        + rect("verify", block.scoring, block.end)
        + rect("hit", block.begin, block.end)
        + "</g>"
    )


def _ticks(start: int, end: int, width: int, scale: float) -> Iterator[str]:
    """Where how many seconds have passed since the reply was asked for."""
    count = _TICKS * width // _WIDTH
    for place in range(count + 1):
        at = start + (end - start) * place // count
        x, anchor = _LEFT + (at - start) * scale, "end" if place == count else "start"
        yield f'<line class="axis" x1="{x:.1f}" y1="50" x2="{x:.1f}" y2="55"/>'
        yield f'<text x="{x:.1f}" y="67" text-anchor="{anchor}">{at / 1e9:.2f} s</text>'


def _data(reply: TracedReply, axis: list[RoundBlock]) -> str:
    rounds = [line.model_dump() | {"waiting": block.waiting} for line, block in zip(reply.rounds, axis, strict=True)]
    data: dict[str, Any] = {"tokens": [line.model_dump() for line in reply.tokens], "rounds": rounds}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")  # ends no script, opens none
