"""Formats counters for people and programs: plain data, no colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specollama.spec_decode.events import Done, Event, Status, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route


def stats_object(stats: Stats) -> dict[str, Any]:
    """The counters as one JSON object; durations in nanoseconds, rates None where nothing was counted."""
    return {
        "route": str(stats.route),
        "reason": stats.reason,
        "notices": list(stats.notices),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "tested": stats.tested,
        "accepted": stats.accepted,
        "recovered": stats.recovered,
        "bonus": stats.bonus,
        "plain": stats.plain,
        "accepted_at": list(stats.accepted_at),
        "acceptance_rate": _rounded(stats.acceptance_rate),
        "predicted_rate": _rounded(stats.predicted_rate),
        "draft_efficiency": _rounded(stats.draft_efficiency),
        "mean_accepted_length": _rounded(stats.mean_accepted_length),
        "draft_requests": stats.draft_requests,
        "rows": stats.rows,
        "extensions": stats.extensions,
        "prompt_eval_count": stats.prompt_eval_count,
        "prompt_read": stats.prompt_read,
        "eval_count": stats.eval_count,
        "total_duration": stats.total_duration,
        "first_token_duration": stats.first_token_duration,
        "draft_duration": stats.draft_duration,
        "score_duration": stats.score_duration,
        "tokens_per_second": _rounded(stats.tokens_per_second),
    }


def event_object(event: Event) -> dict[str, Any]:
    """One event of a reply as one JSON object; the last one carries the counters."""
    if isinstance(event, Status):
        return {"event": "status", "speculation": event.on, "detail": event.detail}
    if isinstance(event, Done):
        return {"event": "done", "done_reason": str(event.reason), **stats_object(event.stats)}
    if isinstance(event, ToolCalls):
        return {"event": "tool_calls", "calls": list(event.calls)}
    return {
        "event": "thinking" if event.thinking else "text",
        "text": event.text,
        "origin": str(event.origin),
        "round": event.round,
        "logprob": event.logprob,
    }


def stats_lines(stats: Stats) -> list[tuple[str, str]]:
    """The counters for people: names and values. What was not counted is left out."""
    rounds = stats.rounds > 0
    lines = [
        ("route", f"{stats.route} ({stats.reason})" if stats.reason else str(stats.route)),
        (
            "prompt tokens read",
            f"{stats.prompt_read} of {stats.prompt_eval_count}" if stats.route is Route.LOCAL else "",
        ),
        ("tokens", f"{stats.eval_count}"),
        ("rounds", f"{stats.rounds}" if rounds else ""),
        ("drafted", f"{stats.drafted}" if rounds else ""),
        ("tested", f"{stats.tested}" if rounds else ""),
        ("accepted", f"{stats.accepted}" if rounds else ""),
        ("acceptance rate", percent(stats.acceptance_rate)),
        ("  predicted", percent(stats.predicted_rate)),
        ("mean accepted length", number(stats.mean_accepted_length)),
        ("rows asked", f"{stats.rows}" if rounds else ""),
        ("extensions", f"{stats.extensions}" if stats.extensions else ""),
        ("first token", seconds(stats.first_token_duration)),
        ("total", seconds(stats.total_duration)),
        ("  of it drafting", seconds(stats.draft_duration) if rounds else ""),
        ("  of it scoring", seconds(stats.score_duration) if rounds else ""),
        ("tokens per second", number(stats.tokens_per_second)),
    ]
    notices = [("notice", notice) for notice in stats.notices]
    return [(name, value) for name, value in lines if value] + notices


def align_columns(lines: Sequence[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def percent(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1%}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def seconds(duration: int) -> str:
    """A duration given in nanoseconds."""
    return f"{duration / 1e9:.2f} s"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
